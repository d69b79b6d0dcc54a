"""Positions of a group: checkpoint, bounds, lag and latency of each shard."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core.errors import (
    BadBatch,
    BadSetting,
    UnknownStream,
)
from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import (
    Join,
)
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import ReadResult
from headrace.groups.positions import Position
from headrace.ops.group_views import lag_views, latency_views
from tests.core.groups.building import at
from tests.groups.building import (
    GROUP,
    NOW_MS,
    STREAM,
    commit_to,
    coordinator_on,
    groups_in,
    idle_group,
    join_event,
    new_stream,
    stream_facts,
)


def test_a_position_holds_checkpoint_bounds_and_lag(backend: LogAndStore) -> None:
    stream = new_stream(backend, 3)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    commit_to(backend, stream, 1, 7)
    commit_to(backend, stream, 2, 10)
    groups = groups_in(backend)
    positions = groups.positions(groups.load(GROUP))
    assert positions == {
        at(0): Position(stream, 0, None, Bounds(0, 10)),
        at(1): Position(stream, 1, 7, Bounds(0, 10)),
        at(2): Position(stream, 2, 10, Bounds(0, 10)),
    }
    assert [position.lag for position in positions.values()] == [10, 3, 0]
    rows = lag_views(GROUP, positions, groups.unread(positions), NOW_MS, each=True)
    assert [(row["shard"], row["lag"], row["lag_s"]) for row in rows] == [
        (0, 10, 100.0),
        (1, 3, 93.0),
        (2, 0, 0.0),
    ]
    assert lag_views(GROUP, positions, groups.unread(positions), NOW_MS) == [
        {
            "stream": STREAM,
            "group": GROUP,
            "shard": "all",
            "lag": 13,
            "pos": 17,
            "end": 30,
            "lag_s": 100.0,
        }
    ]


def test_trimmed_records_do_not_count_as_lag(backend: LogAndStore) -> None:
    stream = idle_group(backend, 1, done=2)
    backend.trim(stream, 0, 6)
    groups = groups_in(backend)
    positions = groups.positions(groups.load(GROUP))
    assert (positions[at(0)].lag, positions[at(0)].next, positions[at(0)].checkpoint) == (
        4,
        6,
        2,
    )
    assert groups.unread(positions)[at(0)].offset == 6
    assert groups.last_read(positions) == {}


def test_with_lag_latency_is_the_age_of_the_record_before_the_checkpoint(
    backend: LogAndStore,
) -> None:
    stream = new_stream(backend, 3, records=3)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    groups = groups_in(backend)

    def latency(each: bool = True) -> list[tuple[Any, ...]]:
        positions = groups.positions(groups.load(GROUP))
        rows = latency_views(GROUP, positions, groups.last_read(positions), NOW_MS, each=each)
        return [(row["lag"], row["latency_s"], row["key"]) for row in rows]

    assert latency() == [(3, None, None)] * 3
    for shard in (0, 1):
        commit_to(backend, stream, shard, 1)
    commit_to(backend, stream, 1, 2)
    commit_to(backend, stream, 2, 3)
    assert latency() == [(2, 100.0, "key0"), (1, 99.0, "key1"), (0, 0.0, None)]
    assert latency(each=False) == [(3, 100.0, "key0")]


class Damaging(MemoryBackend):
    """A backend whose records cannot be read."""

    def read(self, stream: StreamInfo, shard: int, start: int, *_: Any, **__: Any) -> ReadResult:
        raise BadBatch(stream.name, shard, start, start + 1, "not what was written")


def test_a_damaged_record_hides_its_age_and_nothing_else() -> None:
    backend = Damaging()
    idle_group(backend, 1)
    groups = groups_in(backend)
    positions = groups.positions(groups.load(GROUP))
    (row,) = lag_views(GROUP, positions, groups.unread(positions), NOW_MS)
    assert (row["lag"], row["lag_s"]) == (6, None)
    (row,) = latency_views(GROUP, positions, groups.last_read(positions), NOW_MS)
    assert (row["lag"], row["latency_s"]) == (6, None)


def test_a_stream_that_was_deleted_or_created_again_has_no_positions(backend: LogAndStore) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    backend.delete_stream(STREAM)
    assert groups.positions(groups.load(GROUP)) == {}
    with pytest.raises(UnknownStream):
        groups.seek(GROUP, "earliest", STREAM)
    assert groups.seek(GROUP, "earliest") == []
    new_stream(backend)
    assert groups.positions(groups.load(GROUP)) == {}
    with pytest.raises(UnknownStream):
        groups.skip(GROUP, at(0))


def test_positions_can_be_limited_to_one_stream(backend: LogAndStore) -> None:
    stream, other = new_stream(backend, 1), new_stream(backend, 2, name="bills")
    event = Join("A", 1, (stream_facts(stream), stream_facts(other)), balanced)
    coordinator_on(backend).apply(GROUP, event)
    groups = groups_in(backend)
    group = groups.load(GROUP)
    assert {str(shard) for shard in groups.positions(group)} == {"bills:0", "bills:1", "orders:0"}
    assert set(groups.positions(group, STREAM)) == {at(0)}
    with pytest.raises(BadSetting, match=r"does not read 'x': it reads bills, orders"):
        groups.positions(group, "x")
    with pytest.raises(BadSetting, match=r"reads bills, orders: say which stream"):
        groups.plan(GROUP, 3)
    with pytest.raises(BadSetting, match=r"say which stream"):
        groups.plan(GROUP, "latest", shards=[0])
    assert len(groups.plan(GROUP, "latest")) == 3
