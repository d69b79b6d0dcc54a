"""The front door: what ``from headrace import ...`` offers."""

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

import headrace
from headrace.core import errors


def _kind(name: str) -> tuple[int, str]:
    """Ruff's order: constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


PUBLIC = [
    "AccessRefused",
    "Allocator",
    "Appender",
    "BadAllocation",
    "BadBatch",
    "BadHub",
    "BadName",
    "BadOutput",
    "BadQuantity",
    "BadRecord",
    "BadRecordId",
    "BadSetting",
    "BadStored",
    "BadTopology",
    "BadValue",
    "Bounds",
    "capped",
    "Closed",
    "Computation",
    "computation",
    "Consumer",
    "Contended",
    "Context",
    "Damaged",
    "DiskFull",
    "Fenced",
    "Flag",
    "ForeignStore",
    "ForkedHandle",
    "GroupInUse",
    "Groups",
    "HeadraceError",
    "Hub",
    "HubBusy",
    "Invalid",
    "kiel",
    "LaneLost",
    "NetworkFilesystem",
    "NewerFormat",
    "NoHub",
    "NoRetry",
    "NotDurable",
    "OffsetOutOfRange",
    "open",
    "Outputs",
    "Pending",
    "Policy",
    "read_settings",
    "Record",
    "RecordId",
    "RecordTooLarge",
    "Refused",
    "register_codec",
    "Replaced",
    "Retryable",
    "Rewind",
    "run",
    "Running",
    "RunSettings",
    "SCHEMA",
    "SequenceForgotten",
    "Shard",
    "ShardClosed",
    "ShardId",
    "Slice",
    "start",
    "State",
    "StoreGone",
    "Stream",
    "StreamExists",
    "StreamInfo",
    "Topology",
    "TruncatedStore",
    "UnknownAllocator",
    "UnknownCodec",
    "UnknownGroup",
    "UnknownOutcome",
    "UnknownShard",
    "UnknownStream",
    "Unreachable",
    "Unsupported",
    "Watermark",
]


def test_the_public_names_are_these() -> None:
    assert set(headrace.__all__) == set(PUBLIC)


def test_what_is_public_is_sorted() -> None:
    assert headrace.__all__ == sorted(headrace.__all__, key=_kind)
    assert len(set(headrace.__all__)) == len(headrace.__all__)


def test_what_is_public_is_there_and_nothing_else_is() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    assert dir(headrace) == sorted(headrace.__all__)
    shown = {name for name, value in vars(headrace).items() if not name.startswith("_")}
    modules = {name for name in shown if inspect.ismodule(getattr(headrace, name))}
    assert shown - modules - {"annotations", "Any", "import_module", "TYPE_CHECKING"} <= set(
        headrace.__all__
    )


def test_every_error_is_public() -> None:
    ours = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, headrace.HeadraceError)
    }
    assert ours <= set(headrace.__all__)
    assert {name: getattr(headrace, name) for name in ours} == {
        name: getattr(errors, name) for name in ours
    }


def test_what_is_public_is_documented() -> None:
    # The tree in core/errors.py has a line for each error; small ones need no second one.
    ours = {name: getattr(headrace, name) for name in headrace.__all__ if name != "SCHEMA"}
    undocumented = [
        name
        for name, thing in ours.items()
        if not thing.__doc__ or thing.__doc__.startswith(f"{name}(")  # written by Python itself
    ]
    assert [name for name in undocumented if not hasattr(errors, name)] == []


@pytest.mark.parametrize("name", ["Hub", "Stream", "Appender", "Pending", "Record"])
def test_every_method_with_arguments_is_documented(name: str) -> None:
    kind = getattr(headrace, name)
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
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'nothing'"):
        _ = headrace.nothing  # type: ignore[attr-defined]


def test_the_front_door_is_enough(tmp_path: Path) -> None:
    from headrace import BadValue, Record, RecordId, open

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
    with pytest.raises(headrace.BadHub, match=r"kafka://host:9092, (or memory:|with two)"):
        headrace.open(where)


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys, headrace; headrace.HeadraceError, headrace.RecordId\n"
        "heavy = {'lmdb', 'pyspark', 'pyarrow', 'confluent_kafka', 'numpy', 'click', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_it_loads_no_other_module() -> None:
    """It takes a few milliseconds, and Ctrl-C has hardly a moment before a command handles it."""
    code = "import sys; before = {*sys.modules}; import headrace; print({*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'headrace'}"


def test_a_memory_hub_needs_no_lmdb() -> None:
    code = "import sys, headrace; headrace.open('memory:'); print('lmdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert headrace.__version__ == version("headrace")


ROOMS = (
    "core", "process", "codec", "streams", "groups", "consumers", "lanes", "engines", "replica",
    "hub",
)  # fmt: skip
DOCUMENTED = [
    "headrace",
    *(
        module.name
        for room in ROOMS
        for module in pkgutil.walk_packages(
            import_module(f"headrace.{room}").__path__, f"headrace.{room}."
        )
        if not module.ispkg
    ),
]


@pytest.mark.parametrize("module", DOCUMENTED)
def test_the_examples_in_docstrings_are_true(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.codec import registry

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
        "headrace",
        "headrace.hub.opening.open",
        "headrace.streams.stream.Stream.append",
        "headrace.streams.stream.Stream.read",
        "headrace.streams.stream.Stream.appender",
        "headrace.codec.registry.register_codec",
    } <= with_examples
