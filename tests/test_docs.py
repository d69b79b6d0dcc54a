"""Every Python and shell block of README and docs is run, every Python block of CONTRIBUTING, and
every example."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.core.capabilities import CAPABILITIES
from headrace.process.failpoints import POINTS
from tests import file_map
from tests.doc_blocks import blocks, python_blocks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def _run(command: list[str], cwd: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_works(page: Path, tmp_path: Path) -> None:
    python = "\n".join(python_blocks(page))
    if python:
        _run([sys.executable, "-c", python], tmp_path)
    for language, code in blocks(page):
        if language == "sh":
            _run(["bash", "-euo", "pipefail", "-c", code], tmp_path)


@pytest.mark.parametrize("code", python_blocks(CONTRIBUTING), ids=["codec", "backend"])
def test_a_test_module_shown_to_contributors_passes(code: str, tmp_path: Path) -> None:
    (tmp_path / "test_shown.py").write_text(code)
    shown = _run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path)
    assert " passed" in shown


def test_the_consumer_of_the_readme_is_short() -> None:
    """Three steps, ten lines: what runs is what `test_what_a_page_shows_works` runs."""
    code = blocks(ROOT / "README.md", "Consume in three steps")[0].code
    lines = [line for line in code.splitlines() if line]
    assert len(lines) <= 10
    assert [step for step in ("1.", "2.", "3.") if f"# {step}" in code] == ["1.", "2.", "3."]
    assert "hub.consumer(" in code


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert _run([sys.executable, str(example)], tmp_path)


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING], ids=lambda page: page.name)
def test_a_page_links_to_what_exists(page: Path) -> None:
    broken = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not broken


def test_a_row_of_the_feature_list_names_a_test_that_exists() -> None:
    rows = re.findall(
        r"^\| [A-Z]\d+ \|.*\| (.+) \|$", (ROOT / "docs/features.md").read_text(), re.M
    )
    assert rows
    missing = []
    for row in rows:
        for path, names in re.findall(r"(tests/[\w/]+\.py)((?:::\w+)+)", row):
            source = (ROOT / path).read_text() + _contracts()
            missing += [f"{path}{names}" for name in names.split("::")[1:] if name not in source]
        assert "tests/" in row, row
    assert not missing


def _contracts() -> str:
    folder = ROOT / "src/headrace/testing/contracts"
    return "\n".join(path.read_text() for path in folder.rglob("*.py"))


def test_a_guarantee_names_a_test_that_exists() -> None:
    promised = set(re.findall(r"\b(test_\w+)`", (ROOT / "docs/guarantees.md").read_text()))
    assert promised
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py")) + _contracts()
    assert not {name for name in promised if f"def {name}(" not in tests}


def test_the_fail_points_of_the_docs_are_those_of_the_code() -> None:
    page = (ROOT / "docs/testing.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z.-]+)` \| (.+) \|$", page, re.MULTILINE))
    assert listed == dict(POINTS)


def test_the_capabilities_of_the_docs_are_those_of_the_code() -> None:
    page = (ROOT / "docs/kafka.md").read_text()
    for capability in CAPABILITIES:
        cells = [
            f"no: {missing[capability]}" if capability in missing else "yes"
            for missing in (LmdbBackend.capabilities.missing, KafkaBackend.capabilities.missing)
        ]
        assert f"| `{capability}` | {cells[0]} | {cells[1]} |" in page


def test_the_file_map_is_that_of_the_source() -> None:
    """``python -m tests.file_map`` writes it anew."""
    page = file_map.PAGE.read_text()
    assert file_map.section(page, file_map.ROOMS) == file_map.room_table()
    assert file_map.section(page, file_map.FILES) == file_map.file_tables()
    assert file_map.rewritten(page) == page


def test_every_module_says_what_it_holds() -> None:
    paths = [path for room in (file_map.SOURCE, *file_map.rooms()) for path in file_map.files(room)]
    assert len(paths) > 200
    assert [path for path in paths if not file_map.paragraph(path).endswith((".", "?"))] == []


@pytest.mark.parametrize("room", file_map.rooms(), ids=lambda room: room.name)
def test_a_room_says_in_one_sentence_what_happens_there(room: Path) -> None:
    told = file_map.paragraph(room / "__init__.py")
    assert told.endswith(".")
    assert len(file_map.sentences(told)) == 1


@pytest.mark.parametrize("room", file_map.rooms(), ids=lambda room: room.name)
def test_a_room_is_small_enough_to_be_looked_over(room: Path) -> None:
    assert len(file_map.files(room)) <= 22


def test_what_the_four_files_are_said_to_hold_is_there() -> None:
    page = (ROOT / "docs/four-files.md").read_text()
    parts = re.findall(
        r"^## \d\. `([^`]+)`[^\n]*\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in parts] == [
        "core/model.py",
        "core/ports.py",
        "core/groups/machine.py",
        "core/computations/dispatch.py",
        "core/transaction.py",
    ]
    for name, part in parts:
        source = _squeezed((file_map.SOURCE / name).read_text())
        quoted = [
            line.removesuffix("...").strip()
            for block in re.findall(r"^```py\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)
            for line in block.splitlines()
        ]
        assert [line for line in quoted if line], name
        assert [line for line in quoted if _squeezed(line) not in source] == [], name


def _squeezed(text: str) -> str:
    """Without spaces and trailing commas: a signature may be wrapped."""
    return "".join(text.split()).replace(",)", ")")


def test_the_threads_of_the_docs_are_those_of_the_source() -> None:
    page = (ROOT / "docs/threads.md").read_text()
    listed = set(re.findall(r"^\| `(headrace-[\w-]+…?)` \|", page, re.MULTILINE))
    unnamed = set(re.findall(r"^\| no name \|.*?\(`([\w/.]+)`\)", page, re.MULTILINE))
    found = [thread for path in _library() for thread in _threads(path)]
    assert listed == {name for name, _ in found if name}
    assert unnamed == {where for name, where in found if not name}


def _library() -> list[Path]:
    rooms = file_map.SOURCE.rglob("*.py")
    return [p for p in rooms if p.relative_to(file_map.SOURCE).parts[0] not in ("testing", "tools")]


def _threads(path: Path) -> Iterator[tuple[str, str]]:
    """The name of each thread that a file starts, empty for one without, and the file."""
    tree = ast.parse(path.read_text())
    texts = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    where = path.relative_to(file_map.SOURCE).as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == "Thread":
                given = {each.arg: each.value for each in node.keywords}
                yield _shown_name(given.get("name"), texts), where
            elif called == "ThreadPoolExecutor":
                yield f"{_shown_name(node.args[1], texts)}_…", where
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".name"):
            name = _shown_name(node.value, texts)
            if name.startswith("headrace-"):
                yield name, where


def _shown_name(name: ast.expr | None, texts: Mapping[str, ast.expr]) -> str:
    """As the page has it: what is put in is ``…``."""
    if isinstance(name, ast.Name):
        name = texts.get(name.id)
    if isinstance(name, ast.Constant):
        return str(name.value)
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        return f"{name.values[0].value!s}…"
    return ""


def test_the_locks_of_the_docs_are_those_of_the_source() -> None:
    page = (ROOT / "docs/threads.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `([\w/]+\.py)` \|", page, re.MULTILINE)
    listed = {(where, name) for names, where in rows for name in re.findall(r"\w+", names)}
    assert listed == {lock for path in _library() for lock in _locks(path)}


def _locks(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
            continue
        kind = ast.unparse(node.value.func).rpartition(".")[2]
        if kind in ("Lock", "RLock", "Condition"):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = ast.unparse(target).rpartition(".")[2]
            yield path.relative_to(file_map.SOURCE).as_posix(), name
