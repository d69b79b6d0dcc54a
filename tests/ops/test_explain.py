"""What people read about a group: one sentence for each event, and for each state its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import (
    Configure,
    Delete,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Heartbeat,
    Leave,
    Release,
    Resume,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.groups.journal import Entry
from headrace.core.groups.machine import step
from headrace.core.model import ShardId
from headrace.ops.explain import GroupChanges, changes_of, event_sentence, why
from headrace.ops.ranges import shown_shards
from tests.core.groups.building import (
    VERSION,
    at,
    built,
    done,
    facts,
    free,
    held,
    join,
    member,
    moving,
    rows_of,
    stepped,
    waiting,
)

HELD = built({0: held("A"), 1: held("A"), 2: held("B")}, "A", "B")


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        (None, "a change too large to tell"),
        (join("C", rows_of(1)), "C joined"),
        (join("A", rows_of(1), 2), "A came back as a newer one"),
        (join("A", facts(0, stream="bills", id=2)), "A reads more streams"),
        (Heartbeat("A", 1, 1, VERSION, {at(0): 1}), "A let go of orders:1"),
        (Heartbeat("A", 1, 1, VERSION, {at(0): 1, at(1): 1}), "A has heard of the timeout"),
        (Release("A", 1, {at(0): 1, at(1): 1}), "A let go of orders:0-1"),
        (Release("A", 1, {}), "A let go of nothing"),
        (Leave("A", 1), "A left"),
        (Evict("A", 1, "dead"), "A was evicted: its process is dead"),
        (Evict("A", 1, "silent", 12.5), "A was evicted: silent for 12.5s"),
        (ShardsChanged(rows_of(3)), "orders has 3 shards"),
        (ShardsChanged(StreamFacts("orders", 1, ())), "orders is gone"),
        (Fence(at(1), 1), "orders:1 was fenced"),
        (Stop(at(1), 1), "orders:1 was stopped"),
        (Resume(at(1), 1), "orders:1 was resumed"),
        (
            ForceCheckpoint(at(1), 1, 17, finished=False),
            "the checkpoint of orders:1 was moved to 17 by hand",
        ),
        (Configure(1, order=False), "configured: order off"),
        (
            Configure(1, True, 90.0, balanced),
            "configured: order on, timeout 1m30s, allocator balanced",
        ),
        (Configure(1), "configured: nothing"),
        (Delete(1), "the group was deleted"),
        (Swept(1), "what the deleted group left was swept away"),
    ],
    ids=str,
)
def test_every_event_has_a_sentence(event: Event | None, sentence: str) -> None:
    assert event_sentence(event, HELD) == sentence


def test_what_was_left_to_be_dealt_is_dealt_by_a_heartbeat() -> None:
    beat = Heartbeat("A", 1, 1, VERSION, {at(0): 1, at(1): 1})
    dealt = event_sentence(beat, replace(HELD, pending=True))
    assert dealt == "a heartbeat of A dealt what was left to be dealt"


def test_without_the_group_a_sentence_says_less() -> None:
    assert event_sentence(Heartbeat("A", 1, 1, 1, {})) == "a heartbeat of A"
    assert event_sentence(join("A", rows_of(1), 2)) == "A joined"
    assert event_sentence(join("A", rows_of(1)), Group("g")) == "A joined and made the group"


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (built({1: held("A", granted=3)}, "A"), "held by A since version 3"),
        (built({1: moving("A", "B")}, "A", "B"), "promised to B, waits for A to let go"),
        (
            built({1: moving("A", None, stopped=True)}, "A"),
            "waits for A to let go: it was stopped",
        ),
        (
            built({1: moving("A", None)}, "A"),
            "waits for A to let go: allocator balanced gives it to no member: all that may hold it "
            "have as many as they may",
        ),
        (built({1: free()}), "free: the group has no members"),
        (
            built({1: free(stopped=True)}, "A"),
            "free: it was stopped, and is given to no member until it is resumed",
        ),
        (
            replace(built({1: free()}, "A"), pending=True, fault="it raised"),
            "free: it could not be dealt: it raised",
        ),
        (
            replace(built({1: free()}, "A"), pending=True),
            "free: not dealt yet: the member that changed the group last does not know "
            "allocator balanced",
        ),
        (
            replace(built({1: free()}), members={"A": member()._replace(streams=frozenset({"x"}))}),
            "free: no member reads orders",
        ),
        (built({1: done()}), "closed, and read to its end"),
        (built({1: waiting(parents=(0,)), 0: free()}), "waits for its ancestors: orders:0 is free"),
        (
            built({0: free(), 2: done(parents=(0,)), 1: waiting(parents=(2, 0))}),
            "waits for its ancestors: orders:0 is free",
        ),
        (
            built({1: waiting(parents=tuple(range(2, 10))), **{n: free() for n in range(2, 10)}}),
            "waits for its ancestors: "
            + "; ".join(f"orders:{n} is free" for n in range(2, 7))
            + "; and 3 more",
        ),
        (
            built({}),
            "not known to the group: read to its end and forgotten, or not heard of yet",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_shard_stands_as_it_does_for_a_reason(group: Group, reason: str) -> None:
    assert why(at(1), group, {}, []) == reason


def _changes(group: Group, *events: Event) -> GroupChanges:
    steps = []
    for version, event in enumerate(events, group.version + 1):
        after, _ = step(group, event)
        assert after.version == version, event
        steps.append((Entry(version, 1_000 * version, event), group, after))
        group = after
    return changes_of(group, steps)


def test_every_change_of_a_shard_is_listed() -> None:
    begin = built({0: held("A")}, "A")
    changes = _changes(
        begin,
        Fence(at(0), 1),
        Stop(at(0), 2),
        Release("A", 1, {at(0): 2}),
        Resume(at(0), 2),
        ShardsChanged(StreamFacts("orders", 1, ())),
    )
    assert [(turn.version, turn.cause, turn.became) for turn in changes.by_shard[at(0)]] == [
        (10, "orders:0 was fenced", "held by A under epoch 2"),
        (11, "orders:0 was stopped", "moving from A to no member, stopped"),
        (12, "A let go of orders:0", "free, stopped"),
        (13, "orders:0 was resumed", "held by A under epoch 4"),
        (14, "orders is gone", "gone"),
    ]
    assert changes.begin == begin.version
    assert changes.note == ""


def test_a_replay_that_does_not_end_at_the_group_gives_no_changes() -> None:
    after = stepped(HELD, Leave("A", 1))
    steps = [(Entry(VERSION + 1, 0, Leave("A", 1)), HELD, after)]
    assert changes_of(after, steps).note == ""
    other = replace(after, timeout_s=99.0)
    changes = changes_of(other, steps)
    assert "does not lead to the group as it is" in changes.note
    assert (changes.by_shard, changes.begin) == ({}, None)


def test_events_after_the_groups_version_are_left_out() -> None:
    first = stepped(HELD, Leave("A", 1))
    second = stepped(first, Leave("B", 1))
    changes = changes_of(
        first,
        [
            (Entry(VERSION + 1, 0, Leave("A", 1)), HELD, first),
            (Entry(VERSION + 2, 0, Leave("B", 1)), first, second),
        ],
    )
    assert set(changes.causes) == {VERSION + 1}


@pytest.mark.parametrize(
    ("shards", "text"),
    [
        ([], ""),
        ([("a", 0)], "a:0"),
        ([("a", 3), ("a", 1), ("a", 2), ("a", 7)], "a:1-3,7"),
        ([("b", 0), ("b", 1), ("a/x", 9)], "a/x:9 b:0-1"),
    ],
)
def test_shards_are_shown_as_ranges(shards: list[tuple[str, int]], text: str) -> None:
    assert shown_shards(ShardId(*shard) for shard in shards) == text


def test_an_owner_whose_process_is_dead_is_said_to_be_dead() -> None:
    group = built({0: held("A", 3)}, "A")
    assert "its process is dead" in why(at(0), group, {}, [], {"A"})
    assert "its process is dead" not in why(at(0), group, {}, [], {"B"})
