"""Every Python and shell block of README and docs is run, every Python block of CONTRIBUTING, and
every example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.core.ports import CAPABILITIES
from headrace.process.failpoints import POINTS
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
