"""The front door: what ``from penstock import ...`` offers."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.codec
import penstock.runtime
from penstock.core import errors


def _kind(name: str) -> tuple[int, str]:
    """Ruff's order: constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_what_is_public_is_sorted() -> None:
    assert penstock.__all__ == sorted(penstock.__all__, key=_kind)
    assert len(set(penstock.__all__)) == len(penstock.__all__)


def test_what_is_public_is_there_and_nothing_else_is() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert dir(penstock) == sorted(penstock.__all__)
    shown = {name for name, value in vars(penstock).items() if not name.startswith("_")}
    modules = {name for name in shown if inspect.ismodule(getattr(penstock, name))}
    assert shown - modules - {"annotations", "Any", "import_module", "TYPE_CHECKING"} <= set(
        penstock.__all__
    )


def test_every_error_is_public() -> None:
    ours = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, penstock.PenstockError)
    }
    assert ours <= set(penstock.__all__)
    assert {name: getattr(penstock, name) for name in ours} == {
        name: getattr(errors, name) for name in ours
    }


def test_what_is_public_is_documented() -> None:
    # The tree in core/errors.py has a line for each error; small ones need no second one.
    ours = {name: getattr(penstock, name) for name in penstock.__all__ if name != "SCHEMA"}
    undocumented = [
        name
        for name, thing in ours.items()
        if not thing.__doc__ or thing.__doc__.startswith(f"{name}(")  # written by Python itself
    ]
    assert [name for name in undocumented if not hasattr(errors, name)] == []


@pytest.mark.parametrize("name", ["Hub", "Stream", "Appender", "Pending", "Record"])
def test_every_method_with_arguments_is_documented(name: str) -> None:
    kind = getattr(penstock, name)
    methods = inspect.getmembers(kind, inspect.isfunction)
    undocumented = [
        method
        for method, function in methods
        if not method.startswith("_")
        and len(inspect.signature(function).parameters) > 1
        and not inspect.getdoc(function)
    ]
    assert undocumented == []


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'nothing'"):
        _ = penstock.nothing  # type: ignore[attr-defined]


def test_the_front_door_is_enough(tmp_path: Path) -> None:
    from penstock import BadValue, Record, RecordId, open

    with open(tmp_path / "hub") as hub:
        orders = hub.create_stream("shop/orders", shards=4, codec="json", exist_ok=True)
        placed = orders.append({"id": 1}, key="ann")
        assert isinstance(placed, RecordId)
        (record,) = orders.read(placed.shard)
        assert isinstance(record, Record)
        assert (record.id, record.key, record.value) == (placed, "ann", {"id": 1})
        with pytest.raises(BadValue):
            orders.append(object())


@pytest.mark.parametrize("where", [None, 5, b"bytes", "", "kafka:somewhere", "s3://bucket"])
def test_what_names_no_hub_is_refused(where: Any) -> None:
    with pytest.raises(penstock.BadHub, match=r"kafka://host:9092, (or memory:|with two)"):
        penstock.open(where)


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, penstock; penstock.PenstockError, penstock.RecordId\n"
        "heavy = {'lmdb', 'pyspark', 'pyarrow', 'confluent_kafka', 'numpy', 'click', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_memory_hub_needs_no_lmdb() -> None:
    code = "import sys, penstock; penstock.open('memory:'); print('lmdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert penstock.__version__ == version("penstock")


DOCUMENTED = [
    "penstock",
    *(
        f"{room.__name__}.{module.name}"
        for room in (penstock.runtime, penstock.codec)
        for module in pkgutil.iter_modules(room.__path__)
    ),
]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_the_examples_in_docstrings_are_true(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.codec import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_codecs", dict(registry._codecs))
    assert doctest.testmod(import_module(module)).failed == 0


def test_there_are_examples_for_the_first_steps() -> None:
    finder = doctest.DocTestFinder()
    with_examples = {
        found.name
        for module in DOCUMENTED
        for found in finder.find(import_module(module))
        if found.examples
    }
    assert {
        "penstock",
        "penstock.runtime.opening.open",
        "penstock.runtime.stream.Stream.append",
        "penstock.runtime.stream.Stream.read",
        "penstock.runtime.stream.Stream.appender",
        "penstock.codec.registry.register_codec",
    } <= with_examples
