"""The history of a group and the explanation of each shard, from real journals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.groups.allocators import Allocator, balanced, capped
from headrace.core.groups.events import (
    Configure,
    Evict,
    Join,
    Leave,
    Release,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.model import ShardId
from headrace.ops.group_views import explanation, history_views
from tests.core.groups.building import at
from tests.groups.building import (
    GROUP,
    STREAM,
    Closing,
    commit_to,
    coordinator_on,
    groups_in,
    heartbeat_of,
    join_event,
    new_stream,
    reasons,
    story_of,
    stream_facts,
)


def test_joins_leaves_and_evictions_are_shown_in_the_history(backend: LogAndStore) -> None:
    stream = new_stream(backend)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, join_event(stream, "B"))
    coordinator.apply(GROUP, heartbeat_of(coordinator.load(GROUP), "A"))
    coordinator.apply(GROUP, Leave("B", 1))
    coordinator.apply(GROUP, join_event(stream, "C"))
    moving = {s: own.epoch for s, own in coordinator.load(GROUP).shards.items() if own.next}
    coordinator.apply(GROUP, Release("A", 1, moving))
    coordinator.apply(GROUP, Evict("A", 1, "dead"))
    coordinator.apply(GROUP, Evict("C", 1, "silent", 11.0))
    groups = groups_in(backend)
    rows = history_views(groups.history(GROUP), story_of(groups))
    assert [(row["version"], row["what"], row["moved"]) for row in rows] == [
        (1, "A joined and made the group", ["orders:0-3 held by A under epoch 1"]),
        (2, "B joined", ["orders:2-3 moving from A to B"]),
        (3, "A let go of orders:2-3", ["orders:2-3 held by B under epoch 2"]),
        (4, "B left", ["orders:2-3 held by A under epoch 3"]),
        (5, "C joined", ["orders:2-3 moving from A to C"]),
        (6, "A let go of orders:2-3", ["orders:2-3 held by C under epoch 4"]),
        (7, "A was evicted: its process is dead", ["orders:0-1 held by C under epoch 2"]),
        (8, "C was evicted: silent for 11s", ["orders:0-3 free"]),
    ]
    assert rows[0]["time"] == "2023-11-14T22:13:20.000Z"


def test_the_explanation_of_a_held_shard_names_the_cause(backend: LogAndStore) -> None:
    stream = new_stream(backend, 2)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, join_event(stream, "B"))
    groups = groups_in(backend)
    assert reasons(groups) == {
        0: "held by A since version 1: A joined and made the group",
        1: "promised to B, waits for A to let go since version 2 (B joined)",
    }
    coordinator.apply(GROUP, Evict("B", 1, "dead"))
    assert reasons(groups)[1] == "held by A since version 1: A joined and made the group"
    coordinator.apply(GROUP, Leave("A", 1))
    free = "free since version 4 (A left): the group has no members"
    assert reasons(groups) == dict.fromkeys(range(2), free)


def test_the_explanation_of_a_waiting_shard_names_its_ancestors() -> None:
    backend = Closing()
    stream = new_stream(backend, 3)
    rows = (ShardFacts(0), ShardFacts(1, (0,)), ShardFacts(2, (1,)))
    facts = StreamFacts(STREAM, stream.id, rows)
    coordinator_on(backend).apply(GROUP, Join("A", 1, (facts,), balanced, order=True))
    commit_to(backend, stream, 0, 4)
    backend.close_shard(stream, 0)
    assert reasons(groups_in(backend)) == {
        0: "held by A since version 1: A joined and made the group",
        1: "waits for its ancestors: orders:0 is held, read to 4 of 10",
        2: (
            "waits for its ancestors: orders:1 is waiting and open, read to 0 of 10; "
            "orders:0 is held, read to 4 of 10"
        ),
    }


def test_the_explanation_of_a_free_shard_names_the_reason(backend: LogAndStore) -> None:
    stream, other = new_stream(backend, 3), new_stream(backend, 1, name="bills")
    third = capped(3)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A", allocator=third))
    coordinator.apply(GROUP, ShardsChanged(stream_facts(other, seen=1)))
    coordinator.apply(GROUP, Stop(at(0), 1))
    groups = groups_in(backend)
    group = groups.load(GROUP)
    view = explanation(group, sorted(group.shards), groups.positions(group), story_of(groups))
    why = {row["shard"]: row["why"] for row in view["shards"]}
    assert why["bills:0"].endswith("no member reads bills")
    assert why["orders:0"] == (
        "waits for A to let go since version 3 (orders:0 was stopped): "
        "it was stopped at 2023-11-14T22:13:20.002Z"
    )
    assert why["orders:2"].endswith(
        "allocator capped(3) gives it to no member: all that may hold it have as many as they may"
    )
    coordinator.apply(GROUP, Release("A", 1, {at(0): 1}))
    assert reasons(groups)[0].endswith(
        "it was stopped at 2023-11-14T22:13:20.002Z, and is given to no member until it is resumed"
    )


def _all_to_last(members: Any, shards: Any, _: object) -> Mapping[str, list[ShardId]]:
    return {members[-1].name: list(shards)}


def test_an_unknown_allocator_leaves_moves_unexplained(backend: LogAndStore) -> None:
    own = Allocator("own", "3", deal=_all_to_last)
    stream = new_stream(backend, 2)
    coordinator = coordinator_on(backend, own)
    coordinator.apply(GROUP, join_event(stream, "A", allocator=own))
    coordinator.apply(GROUP, join_event(stream, "B", allocator=own))
    strange, knowing = groups_in(backend), groups_in(backend, own)
    assert story_of(strange).note == (
        "who moved why cannot be told here: allocator 'own' version '3' is not known to this "
        "process"
    )
    rows = history_views(strange.history(GROUP), story_of(strange))
    assert [(row["what"], row["moved"]) for row in rows] == [("A joined", None), ("B joined", None)]
    assert reasons(strange)[0] == "promised to B, waits for A to let go"
    assert story_of(knowing).note == ""
    assert reasons(knowing)[0].endswith("since version 2 (B joined)")
    strange.seek(GROUP, 3, force=True)
    assert story_of(knowing).note == ""
    assert "is not known to this process" in story_of(strange).note
    waiting = coordinator_on(backend)
    waiting.apply(GROUP, Evict("A", 1, "dead"))
    assert reasons(knowing)[0] == (
        "free since version 5 (A was evicted: its process is dead): not dealt yet: the "
        "member that changed the group last does not know allocator own"
    )


def test_an_allocator_that_changed_its_result_is_detected(backend: LogAndStore) -> None:
    own = Allocator("own", "3", deal=_all_to_last)
    stream = new_stream(backend, 2)
    coordinator = coordinator_on(backend, own)
    for name in "AB":
        coordinator.apply(GROUP, join_event(stream, name, allocator=own))
    changed = Allocator("own", "3", deal=balanced.deal)
    story = story_of(groups_in(backend, changed))
    assert "does not lead to the group as it is" in story.note
    assert (story.by_shard, story.causes, story.begin) == ({}, {}, None)


def test_an_incomplete_journal_is_reported(backend: LogAndStore) -> None:
    stream = new_stream(backend, 1)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, Configure(1, order=True, timeout_s=5.0, allocator=capped(2)))
    backend.transact({}, {store_keys.journal_key(GROUP, 1): None})
    groups = groups_in(backend)
    story = story_of(groups)
    assert "does not reach back" in story.note
    rows = history_views(groups.history(GROUP), story)
    assert [row["what"] for row in rows] == [
        "configured: order on, timeout 5s, allocator capped(2)"
    ]
