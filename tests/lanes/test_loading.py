"""Finding the topology that a text names, and telling which code a computation is."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from headrace.core.computations.computation import Computation, computation
from headrace.core.errors import BadTopology
from headrace.lanes.fingerprint import fingerprint
from headrace.lanes.loading import load_topology

HEAD = """\
from headrace.core.computations.computation import computation
from headrace.core.computations.topology import Topology
@computation(inputs="orders", outputs="invoices")
def bill(record, out): ...
@computation(inputs="invoices")
def post(record): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _write(name: str, *text: str) -> Path:
    path = Path(name).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(text))
    return path


def _names(text: str) -> list[str]:
    return [each.name for each in load_topology(text).topology.computations]


def _refused(text: str) -> str:
    with pytest.raises(BadTopology) as refused:
        load_topology(text)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# Finding


def test_the_one_called_topology_is_found() -> None:
    path = _write("shop.py", HEAD, "nightly = Topology(bill)\ntopology = Topology(post)\n")
    loaded = load_topology("shop.py")
    assert loaded.topology.computations[0].name == "post"
    assert loaded.reference == f"{path}:topology"


def test_the_only_one_is_found_whatever_it_is_called_and_however_often() -> None:
    path = _write("shop.py", HEAD, "nightly = Topology(bill)\nsame = nightly\n")
    assert load_topology("shop.py").reference == f"{path}:nightly"


def test_one_is_found_by_its_name() -> None:
    path = _write("shop.py", HEAD, "a = Topology(bill)\nb = Topology(post)\n")
    assert load_topology("shop.py:b").reference == f"{path}:b"
    assert _names("shop.py:b") == ["post"]
    assert _names(str(path) + ":a") == ["bill"]
    assert _names("./shop.py:bill") == ["bill"]  # one computation by itself


def test_without_one_it_is_made_of_all_computations() -> None:
    path = _write("shop.py", HEAD, "again = bill\n")
    loaded = load_topology("shop.py")
    assert [each.name for each in loaded.topology.computations] == ["bill", "post"]
    assert loaded.reference == str(path)


def test_a_module_is_found_by_its_name() -> None:
    _write("flows/__init__.py")
    path = _write("flows/shop.py", "from .parts import *\ntopology = Topology(bill)\n")
    _write("flows/parts.py", HEAD)
    loaded = load_topology("flows.shop:topology")
    assert loaded.reference == f"{path}:topology"
    assert loaded.topology["bill"].handler.__module__ == "flows.parts"
    assert _names("flows.shop") == ["bill"]


def test_a_module_that_its_file_alone_would_not_name_is_referred_to_by_name() -> None:
    _write("loose/shop.py", HEAD)
    assert load_topology("loose.shop:bill").reference == "loose.shop:bill"


# Importing


def test_a_file_can_import_what_lies_beside_it(folder: Path) -> None:
    _write("app/shop.py", "import app_rates\n", HEAD, "assert app_rates.RATE == 7\n")
    _write("app/app_rates.py", "RATE = 7\n")
    assert _names("app/shop.py") == ["bill", "post"]
    assert str(folder / "app") in sys.path


def test_a_file_in_a_package_can_import_relatively() -> None:
    _write("deep/__init__.py")
    _write("deep/shop.py", "from .rates import RATE\n", HEAD, "assert RATE == 7\n")
    _write("deep/rates.py", "RATE = 7\n")
    assert load_topology("deep/shop.py").topology["bill"].handler.__module__ == "deep.shop"


def test_its_module_can_be_imported_under_its_name() -> None:
    _write("myshop.py", HEAD)
    handler = load_topology("myshop.py").topology["bill"].handler
    assert handler.__module__ == "myshop"
    assert sys.modules["myshop"].bill.handler is handler


def test_a_file_does_not_take_the_place_of_another_module() -> None:
    import json

    _write("json.py", HEAD)
    assert _names("json.py") == ["bill", "post"]
    assert sys.modules["json"] is json
    sys.modules.pop("wave", None)  # of the standard library too, and not loaded yet
    _write("sounds/wave.py", HEAD)
    assert load_topology("sounds/wave.py").topology["bill"].handler.__module__ != "wave"


def test_two_files_of_one_name_are_two_modules() -> None:
    _write("one/sameshop.py", HEAD, "mark = 1\n")
    _write("two/sameshop.py", HEAD, "mark = 2\n")
    marks = [
        load_topology(f"{where}/sameshop.py").topology["bill"].handler.__globals__["mark"]
        for where in ("one", "two")
    ]
    assert marks == [1, 2]


