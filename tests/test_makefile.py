"""The Makefile: ``make test`` runs every test once, and ``make help`` lists every target."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TEST_FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))

Kind = str
"""``slow`` or ``not slow``: what ``-m`` chooses between."""
KINDS: tuple[Kind, ...] = ("slow", "not slow")


class PytestRun(NamedTuple):
    """One command line of pytest, as the Makefile writes it."""

    kinds: Sequence[Kind]
    paths: Sequence[Path]
    ignored: Sequence[Path]

    def selects(self, file: Path, kind: Kind) -> bool:
        return kind in self.kinds and _is_below(file, self.paths) and not self._ignores(file)

    def _ignores(self, file: Path) -> bool:
        return _is_below(file, self.ignored)


def _is_below(file: Path, places: Sequence[Path]) -> bool:
    return any(file.is_relative_to(place) for place in places)


def _make(*arguments: str) -> str:
    # Under `make test` the environment carries the flags of that make, its job server included.
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFL"))
    }
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=kept, capture_output=True, text=True, check=True
    )
    return done.stdout


def _pytest_run(command: str) -> PytestRun:
    options = shlex.split(command.partition(" -m pytest ")[2])
    kinds, paths, ignored = KINDS, [], []
    while options:
        option = options.pop(0)
        if option == "-m":
            kinds = (options.pop(0),)
        elif option.startswith("--ignore="):
            ignored.append(Path(option.removeprefix("--ignore=")))
        elif option != "-q":
            paths.append(Path(option))
    assert set(kinds) <= set(KINDS), command
    return PytestRun(kinds, paths or [Path("tests")], ignored)


@pytest.fixture(scope="module")
def runs() -> list[PytestRun]:
    """What ``make check test`` would run; measuring coverage runs some tests a second time."""
    lines = _make("--dry-run", "check", "test").splitlines()
    return [_pytest_run(line) for line in lines if " -m pytest " in line and "coverage" not in line]


@pytest.mark.parametrize("kind", KINDS)
def test_every_test_file_is_run_once(runs: list[PytestRun], kind: Kind) -> None:
    assert len(TEST_FILES) > 100
    times = {str(file): sum(run.selects(file, kind) for run in runs) for file in TEST_FILES}
    assert {file: count for file, count in times.items() if count != 1} == {}


def test_every_path_that_is_run_or_ignored_exists(runs: list[PytestRun]) -> None:
    named = {path for run in runs for path in (*run.paths, *run.ignored)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_a_command_line_selects_by_path_and_kind() -> None:
    run = _pytest_run('python -m pytest -q -m "not slow" tests/a --ignore=tests/a/test_2.py')
    assert run == PytestRun(("not slow",), [Path("tests/a")], [Path("tests/a/test_2.py")])
    assert run.selects(Path("tests/a/b/test_1.py"), "not slow")
    assert not run.selects(Path("tests/a/b/test_1.py"), "slow")
    assert not run.selects(Path("tests/a/test_2.py"), "not slow")
    assert not run.selects(Path("tests/ab/test_1.py"), "not slow")
    assert _pytest_run("python -m pytest -q").selects(Path("tests/ab/test_1.py"), "slow")


def test_help_lists_every_target_for_people() -> None:
    """The parts of ``check`` and ``test`` are not for people: their names begin with the whole."""
    declared = " ".join(re.findall(r"^\.PHONY: (.+)$", MAKEFILE, re.MULTILINE)).split()
    for_people = [name for name in declared if not name.startswith(("check-", "test-"))]
    assert [line.split()[0] for line in _make("help").splitlines()] == for_people
