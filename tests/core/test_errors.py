from __future__ import annotations

import inspect
import pickle

import pytest

from headrace.core import errors
from headrace.core.errors import (
    BadBatch,
    HeadraceError,
    OffsetOutOfRange,
    SequenceForgotten,
    Unsupported,
)


def _drawn() -> dict[str, str | None]:
    """Each error of the drawn tree with its parent."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").split(" ")[0]
        if line.startswith(("│", "├", "└", "HeadraceError")):
            depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
            path[depth:] = [name]
            parents[name] = path[depth - 1] if depth else None
    return parents


def _written() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, HeadraceError):
            ours = [base for base in kind.__bases__ if issubclass(base, HeadraceError)]
            found[name] = ours[0].__name__ if ours else None
    return found


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = _drawn()
    assert len(drawn) > 30
    assert drawn == _written()


def test_every_drawn_error_is_explained() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if line.startswith(("├", "│"))]
    assert all(len(line.lstrip("│├└─ ").split(maxsplit=1)) == 2 for line in lines)


def test_errors_are_value_or_lookup_errors_where_python_would_raise_those() -> None:
    assert issubclass(errors.Invalid, ValueError)
    assert issubclass(errors.UnknownStream, LookupError)
    assert issubclass(errors.OffsetOutOfRange, LookupError)


def test_an_offset_out_of_range_says_on_which_side() -> None:
    before = OffsetOutOfRange("shop/orders", 2, 3, 5, 9)
    beyond = OffsetOutOfRange("shop/orders", 2, 10, 5, 9)
    assert str(before) == ("shop/orders:2+3 is before the first kept offset 5; start at 5 up to 9")
    assert str(beyond) == (
        "shop/orders:2+10 is beyond the end, the next offset is 9; start at 5 up to 9"
    )


def test_errors_say_what_to_do() -> None:
    assert str(SequenceForgotten("p", 3, 99, 64)) == (
        "producer 'p' is at producer_seq 99: 3 is lower and not among the last 64 remembered; "
        "use numbers that grow"
    )
    assert str(Unsupported("kafka", "offer 'merge'", "partitions only grow")) == (
        "the kafka backend does not offer 'merge': partitions only grow"
    )
    assert str(BadBatch("a", 0, 5, 9, "its checksum is wrong")) == (
        "damaged batch a:0, offsets 5 to 8: its checksum is wrong; read on from offset 9, restore "
        "the rest from a copy"
    )


@pytest.mark.parametrize(
    "error",
    [
        errors.BadName("a b", "why"),
        errors.UnknownCodec("x", ["bytes"]),
        errors.UnknownStream("a"),
        errors.UnknownShard("a", 5, 4),
        errors.ShardClosed("a", 1),
        errors.OffsetOutOfRange("a", 1, 2, 3, 4),
        errors.SequenceForgotten("p", 1, 2, 64),
        errors.Unsupported("memory", "trim", "why"),
        errors.Fenced("g", "a", 1),
        errors.UnknownOutcome("no answer", withdrawn=True),
        errors.BadBatch("a", 1, 2, 3, "why"),
        errors.DiskFull("no room"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_keeps_its_facts_on_its_way_between_processes(error: HeadraceError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
