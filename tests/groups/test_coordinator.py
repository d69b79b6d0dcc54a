"""The coordinator: what it stores for each event, epoch keys, forced checkpoints and allocators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import BadName, BadStored, Fenced, NewerFormat
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.even_shares import Candidate
from headrace.core.groups.events import (
    Delete,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Settled,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Group
from headrace.core.groups.group_bytes import encoded
from headrace.core.model import ShardId
from headrace.groups.coordinator import (
    Coordinator,
    Get,
    Pause,
    Transact,
)
from tests.core.groups.building import OPS, Op, at, event_of
from tests.groups.coordinating import (
    GROUP,
    Interrupted,
    beat_of,
    commit_of,
    eager_coordinator,
    empty_stream,
    expected_epoch_keys,
    facts_of,
    grant_of,
    granted_epochs,
    join_of,
    stored_checkpoint,
    stored_epoch_keys,
)


def test_a_changed_group_is_stored(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    ours, others = eager_coordinator(backend), eager_coordinator(backend)
    assert granted_epochs(ours.apply(GROUP, join_of(stream, "A"))) == dict.fromkeys(range(4), 1)
    assert others.load(GROUP) == ours.load(GROUP)
    assert others.load(GROUP).version == 1
    assert stored_epoch_keys(backend) == expected_epoch_keys(others.load(GROUP))
    assert len(stored_epoch_keys(backend)) == 4


def test_a_group_that_was_never_joined_does_not_exist(backend: LogAndStore) -> None:
    coordinator = eager_coordinator(backend)
    before = backend.changes()
    assert coordinator.load(GROUP) == Group(GROUP)
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert backend.changes() == before


def test_a_heartbeat_that_changes_nothing_writes_nothing(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    beat = beat_of(coordinator.load(GROUP), "A")
    before = backend.changes()
    for asked in (coordinator, eager_coordinator(backend)):
        assert granted_epochs(asked.apply(GROUP, beat)) == dict.fromkeys(range(4), 1)
    assert backend.changes() == before


def test_a_refused_event_writes_nothing(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    before = backend.changes()
    refused: list[Event] = [Fence(at(0), 9), Heartbeat("A", 7, 1, 1, {}), Stop(at(9), 0)]
    for event in refused:
        assert isinstance(coordinator.apply(GROUP, event), Denied)
    assert backend.changes() == before


def test_an_unknown_event_writes_nothing(backend: LogAndStore) -> None:
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(empty_stream(backend), "A"))
    before = backend.changes()
    nothing: Any = "nothing"
    assert coordinator.apply(GROUP, nothing) == Denied("unknown", "")
    assert backend.changes() == before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a/b/c", "at most one slash, as in namespace/name"),
        ("no way", "only letters, digits, '.', '_' and '-', and one slash"),
        ("\ud800", "only letters, digits, '.', '_' and '-', and one slash"),
        (7, "a name is text"),
        (None, "a name is text"),
    ],
)
def test_a_group_without_a_name_is_refused(backend: LogAndStore, name: Any, why: str) -> None:
    stream = empty_stream(backend)
    before = backend.changes()
    for event in (join_of(stream, "A"), Leave("A", 1)):
        with pytest.raises(BadName) as caught:
            eager_coordinator(backend).apply(name, event)
        assert str(caught.value) == f"bad name {name!r}: {why}"
    assert backend.changes() == before


def test_a_fault_with_a_changing_message_is_written_once(backend: LogAndStore) -> None:
    turns = count()

    def failing(*_: object) -> Mapping[str, Sequence[ShardId]]:
        raise RuntimeError(f"no luck at {next(turns)}")

    stream = empty_stream(backend)
    eager_coordinator(backend, OWN).apply(GROUP, Join("A", 1, (facts_of(stream),), OWN))
    coordinator = eager_coordinator(backend, Allocator("own", "3", deal=failing))
    coordinator.apply(GROUP, Fence(at(0), 1))
    fault = coordinator.load(GROUP).fault
    assert fault == "allocator own: raised RuntimeError: no luck at 0"
    before = backend.changes()
    for _ in range(3):
        reply = coordinator.apply(GROUP, beat_of(coordinator.load(GROUP), "A"))
        assert isinstance(reply, Granted)
        assert reply.fault == fault
    assert next(turns) == 4
    assert backend.changes() == before


def test_groups_do_not_touch_each_other(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply("other", join_of(stream, "A"))
    coordinator.apply("other", Delete(1))
    coordinator.apply("other", join_of(stream, "B"))
    assert set(coordinator.load(GROUP).members) == {"A"}
    assert stored_epoch_keys(backend) == {
        **expected_epoch_keys(coordinator.load(GROUP)),
        **expected_epoch_keys(coordinator.load("other")),
    }


@pytest.mark.parametrize("answer", [True, False])
def test_the_condition_is_checked_right_before_the_write(
    backend: LogAndStore, answer: bool
) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    before = backend.changes()
    asked: list[int] = []

    def still() -> bool:
        asked.append(backend.changes())
        return answer

    reply = coordinator.apply(GROUP, Evict("A", 1, "silent", 10.1), still)
    assert asked == [before]
    assert reply == Settled(2 if answer else 1)
    assert (backend.changes() != before) is answer
    assert ("A" in coordinator.load(GROUP).members) is not answer


def test_the_condition_is_not_checked_without_a_write(backend: LogAndStore) -> None:
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(empty_stream(backend), "A"))

    def still() -> bool:
        raise AssertionError("asked in vain")

    assert coordinator.apply(GROUP, Evict("X", 1, "silent", 10.1), still) == Settled(1)


def test_asking_touches_no_store_and_no_clock(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    asking = eager_coordinator(backend).asking(GROUP, join_of(stream, "A"))
    assert next(asking) == Get(store_keys.group_key(GROUP))
    wish = asking.send(None)
    assert isinstance(wish, Transact)
    assert wish.checks == {store_keys.group_key(GROUP): 0}
    assert asking.send(False) == Pause(0.0)
    assert asking.send(None) == Get(store_keys.group_key(GROUP))
    assert backend.get(store_keys.group_key(GROUP)) is None


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPS, min_size=5, max_size=25))
def test_an_epoch_key_exists_exactly_while_the_shard_has_an_owner(ops: list[Op]) -> None:
    backend = MemoryBackend()
    coordinator = eager_coordinator(backend)
    for op in ops:
        coordinator.apply(GROUP, event_of(coordinator.load(GROUP), op))
        group = coordinator.load(GROUP)
        assert stored_epoch_keys(backend) == expected_epoch_keys(group)


def test_a_stream_created_again_gets_epoch_keys_of_its_own() -> None:
    backend = MemoryBackend()
    coordinator = eager_coordinator(backend)
    old = StreamFacts("orders", 1, (ShardFacts(0), ShardFacts(1)))
    coordinator.apply(GROUP, Join("A", 1, (old,), balanced))
    coordinator.apply(GROUP, ShardsChanged(StreamFacts("orders", 2, (ShardFacts(0),))))
    assert stored_epoch_keys(backend) == {
        store_keys.epoch_key(GROUP, 2, 0): store_keys.epoch_token(2)
    }
    assert stored_epoch_keys(backend) == expected_epoch_keys(coordinator.load(GROUP))


def test_a_checkpoint_forced_in_an_unknown_shard_makes_the_shard_known(
    backend: LogAndStore,
) -> None:
    stream = empty_stream(backend, 2)
    coordinator = eager_coordinator(backend)
    first = StreamFacts(stream.name, stream.id, (ShardFacts(0),))
    coordinator.apply(GROUP, Join("A", 1, (first,), balanced))
    reply = coordinator.apply(GROUP, ForceCheckpoint(at(1), 0, 7, finished=False))
    assert reply == Settled(2)
    assert stored_checkpoint(backend, stream, 1) == Checkpoint(7, 0)
    assert stored_epoch_keys(backend) == expected_epoch_keys(coordinator.load(GROUP))


def test_removing_a_shard_known_only_by_force_removes_its_epoch_key(
    backend: LogAndStore,
) -> None:
    stream = empty_stream(backend, 2)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(99), 0, 7, finished=False))
    assert len(stored_epoch_keys(backend)) == 3
    old = facts_of(stream)
    assert coordinator.apply(GROUP, ShardsChanged(old)) == Settled(2)
    now = StreamFacts(old.stream, old.id, old.shards, seen=2)
    assert coordinator.apply(GROUP, ShardsChanged(now)) == Settled(3)
    group = coordinator.load(GROUP)
    assert {shard.index for shard in group.shards} == {0, 1}
    assert stored_epoch_keys(backend) == expected_epoch_keys(group)
    with pytest.raises(Fenced):
        backend.commit(commit_of(grant_of(stream, 1, 2), 0, 5))


def test_a_new_owner_starts_at_the_last_commit_of_the_old_one(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 1)
    coordinator = eager_coordinator(backend)
    mine = granted_epochs(coordinator.apply(GROUP, join_of(stream, "A")))
    backend.commit(commit_of(grant_of(stream, 0, mine[0]), 0, 5))
    coordinator.apply(GROUP, Evict("A", 1, "dead"))
    theirs = granted_epochs(coordinator.apply(GROUP, join_of(stream, "B")))
    assert theirs[0] > mine[0]
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    with pytest.raises(Fenced):
        backend.commit(commit_of(grant_of(stream, 0, mine[0]), 5, 9))
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    backend.commit(commit_of(grant_of(stream, 0, theirs[0]), 5, 6))
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(6, 2)


def test_without_an_owner_a_shard_takes_no_commit(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 1)
    coordinator = eager_coordinator(backend)
    mine = granted_epochs(coordinator.apply(GROUP, join_of(stream, "A")))
    coordinator.apply(GROUP, Leave("A", 1))
    for epoch in (mine[0], mine[0] + 1, 0):
        with pytest.raises(Fenced):
            backend.commit(commit_of(grant_of(stream, 0, epoch), 0, 5))
    assert stored_checkpoint(backend, stream, 0) is None


def test_the_owner_commits_while_its_shard_is_moving(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 2)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply(GROUP, join_of(stream, "B"))
    assert coordinator.load(GROUP).shards[at(1)].state == "moving"
    backend.commit(commit_of(grant_of(stream, 1, 1), 0, 5))
    assert stored_checkpoint(backend, stream, 1) == Checkpoint(5, 1)


def test_a_forced_checkpoint_fences_the_owner(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 2)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    for shard in (0, 1):
        backend.commit(commit_of(grant_of(stream, shard, 1), 0, 5))
    reply = coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 2, finished=False))
    assert reply == Settled(2)
    with pytest.raises(Fenced):
        backend.commit(commit_of(grant_of(stream, 0, 1), 5, 9))
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(2, 1)
    backend.commit(commit_of(grant_of(stream, 1, 1), 5, 9))
    beat = beat_of(coordinator.load(GROUP), "A")
    assert granted_epochs(coordinator.apply(GROUP, beat)) == {0: 2, 1: 1}
    backend.commit(commit_of(grant_of(stream, 0, 2), 2, 9))
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(9, 2)


def test_a_checkpoint_can_be_forced_before_the_first_commit(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 1)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 7, finished=False))
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(7, 0)


def test_a_late_forced_checkpoint_moves_nothing(backend: LogAndStore) -> None:
    stream = empty_stream(backend, 1)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 7, finished=False))
    before = list(backend.scan(b""))
    late = coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 3, finished=False))
    assert late == Denied("late", "")
    assert list(backend.scan(b"")) == before


def test_a_commit_and_a_join_do_not_conflict() -> None:
    backend = Interrupted()
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: backend.commit(commit_of(grant_of(stream, 0, 1), 0, 5)))
    coordinator.apply(GROUP, join_of(stream, "B"))
    assert backend.tried == [True]
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    assert [s.state for s in coordinator.load(GROUP).shards.values()] == [
        "held",
        "held",
        "moving",
        "moving",
    ]
    backend.commit(commit_of(grant_of(stream, 0, 1), 5, 6))


def test_a_forced_checkpoint_is_repeated_after_a_commit_in_between() -> None:
    backend = Interrupted()
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: backend.commit(commit_of(grant_of(stream, 0, 1), 0, 5)))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 2, finished=False))
    assert backend.tried == [False, True]
    assert stored_checkpoint(backend, stream, 0) == Checkpoint(2, 1)


def test_a_group_of_a_newer_version_is_refused_and_others_go_on(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    newer = b"\2" + encoded(coordinator.load(GROUP))[1:]
    backend.transact({}, {store_keys.group_key(GROUP): newer})
    before = list(backend.scan(b""))
    for call in (coordinator.load, lambda name: coordinator.apply(name, join_of(stream, "B"))):
        with pytest.raises(NewerFormat):
            call(GROUP)
    assert list(backend.scan(b"")) == before
    assert granted_epochs(coordinator.apply("other", join_of(stream, "A"))) == dict.fromkeys(
        range(4), 1
    )


def test_a_damaged_group_is_refused_and_others_go_on(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.transact({}, {store_keys.group_key(GROUP): encoded(coordinator.load(GROUP))[:-1]})
    before = list(backend.scan(b""))
    with pytest.raises(BadStored):
        coordinator.apply(GROUP, join_of(stream, "B"))
    assert list(backend.scan(b"")) == before
    assert granted_epochs(coordinator.apply("other", join_of(stream, "A"))) == dict.fromkeys(
        range(4), 1
    )


def _all_to_the_last(
    members: Sequence[Candidate], shards: Sequence[ShardId], _: object
) -> Mapping[str, Sequence[ShardId]]:
    return {members[-1].name: shards}


OWN = Allocator("own", "3", deal=_all_to_the_last)


def test_a_custom_allocator_deals_where_it_is_known(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    knowing = eager_coordinator(backend, OWN)
    for name in "AB":
        knowing.apply(GROUP, Join(name, 1, (facts_of(stream),), OWN))
    knowing.apply(GROUP, beat_of(knowing.load(GROUP), "A"))
    assert knowing.load(GROUP).allocator is OWN
    assert {s.owner for s in knowing.load(GROUP).shards.values()} == {"B"}


def test_without_the_allocator_the_shards_are_dealt_later(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    knowing, other = eager_coordinator(backend, OWN), eager_coordinator(backend)
    for name in "AB":
        knowing.apply(GROUP, Join(name, 1, (facts_of(stream),), OWN))
    knowing.apply(GROUP, beat_of(knowing.load(GROUP), "A"))
    other.apply(GROUP, Evict("B", 1, "dead"))
    group = other.load(GROUP)
    assert (group.pending, group.allocator.deal) == (True, None)
    assert {s.owner for s in group.shards.values()} == {None}
    assert stored_epoch_keys(backend) == {}
    assert granted_epochs(other.apply(GROUP, beat_of(group, "A"))) == {}
    assert granted_epochs(knowing.apply(GROUP, beat_of(group, "A"))) == dict.fromkeys(range(4), 3)
    assert not other.load(GROUP).pending


def test_a_shipped_allocator_of_another_version_is_unknown(backend: LogAndStore) -> None:
    later = Allocator("balanced", "2", deal=balanced.deal)
    stream = empty_stream(backend)
    eager_coordinator(backend, later).apply(GROUP, Join("A", 1, (facts_of(stream),), later))
    assert eager_coordinator(backend).load(GROUP).allocator.deal is None
    assert eager_coordinator(backend, later).load(GROUP).allocator is later


def test_a_shipped_allocator_is_known_everywhere(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    eager_coordinator(backend).apply(GROUP, join_of(stream, "A"))
    assert eager_coordinator(backend).load(GROUP).allocator is balanced


def test_loading_a_group_by_a_bad_name_is_refused(backend: LogAndStore) -> None:
    with pytest.raises(BadName, match="bad name"):
        Coordinator(backend).load("a b")
