"""A group as people see it: members, states of shards, stopped shards and attempts."""

from __future__ import annotations

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core.computations.attempts import Attempts
from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import (
    Join,
    Release,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.ports import Sign
from headrace.ops.group_views import group_view
from tests.core.groups.building import at
from tests.groups.building import (
    GROUP,
    NOW_MS,
    STREAM,
    commit_to,
    coordinator_on,
    groups_in,
    join_event,
    new_stream,
    note_attempts,
    reasons,
    shown_shards,
    stopped_group,
    stream_facts,
)


def test_the_five_states_of_a_shard_are_shown(backend: LogAndStore) -> None:
    stream, other = new_stream(backend, 4), new_stream(backend, 1, name="bills")
    coordinator = coordinator_on(backend)
    rows = (ShardFacts(0), ShardFacts(1), ShardFacts(2, (0, 3)), ShardFacts(3))
    facts = StreamFacts(STREAM, stream.id, rows)
    for name in "AB":
        coordinator.apply(GROUP, Join(name, 1, (facts,), balanced, order=True))
    read = StreamFacts(STREAM, stream.id, (*rows[:3], ShardFacts(3, (), finished_at=1)), seen=2)
    coordinator.apply(GROUP, ShardsChanged(read))
    coordinator.apply(GROUP, ShardsChanged(stream_facts(other, seen=3)))
    groups = groups_in(backend)
    group = groups.load(GROUP)
    positions = groups.positions(group)
    unread, entries = groups.unread(positions), groups.history(GROUP)
    view = group_view(group, groups.signs(group), positions, unread, entries, NOW_MS)
    assert {row["shard"]: row["state"] for row in view["shards"]} == {
        "bills:0": "free",
        "orders:0": "held",
        "orders:1": "moving",
        "orders:2": "waiting",
        "orders:3": "done",
    }
    moving = view["shards"][2]
    assert (moving["owner"], moving["next"], moving["epoch"]) == ("A", "B", 1)
    assert (moving["lag"], moving["lag_s"], moving["stopped"]) == (10, 100.0, False)
    assert moving["since"] == "2023-11-14T22:13:20.000Z"
    assert reasons(groups)[3] == "closed, and read to its end since version 3 (orders has 4 shards)"


def test_a_stopped_shard_is_shown_with_the_record_and_the_reason(backend: LogAndStore) -> None:
    stopped_group(backend)
    groups = groups_in(backend)
    told = {
        "record": "orders:0+4",
        "failed": 21,
        "deaths": 2,
        "at": "2023-11-14T22:13:20.000Z",
        "reason": "boom",
    }
    rows = shown_shards(groups)
    assert (rows[0]["stopped"], rows[0]["attempts"]) == (True, told)
    assert rows[0]["stopped_since"] == "2023-11-14T22:13:20.001Z"
    assert shown_shards(groups, entries=False)[0]["stopped_since"] == told["at"]
    assert [rows[1][key] for key in ("stopped", "attempts", "stopped_since")] == [False, None, None]
    assert reasons(groups)[0] == (
        "free since version 3 (A let go of orders:0): it was stopped at 2023-11-14T22:13:20.001Z "
        "because orders:0+4 failed 21 times, and 2 processes died there (boom), and is given to "
        "no member until it is resumed"
    )
    groups.resume(GROUP)
    rows = shown_shards(groups)
    assert [rows[0][key] for key in ("stopped", "attempts", "stopped_since")] == [False, None, None]
    assert "boom" not in reasons(groups)[0]


def test_a_moved_stopped_shard_still_shows_the_reason_if_there_is_one(
    backend: LogAndStore,
) -> None:
    stream = stopped_group(backend)
    groups = groups_in(backend)
    groups.seek(GROUP, 8, shards=[0], force=True)
    assert shown_shards(groups)[0]["attempts"]["record"] == "orders:0+4"
    note_attempts(backend, stream, 1, Attempts(4, working=True))
    coordinator_on(backend).apply(GROUP, Stop(at(1), 1))
    row = shown_shards(groups)[1]
    assert (row["stopped"], row["attempts"]) == (True, None)


def test_a_shard_shows_its_attempts_until_the_record_is_committed(
    backend: LogAndStore,
) -> None:
    stream = new_stream(backend, 1)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    groups = groups_in(backend)
    note_attempts(backend, stream, 0, Attempts(4, working=True))
    assert shown_shards(groups)[0]["attempts"] is None
    note_attempts(backend, stream, 0, Attempts(4, failed=1, working=True, reason="boom\nmore"))
    assert shown_shards(groups)[0]["attempts"] == {
        "record": "orders:0+4",
        "failed": 1,
        "deaths": 0,
        "at": None,
        "reason": "boom\nmore",
    }
    assert reasons(groups)[0] == (
        "held by A since version 1: A joined and made the group; "
        "it is tried again because orders:0+4 failed once (boom)"
    )
    commit_to(backend, stream, 0, 5)
    assert shown_shards(groups)[0]["attempts"] is None
    assert "tried" not in reasons(groups)[0]
    note_attempts(backend, stream, 0, Attempts(5, deaths=1, working=True))
    assert reasons(groups)[0].endswith("it is tried again because 1 process died at orders:0+5")


def test_a_member_is_shown_with_its_shards_as_ranges_and_its_last_heartbeat() -> None:
    backend = MemoryBackend()
    stream = new_stream(backend, 5)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, Stop(at(3), 1))
    coordinator.apply(GROUP, Release("A", 1, {at(3): 1}))
    group = coordinator.load(GROUP)
    view = group_view(group, {"A": Sign(True, 7, 1.26)}, {}, {}, [], NOW_MS)
    assert view["members"] == [
        {
            "member_id": "A",
            "shards": "orders:0-2,4",
            "last_heartbeat": 1.3,
            "alive": True,
            "incarnation": 1,
        }
    ]
    assert view["shards"][3]["stopped"] is True
    assert view["shards"][0]["end"] is None
    never = group_view(group, {"A": None}, {}, {}, [], NOW_MS)
    assert never["members"][0]["last_heartbeat"] is None