@pytest.mark.parametrize("name", ["my-shop.py", "shop.v2.py", "1shop.py"])
def test_a_file_may_have_a_name_that_is_none_in_python(name: str) -> None:
    _write(name, HEAD)
    assert _names(name) == ["bill", "post"]


def test_a_changed_file_is_run_anew() -> None:
    _write("shop.py", HEAD, "topology = Topology(bill)\n")
    assert _names("shop.py") == ["bill"]
    _write("shop.py", HEAD, "topology = Topology(post)\n")
    assert _names("shop.py") == ["post"]


def test_another_process_in_another_place_loads_the_same(folder: Path) -> None:
    _write("app/flows/__init__.py")
    _write("app/flows/shop.py", "from .parts import *\nnightly = Topology(post)\n")
    _write("app/flows/parts.py", HEAD)
    reference = load_topology("app/flows/shop.py").reference
    (folder / "elsewhere").mkdir()
    code = (
        "import sys; from headrace.lanes.loading import load_topology\n"
        "loaded = load_topology(sys.argv[1]); print(loaded.reference, loaded.topology)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, reference],
        cwd=folder / "elsewhere",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == f"{reference} <Topology post>"


# Refusals


def test_what_is_not_there_is_refused() -> None:
    assert _refused("shop.py").startswith("shop.py: no such file")
    assert _refused("some/where/shop.py:a").startswith("some/where/shop.py: no such file")
    assert _refused("no.such.module:a").startswith("no module 'no.such.module' and no file")
    assert _refused("nothing").startswith("no module 'nothing'")
    assert _refused("").startswith("no module ''")
    assert _refused(".shop").startswith("no module '.shop'")


def test_what_is_no_python_file_is_refused(folder: Path) -> None:
    (folder / "shop").mkdir()
    assert _refused("shop") == "shop is a directory: name a file in it, as in shop/shop.py"
    assert _refused(f"{folder}").startswith(f"{folder} is a directory")
    _write("shop.txt", HEAD)
    assert _refused("shop.txt") == "shop.txt is not Python: name a file that ends with .py"
    _write("bad.py", "x = 1\ndef f(:\n")
    assert _refused("bad.py") == "bad.py:2: not Python: invalid syntax"
    Path("bytes.py").write_bytes(b"\x00\x01\xff")
    assert "not Python" in _refused("bytes.py")
    Path("latin.py").write_bytes(b"x = '\xff'\n")
    assert "not Python" in _refused("latin.py")
    assert _refused("bad:topology") == f"{folder / 'bad.py'}:2: not Python: invalid syntax"


def test_a_file_that_may_not_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by the system, as root may read everything."""

    def denied(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    _write("shop.py", HEAD)
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert _refused("shop.py") == "shop.py cannot be read: Permission denied"


@pytest.mark.parametrize("text", ["shop.py:", "shop.py:two words", "shop.py:a.b"])
def test_what_is_no_name_is_refused(text: str) -> None:
    _write("shop.py", HEAD)
    assert "is no name of a topology: write shop.py:topology" in _refused(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1 / 0", "shop.py:7: ZeroDivisionError: division by zero"),
        ("raise ValueError('two\\nlines')", "shop.py:7: ValueError: two lines"),
        ("raise ValueError", "shop.py:7: ValueError"),
        ("import sys; sys.exit(3)", "shop.py:7: SystemExit: 3"),
        ("import nosuchmodule", "shop.py:7: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("import json; json.loads('{')", "shop.py:7: JSONDecodeError: Expecting property"),
        ("import broken_part", "broken_part.py:2: KeyError: 'x'"),
        ("computation(inputs=())(print)", "shop.py:7: computation 'print' reads nothing"),
    ],
)
def test_an_error_of_the_file_itself_is_told_with_its_line(line: str, says: str) -> None:
    _write("broken_part.py", "\n{}['x']\n")
    _write("shop.py", HEAD, line, "\n")
    before = dict(sys.modules)
    assert _refused("shop.py").startswith(says)
    assert "shop" not in sys.modules.keys() - before.keys()


def test_an_error_of_a_module_is_told_with_its_line() -> None:
    _write("failing.py", HEAD, "import nosuchmodule\n")
    assert _refused("failing:topology") == (
        "failing.py:7: ModuleNotFoundError: No module named 'nosuchmodule'"
    )
    _write("failing_too.py", "1 / 0\n")
    assert _refused("failing_too:x") == "failing_too.py:1: ZeroDivisionError: division by zero"


def test_a_file_that_failed_leaves_what_was_loaded_before() -> None:
    _write("keptshop.py", HEAD)
    load_topology("keptshop.py")
    module = sys.modules["keptshop"]
    _write("keptshop.py", HEAD, "1 / 0\n")
    _refused("keptshop.py")
    assert sys.modules["keptshop"] is module


def test_a_file_without_anything_is_refused() -> None:
    _write("shop.py", "x = 1\n")
    assert _refused("shop.py").startswith("shop.py defines no Topology and no computation")


def test_one_of_several_must_be_said() -> None:
    _write("shop.py", HEAD, "a = Topology(bill)\nb = Topology(post)\n")
    assert _refused("shop.py") == "shop.py has several topologies, a, b: say which, shop.py:a"


def test_what_is_called_so_must_be_one() -> None:
    _write("shop.py", HEAD, "a = Topology(bill)\nx = {}\n")
    known = "; topologies and computations there: a, bill, post"
    assert _refused("shop.py:b") == f"shop.py: has no 'b'{known}"
    assert _refused("shop.py:x") == f"shop.py: 'x' is a dict{known}"


def test_computations_that_do_not_fit_together_are_refused_with_the_file() -> None:
    _write("shop.py", HEAD, "back = computation(inputs='invoices', outputs='orders')(bill.handler)")
    assert _refused("shop.py") == (
        "shop.py: two computations are called 'bill': each needs its own name"
    )


# Which code it is


def _of(handler: Any, **settings: Any) -> Computation:
    return computation(**{"inputs": "orders", "name": "bill", **settings})(handler)


def test_a_version_is_the_fingerprint() -> None:
    assert fingerprint(_of(lambda record: None, version="7")) == "7"


def test_another_source_is_another_fingerprint_and_the_same_is_the_same() -> None:
    _write("shop.py", HEAD)
    first = load_topology("shop.py").topology["bill"]
    again = load_topology("shop.py").topology["bill"]
    _write("shop.py", HEAD, "# fixed\n")
    assert fingerprint(first) == fingerprint(again)  # of what runs, not of what is there by now
    fixed = load_topology("shop.py").topology["bill"]
    assert fingerprint(fixed) != fingerprint(first)
    assert len(fingerprint(first)) == 16


def test_what_is_imported_has_the_fingerprint_of_its_own_file() -> None:
    _write("fp_parts.py", "def do(record): ...\n")
    text = "from fp_parts import do\ntwo = computation(inputs='x', name='two')(do)\n"
    _write("shop.py", HEAD, text)
    first = load_topology("shop.py").topology
    assert fingerprint(first["two"]) != fingerprint(first["bill"])
    _write("shop.py", HEAD, text, "# changed\n")
    second = load_topology("shop.py").topology
    assert fingerprint(first["two"]) == fingerprint(second["two"])
    assert fingerprint(first["bill"]) != fingerprint(second["bill"])


class _Bill:
    def process(self, record: Any) -> None: ...


class _Callable:
    def __call__(self, record: Any) -> None: ...


def _plain(record: Any) -> None: ...


@wraps(_plain)
def _wrapped(record: Any) -> None: ...


@pytest.mark.parametrize(
    "handler", [_plain, _wrapped, partial(_plain), partial(partial(_plain)), _Bill, _Callable()]
)
def test_every_form_of_handler_has_the_fingerprint_of_this_file(handler: Any) -> None:
    assert fingerprint(_of(handler)) == fingerprint(_of(_plain))
    assert fingerprint(_of(handler)) != fingerprint(_of(load_topology))


_TYPED = [
    "def do(record): return 1",
    "def do(record): return 2",
    "def do(record): return record in {'a', 'b', 'c'}",
    "def do(record): return [x for x in record if x > 1]",
    "def do(record): return [x for x in record if x > 2]",
    "class do:\n  def process(self, record): return 1",
    "class do:\n  def process(self, record): return 2",
]


def _typed(text: str) -> Any:
    """As at a prompt: without a file."""
    names: dict[str, Any] = {"__name__": "prompt"}
    exec(text, names)
    return names["do"]


def test_what_was_typed_in_is_told_apart_by_what_it_does() -> None:
    prints = [fingerprint(_of(_typed(text))) for text in _TYPED]
    assert len(set(prints)) == len(_TYPED)
    assert prints == [fingerprint(_of(_typed("\n\n" + text))) for text in _TYPED]


def test_what_was_typed_in_has_one_fingerprint_in_every_process() -> None:
    code = (
        "from headrace.core.computations.computation import computation\n"
        "from headrace.lanes.fingerprint import fingerprint\n"
        f"names = {{'__name__': 'prompt'}}; exec({_TYPED[2]!r}, names)\n"
        "print(fingerprint(computation(inputs='x')(names['do'])))"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert prints == {fingerprint(_of(_typed(_TYPED[2])))}
