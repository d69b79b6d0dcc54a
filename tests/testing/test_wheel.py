"""The wheel: what it holds, and that its extra ``testing`` is enough to run a contract."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.doc_blocks import python_blocks

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore")
ROOMS = {
    "backends", "cli", "codec", "consumers", "core", "engines", "groups", "hub", "lanes", "ops",
    "process", "replica", "spark", "streams", "testing", "tools",
}  # fmt: skip
"""Every folder of the product. A new room is added here, and shows up in a review."""
HARNESS = {"tests", "harness", "simulator", "live", "faults"}

_PIN = re.compile(r"^([A-Za-z0-9_.-]+==[^ \\]+(?: ; [^\\]+)?)", re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: building puts a C library beside its source, which other tests use."""
    project = tmp_path_factory.mktemp("project")
    for name in SOURCES:
        shutil.copy(ROOT / name, project)
    unbuilt = shutil.ignore_patterns("__pycache__", "*.so", "*.so.made")
    shutil.copytree(ROOT / "src", project / "src", ignore=unbuilt)
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "made"], project)
    (made,) = (project / "made").glob("*.whl")
    return made


def _run(command: list[str | Path], cwd: Path) -> str:
    # Only what the wheel and pip bring: the sources of this repository must not be found.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=kept, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _python_files(wheel: Path) -> dict[str, str]:
    with ZipFile(wheel) as files:
        return {
            name: files.read(name).decode() for name in files.namelist() if name.endswith(".py")
        }


@pytest.mark.slow
def test_the_wheel_holds_the_rooms_of_the_product_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as files:
        held = [Path(name) for name in files.namelist()]
    assert {path.parts[0] for path in held} == {"headrace", f"{_name(wheel)}.dist-info"}
    package = [path.relative_to("headrace") for path in held if path.parts[0] == "headrace"]
    assert {path.parts[0] for path in package if len(path.parts) > 1} == ROOMS
    assert {str(path) for path in package if len(path.parts) == 1} == {
        "__init__.py",
        "__main__.py",
        "py.typed",
    }
    assert [path for path in package if HARNESS & {*path.parts[:-1], path.stem}] == []


@pytest.mark.slow
def test_nothing_in_the_wheel_imports_the_tests(wheel: Path) -> None:
    for name, source in _python_files(wheel).items():
        for node in ast.walk(ast.parse(source)):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} imports relatively"
                modules = [node.module or ""]
            assert "tests" not in {module.partition(".")[0] for module in modules}, name


@pytest.mark.slow
def test_an_empty_environment_with_the_extra_runs_the_codec_contract(
    wheel: Path, tmp_path: Path
) -> None:
    """As CONTRIBUTING says: install, save the block as a test module, run pytest."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    constraints = tmp_path / "constraints.txt"
    constraints.write_text(_pins())
    install: list[str | Path] = [
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        constraints,
    ]
    _run([python, "-m", "pip", "install", *install, f"{wheel}[testing]"], tmp_path)

    own = tmp_path / "own"
    own.mkdir()
    (code,) = python_blocks(ROOT / "CONTRIBUTING.md", "Adding a codec")
    (own / "test_point.py").write_text(code)
    location = "import headrace; print(headrace.__file__)"
    assert _run([python, "-c", location], own).startswith(str(environment))
    shown = _run([python, "-m", "pytest", "-q", "test_point.py"], own)
    assert re.search(r"^\d+ passed in ", shown, re.MULTILINE), shown
    assert "warning" not in shown


def _pins() -> str:
    """The pinned versions without their hashes: else pip asks for a hash of the wheel too."""
    pins = _PIN.findall((ROOT / "requirements/dev.txt").read_text())
    assert {"pytest", "hypothesis", "pyarrow"} <= {pin.partition("==")[0] for pin in pins}
    return "".join(f"{pin.strip()}\n" for pin in pins)


def _name(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2])
