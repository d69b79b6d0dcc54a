from __future__ import annotations

from typing import Any

import pytest

from headrace.core.errors import BadRecord, OffsetOutOfRange, UnknownShard
from headrace.core.model import Bounds, StreamInfo, even_shards
from headrace.core.records.batch import Batch
from headrace.core.records.limits import ReadBudget, check_commit_bytes, check_shard, check_start
from headrace.core.records.row import COMMIT_BYTES_MAX, Row

ORDERS = StreamInfo(
    name="orders",
    id=1,
    codec="bytes",
    routing="md5-range",
    retention_s=None,
    retention_bytes=None,
    created_ms=0,
    shards=even_shards(2),
)


def _batch(base: int, *sizes: int) -> Batch:
    rows = [Row(None, b"x" * size, 0) for size in sizes]
    return Batch.of_rows(rows, stream="orders", shard=0, offsets=range(base, base + len(rows)))


def _taken(room: ReadBudget, batch: Batch, start: int = 0, end: int = 100) -> list[int]:
    return list(room.take(batch, start, end).offsets)


def test_a_read_takes_the_slice() -> None:
    assert _taken(ReadBudget(99, 9_999), _batch(10, 1, 1, 1, 1, 1), 0, 99) == [10, 11, 12, 13, 14]
    assert _taken(ReadBudget(99, 9_999), _batch(10, 1, 1, 1, 1, 1), 11, 13) == [11, 12]
    assert _taken(ReadBudget(99, 9_999), _batch(10, 1, 1, 1, 1, 1), 14, 15) == [14]


def test_a_read_takes_so_many_records() -> None:
    room = ReadBudget(3, 9_999)
    assert _taken(room, _batch(0, 1, 1)) == [0, 1]
    assert not room.full
    assert _taken(room, _batch(2, 1, 1)) == [2]
    assert room.full


def test_the_first_record_always_fits() -> None:
    room = ReadBudget(99, 1)
    assert _taken(room, _batch(0, 5_000, 1)) == [0]
    assert room.full


def test_a_read_that_was_cut_takes_nothing_behind_the_cut() -> None:
    room = ReadBudget(99, 1_000)
    assert _taken(room, _batch(0, 10, 10, 5_000)) == [0, 1]
    assert room.full
    assert _taken(room, _batch(3, 1), 2) == []


def test_a_later_batch_that_does_not_fit_is_left_to_the_next_read() -> None:
    room = ReadBudget(99, 1_000)
    assert _taken(room, _batch(0, 10, 10)) == [0, 1]
    assert _taken(room, _batch(2, 10, 5_000)) == []
    assert room.full


@pytest.mark.parametrize("shard", [-1, 2, True, "0", None, 0.0])
def test_a_shard_that_is_not_there_is_refused(shard: Any) -> None:
    check_shard(ORDERS, 1)
    with pytest.raises(UnknownShard, match="it has 0 to 1"):
        check_shard(ORDERS, shard)


def test_reading_begins_within_the_bounds() -> None:
    for start in (5, 7, 9):
        check_start(ORDERS, 0, start, Bounds(5, 9))
    for start in (4, 10):
        with pytest.raises(OffsetOutOfRange):
            check_start(ORDERS, 0, start, Bounds(5, 9))


def test_one_commit_holds_so_much() -> None:
    check_commit_bytes(COMMIT_BYTES_MAX)
    with pytest.raises(BadRecord, match="append in parts"):
        check_commit_bytes(COMMIT_BYTES_MAX + 1)
