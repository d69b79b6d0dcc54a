"""The one loop that changes groups: on a store others use too, where races and answers are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import BadName, BadStored, Contended, Fenced, NewerFormat, UnknownOutcome
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.even_shares import Candidate
from headrace.core.groups.events import (
    Configure,
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
    Reply,
    Settled,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.groups.group_bytes import encoded
from headrace.core.model import ShardId, Slice, StreamInfo
from headrace.core.ports import Commit, Grant, StreamSpec
from headrace.core.store_keys import epoch_key, epoch_token
from headrace.groups.coordinator import (
    ATTEMPTS_MAX,
    DELAY_S,
    DELAY_S_MAX,
    Coordinator,
    Get,
    Pause,
    Transact,
)
from tests.core.groups.building import OPS, Op, at, event_of

GROUP = "billing"
WAIT_S = 30.0


@pytest.fixture(params=["memory", "lmdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAndStore]:
    memory = request.param == "memory"
    opened: LogAndStore = MemoryBackend() if memory else LmdbBackend(tmp_path / "hub")
    yield opened
    opened.close()


def _stream(backend: LogAndStore, shards: int = 4, name: str = "orders") -> StreamInfo:
    return backend.create_stream(StreamSpec(name, shards, "bytes", "md5-range", None, None, 0))


def _facts(stream: StreamInfo) -> StreamFacts:
    rows = tuple(ShardFacts(shard.index, shard.parents) for shard in stream.shards)
    return StreamFacts(stream.name, stream.id, rows)


def _coordinator(backend: LogAndStore, *allocators: Allocator) -> Coordinator:
    """One that never waits."""
    return Coordinator(backend, allocators, dice=lambda: 0.0, sleep=lambda _: None)


def _join(stream: StreamInfo, name: str, incarnation: int = 1) -> Join:
    return Join(name, incarnation, (_facts(stream),), balanced)


def _granted(reply: Reply) -> dict[int, int]:
    assert isinstance(reply, Granted), reply
    return {shard.index: epoch for shard, epoch in reply.shards.items()}


def _beat(group: Group, name: str) -> Heartbeat:
    """Of a member that has seen the group as it is, and works on what it was granted."""
    held = {s: own.epoch for s, own in group.owned(name).items() if own.state == "held"}
    return Heartbeat(name, group.members[name].incarnation, 1, group.version, held)


def _grant(stream: StreamInfo, shard: int, epoch: int) -> Grant:
    return Grant(GROUP, stream, shard, store_keys.epoch_token(epoch))


def _commit(grant: Grant, start: int, end: int) -> Commit:
    return Commit(grant=grant, done=Slice(grant.stream.name, grant.shard, start, end))


def _checkpoint(backend: LogAndStore, stream: StreamInfo, shard: int) -> Checkpoint | None:
    found = backend.get(store_keys.checkpoint_key(GROUP, stream.id, shard))
    return None if found is None else Checkpoint.decoded(found.value)


def _epoch_keys(backend: LogAndStore) -> dict[bytes, bytes]:
    return {key: found.value for key, found in backend.scan(b"e")}


def _epochs_of(group: Group) -> dict[bytes, bytes]:
    """The epoch keys there should be: of the shards that somebody owns."""
    return {
        epoch_key(group.name, group.streams[shard.stream], shard.index): epoch_token(standing.epoch)
        for shard, standing in group.shards.items()
        if standing.owner is not None
    }


# What is stored


def test_a_changed_group_is_stored(backend: LogAndStore) -> None:
    stream = _stream(backend)
    ours, others = _coordinator(backend), _coordinator(backend)
    assert _granted(ours.apply(GROUP, _join(stream, "A"))) == dict.fromkeys(range(4), 1)
    assert others.load(GROUP) == ours.load(GROUP)
    assert others.load(GROUP).version == 1
    assert _epoch_keys(backend) == _epochs_of(others.load(GROUP))
    assert len(_epoch_keys(backend)) == 4


def test_a_group_that_was_never_joined_does_not_exist(backend: LogAndStore) -> None:
    coordinator = _coordinator(backend)
    before = backend.changes()
    assert coordinator.load(GROUP) == Group(GROUP)
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert backend.changes() == before


def test_a_heartbeat_that_changes_nothing_writes_nothing(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    beat = _beat(coordinator.load(GROUP), "A")
    before = backend.changes()
    for asked in (coordinator, _coordinator(backend)):
        assert _granted(asked.apply(GROUP, beat)) == dict.fromkeys(range(4), 1)
    assert backend.changes() == before


def test_a_refused_event_writes_nothing(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    before = backend.changes()
    refused: list[Event] = [Fence(at(0), 9), Heartbeat("A", 7, 1, 1, {}), Stop(at(9), 0)]
    for event in refused:
        assert isinstance(coordinator.apply(GROUP, event), Denied)
    assert backend.changes() == before


def test_an_unknown_event_writes_nothing(backend: LogAndStore) -> None:
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(_stream(backend), "A"))
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
    stream = _stream(backend)
    before = backend.changes()
    for event in (_join(stream, "A"), Leave("A", 1)):
        with pytest.raises(BadName) as caught:
            _coordinator(backend).apply(name, event)
        assert str(caught.value) == f"bad name {name!r}: {why}"
    assert backend.changes() == before


def test_a_fault_with_a_changing_message_is_written_once(backend: LogAndStore) -> None:
    turns = count()

    def failing(*_: object) -> Mapping[str, Sequence[ShardId]]:
        raise RuntimeError(f"no luck at {next(turns)}")

    stream = _stream(backend)
    _coordinator(backend, OWN).apply(GROUP, Join("A", 1, (_facts(stream),), OWN))
    coordinator = _coordinator(backend, Allocator("own", "3", deal=failing))
    coordinator.apply(GROUP, Fence(at(0), 1))
    fault = coordinator.load(GROUP).fault
    assert fault == "allocator own: raised RuntimeError: no luck at 0"
    before = backend.changes()
    for _ in range(3):
        reply = coordinator.apply(GROUP, _beat(coordinator.load(GROUP), "A"))
        assert isinstance(reply, Granted)
        assert reply.fault == fault
    assert next(turns) == 4
    assert backend.changes() == before


def test_groups_do_not_touch_each_other(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply("other", _join(stream, "A"))
    coordinator.apply("other", Delete(1))
    coordinator.apply("other", _join(stream, "B"))
    assert set(coordinator.load(GROUP).members) == {"A"}
    assert _epoch_keys(backend) == {
        **_epochs_of(coordinator.load(GROUP)),
        **_epochs_of(coordinator.load("other")),
    }


@pytest.mark.parametrize("answer", [True, False])
def test_the_condition_is_checked_right_before_the_write(
    backend: LogAndStore, answer: bool
) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
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
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(_stream(backend), "A"))

    def still() -> bool:
        raise AssertionError("asked in vain")

    assert coordinator.apply(GROUP, Evict("X", 1, "silent", 10.1), still) == Settled(1)


def test_asking_touches_no_store_and_no_clock(backend: LogAndStore) -> None:
    stream = _stream(backend)
    asking = _coordinator(backend).asking(GROUP, _join(stream, "A"))
    assert next(asking) == Get(store_keys.group_key(GROUP))
    wish = asking.send(None)
    assert isinstance(wish, Transact)
    assert wish.checks == {store_keys.group_key(GROUP): 0}
    assert asking.send(False) == Pause(0.0)
    assert asking.send(None) == Get(store_keys.group_key(GROUP))
    assert backend.get(store_keys.group_key(GROUP)) is None


# Epoch keys


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(OPS, min_size=5, max_size=25))
def test_an_epoch_key_exists_exactly_while_the_shard_has_an_owner(ops: list[Op]) -> None:
    backend = MemoryBackend()
    coordinator = _coordinator(backend)
    for op in ops:
        coordinator.apply(GROUP, event_of(coordinator.load(GROUP), op))
        group = coordinator.load(GROUP)
        assert _epoch_keys(backend) == _epochs_of(group)


def test_a_stream_created_again_gets_epoch_keys_of_its_own() -> None:
    backend = MemoryBackend()
    coordinator = _coordinator(backend)
    old = StreamFacts("orders", 1, (ShardFacts(0), ShardFacts(1)))
    coordinator.apply(GROUP, Join("A", 1, (old,), balanced))
    coordinator.apply(GROUP, ShardsChanged(StreamFacts("orders", 2, (ShardFacts(0),))))
    assert _epoch_keys(backend) == {store_keys.epoch_key(GROUP, 2, 0): store_keys.epoch_token(2)}
    assert _epoch_keys(backend) == _epochs_of(coordinator.load(GROUP))


def test_a_checkpoint_forced_in_an_unknown_shard_makes_the_shard_known(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    first = StreamFacts(stream.name, stream.id, (ShardFacts(0),))
    coordinator.apply(GROUP, Join("A", 1, (first,), balanced))
    reply = coordinator.apply(GROUP, ForceCheckpoint(at(1), 0, 7, finished=False))
    assert reply == Settled(2)
    assert _checkpoint(backend, stream, 1) == Checkpoint(7, 0)
    assert _epoch_keys(backend) == _epochs_of(coordinator.load(GROUP))


def test_removing_a_shard_known_only_by_force_removes_its_epoch_key(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(99), 0, 7, finished=False))
    assert len(_epoch_keys(backend)) == 3
    old = _facts(stream)
    assert coordinator.apply(GROUP, ShardsChanged(old)) == Settled(2)
    now = StreamFacts(old.stream, old.id, old.shards, seen=2)
    assert coordinator.apply(GROUP, ShardsChanged(now)) == Settled(3)
    group = coordinator.load(GROUP)
    assert {shard.index for shard in group.shards} == {0, 1}
    assert _epoch_keys(backend) == _epochs_of(group)
    with pytest.raises(Fenced):
        backend.commit(_commit(_grant(stream, 1, 2), 0, 5))


# Commits


def test_a_new_owner_starts_at_the_last_commit_of_the_old_one(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    mine = _granted(coordinator.apply(GROUP, _join(stream, "A")))
    backend.commit(_commit(_grant(stream, 0, mine[0]), 0, 5))
    coordinator.apply(GROUP, Evict("A", 1, "dead"))
    theirs = _granted(coordinator.apply(GROUP, _join(stream, "B")))
    assert theirs[0] > mine[0]
    assert _checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    with pytest.raises(Fenced):
        backend.commit(_commit(_grant(stream, 0, mine[0]), 5, 9))
    assert _checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    backend.commit(_commit(_grant(stream, 0, theirs[0]), 5, 6))
    assert _checkpoint(backend, stream, 0) == Checkpoint(6, 2)


def test_without_an_owner_a_shard_takes_no_commit(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    mine = _granted(coordinator.apply(GROUP, _join(stream, "A")))
    coordinator.apply(GROUP, Leave("A", 1))
    for epoch in (mine[0], mine[0] + 1, 0):
        with pytest.raises(Fenced):
            backend.commit(_commit(_grant(stream, 0, epoch), 0, 5))
    assert _checkpoint(backend, stream, 0) is None


def test_the_owner_commits_while_its_shard_is_moving(backend: LogAndStore) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, _join(stream, "B"))
    assert coordinator.load(GROUP).shards[at(1)].state == "moving"
    backend.commit(_commit(_grant(stream, 1, 1), 0, 5))
    assert _checkpoint(backend, stream, 1) == Checkpoint(5, 1)


def test_a_forced_checkpoint_fences_the_owner(backend: LogAndStore) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    for shard in (0, 1):
        backend.commit(_commit(_grant(stream, shard, 1), 0, 5))
    reply = coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 2, finished=False))
    assert reply == Settled(2)
    with pytest.raises(Fenced):
        backend.commit(_commit(_grant(stream, 0, 1), 5, 9))
    assert _checkpoint(backend, stream, 0) == Checkpoint(2, 1)
    backend.commit(_commit(_grant(stream, 1, 1), 5, 9))
    beat = _beat(coordinator.load(GROUP), "A")
    assert _granted(coordinator.apply(GROUP, beat)) == {0: 2, 1: 1}
    backend.commit(_commit(_grant(stream, 0, 2), 2, 9))
    assert _checkpoint(backend, stream, 0) == Checkpoint(9, 2)


def test_a_checkpoint_can_be_forced_before_the_first_commit(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 7, finished=False))
    assert _checkpoint(backend, stream, 0) == Checkpoint(7, 0)


def test_a_late_forced_checkpoint_moves_nothing(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 7, finished=False))
    before = list(backend.scan(b""))
    late = coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 3, finished=False))
    assert late == Denied("late", "")
    assert list(backend.scan(b"")) == before


class Before(MemoryBackend):
    """Something happens right before the next transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.next: list[Callable[[], object]] = []
        self.tried: list[bool] = []

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        if self.next:
            self.next.pop(0)()
        happened = super().transact(checks, puts)
        self.tried.append(happened)
        return happened


def test_a_commit_and_a_join_do_not_conflict() -> None:
    backend = Before()
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: backend.commit(_commit(_grant(stream, 0, 1), 0, 5)))
    coordinator.apply(GROUP, _join(stream, "B"))
    assert backend.tried == [True]
    assert _checkpoint(backend, stream, 0) == Checkpoint(5, 1)
    assert [s.state for s in coordinator.load(GROUP).shards.values()] == [
        "held",
        "held",
        "moving",
        "moving",
    ]
    backend.commit(_commit(_grant(stream, 0, 1), 5, 6))


def test_a_forced_checkpoint_is_repeated_after_a_commit_in_between() -> None:
    backend = Before()
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: backend.commit(_commit(_grant(stream, 0, 1), 0, 5)))
    coordinator.apply(GROUP, ForceCheckpoint(at(0), 1, 2, finished=False))
    assert backend.tried == [False, True]
    assert _checkpoint(backend, stream, 0) == Checkpoint(2, 1)


# Races and lost answers


def test_a_lost_race_is_repeated_on_the_new_group() -> None:
    backend = Before()
    stream = _stream(backend)
    ours, theirs = _coordinator(backend), _coordinator(backend)
    ours.apply(GROUP, _join(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: theirs.apply(GROUP, _join(stream, "B")))
    ours.apply(GROUP, _join(stream, "C"))
    assert backend.tried == [True, False, True]
    assert set(ours.load(GROUP).members) == {"A", "B", "C"}
    assert ours.load(GROUP).version == 3


def test_a_race_for_the_first_write_keeps_both_members() -> None:
    backend = Before()
    stream = _stream(backend)
    backend.next.append(lambda: _coordinator(backend).apply(GROUP, _join(stream, "B")))
    _coordinator(backend).apply(GROUP, _join(stream, "A"))
    assert set(_coordinator(backend).load(GROUP).members) == {"A", "B"}


def test_all_members_that_join_at_once_are_kept(backend: LogAndStore) -> None:
    stream = _stream(backend)
    names = [f"m{n}" for n in range(8)]
    barrier = threading.Barrier(len(names))
    delays: dict[str, list[float]] = {name: [] for name in names}

    def enter(name: str) -> Reply:
        own = Coordinator(backend, dice=lambda: 1.0, sleep=delays[name].append)
        barrier.wait(WAIT_S)
        return own.apply(GROUP, _join(stream, name))

    with ThreadPoolExecutor(len(names)) as pool:
        replies = list(pool.map(enter, names, timeout=WAIT_S))
    assert all(isinstance(reply, Granted) for reply in replies)
    group = _coordinator(backend).load(GROUP)
    assert set(group.members) == set(names)
    assert group.version == len(names)
    assert sum(standing.owner is not None for standing in group.shards.values()) == 4
    assert _epoch_keys(backend) == _epochs_of(group)
    # A race is lost only to somebody who won it.
    assert max(len(waited) for waited in delays.values()) < len(names)


Fate = str
"""``ok``, ``conflict``, ``lost`` (not written, not known), ``unheard`` (written, not known)."""


class Fickle(MemoryBackend):
    """Each transaction has its fate; after those, all is well."""

    def __init__(self, fates: Sequence[Fate] = ()) -> None:
        super().__init__()
        self.fates = list(fates)
        self.calls = 0

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        self.calls += 1
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate == "conflict":
            return False
        happened = fate != "lost" and super().transact(checks, puts)
        if fate in ("lost", "unheard"):
            raise UnknownOutcome("no answer in time", withdrawn=False)
        return happened


@pytest.mark.parametrize("dice", [1.0, 0.5, 0.0])
def test_delays_are_random_and_grow_up_to_a_limit(dice: float) -> None:
    backend = Fickle(["conflict"] * 12)
    delays: list[float] = []
    coordinator = Coordinator(backend, dice=lambda: dice, sleep=delays.append)
    coordinator.apply(GROUP, _join(_stream(backend), "A"))
    assert delays == [dice * min(DELAY_S * 2**n, DELAY_S_MAX) for n in range(1, 13)]
    assert delays == sorted(delays)
    assert max(delays) <= DELAY_S_MAX


def test_too_many_lost_races_raise_contended() -> None:
    backend = Fickle(["conflict"] * 1000)
    stream = _stream(backend)
    with pytest.raises(Contended, match=f"changed by others {ATTEMPTS_MAX} times") as caught:
        _coordinator(backend).apply(GROUP, _join(stream, "A"))
    assert caught.value.group == GROUP
    assert backend.calls == ATTEMPTS_MAX
    assert backend.get(store_keys.group_key(GROUP)) is None


@pytest.mark.parametrize("fate", ["lost", "unheard"])
@pytest.mark.parametrize(
    "event",
    [
        Leave("A", 1),
        Evict("A", 1, "dead"),
        Stop(at(0), 1),
        ShardsChanged(StreamFacts("orders", 1, ())),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_with_a_lost_answer_is_applied_once(fate: Fate, event: Event) -> None:
    backend = Fickle()
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.fates = [fate]
    assert coordinator.apply(GROUP, event) == Settled(2)
    group = coordinator.load(GROUP)
    assert group.version == 2
    assert _epoch_keys(backend) == _epochs_of(group)
    assert backend.calls == (2 if fate == "unheard" else 3)


@pytest.mark.parametrize("fate", ["lost", "unheard"])
def test_a_join_with_a_lost_answer_is_applied_once(fate: Fate) -> None:
    backend = Fickle([fate])
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    assert _granted(coordinator.apply(GROUP, _join(stream, "A"))) == dict.fromkeys(range(4), 1)
    assert coordinator.load(GROUP).version == 1


@pytest.mark.parametrize("fate", ["lost", "unheard"])
def test_a_heartbeat_with_a_lost_answer_releases_once(fate: Fate) -> None:
    backend = Fickle()
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, _join(stream, "B"))
    backend.fates = [fate]
    reply = coordinator.apply(GROUP, _beat(coordinator.load(GROUP), "A"))
    assert _granted(reply) == {0: 1}
    shards = coordinator.load(GROUP).shards
    assert {s.index: (own.owner, own.epoch) for s, own in shards.items()} == {
        0: ("A", 1),
        1: ("B", 2),
    }


@pytest.mark.parametrize(
    "event",
    [
        Fence(at(0), 1),
        ForceCheckpoint(at(0), 1, 3, finished=False),
        Configure(1, order=True, timeout_s=3.0),
        Delete(1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_refusal_after_an_unknown_outcome_is_an_unknown_outcome(event: Event) -> None:
    backend = Fickle()
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome) as caught:
        coordinator.apply(GROUP, event)
    assert not caught.value.withdrawn
    assert _epoch_keys(backend) == _epochs_of(coordinator.load(GROUP))


@pytest.mark.parametrize(
    "event",
    [Fence(at(0), 1), Configure(1, order=True, timeout_s=3.0), Delete(1)],
    ids=lambda event: type(event).__name__,
)
def test_an_event_whose_write_was_lost_is_applied(event: Event) -> None:
    backend = Fickle()
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.fates = ["lost"]
    assert coordinator.apply(GROUP, event) == Settled(2)


def _meanwhile(backend: LogAndStore, happens: Callable[[], object]) -> Coordinator:
    """One whose every wait is somebody else's chance."""

    def sleep(_: float) -> None:
        happens()

    return Coordinator(backend, dice=lambda: 0.0, sleep=sleep)


def test_a_delete_with_a_lost_answer_spares_the_next_group() -> None:
    backend = Fickle()
    stream = _stream(backend)
    theirs = _coordinator(backend)
    theirs.apply(GROUP, _join(stream, "A"))
    ours = _meanwhile(backend, lambda: theirs.apply(GROUP, _join(stream, "B")))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome, match="is another one by now") as caught:
        ours.apply(GROUP, Delete(theirs.load(GROUP).born))
    assert not caught.value.withdrawn
    group = theirs.load(GROUP)
    assert (group.exists, set(group.members), group.version, group.born) == (True, {"B"}, 4, 4)
    assert _epoch_keys(backend) == _epochs_of(group) != {}
    before = backend.changes()
    assert theirs.apply(GROUP, Delete(1)) == Denied("late", "")
    assert backend.changes() == before


def test_a_lost_delete_spares_the_next_group() -> None:
    backend = Fickle()
    stream = _stream(backend)
    theirs = _coordinator(backend)
    theirs.apply(GROUP, _join(stream, "A"))

    def anew() -> None:
        theirs.apply(GROUP, Delete(1))
        theirs.apply(GROUP, _join(stream, "B"))

    backend.fates = ["lost"]
    with pytest.raises(UnknownOutcome):
        _meanwhile(backend, anew).apply(GROUP, Delete(1))
    assert set(theirs.load(GROUP).members) == {"B"}


def test_a_configuration_with_a_lost_answer_does_not_undo_a_newer_one() -> None:
    backend = Fickle()
    theirs = _coordinator(backend)
    theirs.apply(GROUP, _join(_stream(backend), "A"))
    ours = _meanwhile(backend, lambda: theirs.apply(GROUP, Configure(2, timeout_s=7.0)))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome, match="was configured meanwhile"):
        ours.apply(GROUP, Configure(1, order=True, timeout_s=3.0))
    group = theirs.load(GROUP)
    assert (group.order, group.timeout_s, group.configured) == (True, 7.0, 3)


# The end of a group, and a new beginning


def _left_behind(backend: LogAndStore, group: str) -> list[bytes]:
    return [
        key
        for kind in (b"e", b"c", b"k", b"s")
        for key, _ in backend.scan(kind)
        if store_keys.is_of(key, group)
    ]


def _worked(backend: LogAndStore, stream: StreamInfo, group: str, shards: int) -> None:
    """A group with a checkpoint, state and a story for each shard."""
    _coordinator(backend).apply(group, _join(stream, "A"))
    for shard in range(shards):
        backend.commit(
            Commit(
                grant=Grant(group, stream, shard, store_keys.epoch_token(1)),
                done=Slice(stream.name, shard, 0, 5),
                state={b"ann": b"1"},
                story=b"told",
            )
        )


def test_a_deleted_group_refuses_its_members_and_their_commits(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    beat = _beat(coordinator.load(GROUP), "A")
    coordinator.apply(GROUP, Delete(1))
    assert coordinator.apply(GROUP, beat) == Denied("no group", "")
    with pytest.raises(Fenced):
        backend.commit(_commit(_grant(stream, 0, 1), 0, 5))


def test_keys_of_a_deleted_group_are_swept_before_a_new_one_begins(backend: LogAndStore) -> None:
    stream = _stream(backend)
    _worked(backend, stream, GROUP, 4)
    _worked(backend, stream, "other", 4)
    others = _left_behind(backend, "other")
    coordinator = _coordinator(backend)
    assert len(_left_behind(backend, GROUP)) == len(others) == 16
    coordinator.apply(GROUP, Delete(1))
    assert len(_left_behind(backend, GROUP)) == 12
    mine = _granted(coordinator.apply(GROUP, _join(stream, "A", 2)))
    assert mine == dict.fromkeys(range(4), 2)
    assert _left_behind(backend, GROUP) == sorted(_epoch_keys_of(stream, GROUP))
    assert _left_behind(backend, "other") == others
    assert coordinator.load(GROUP).version == 4
    assert _checkpoint(backend, stream, 0) is None


def _epoch_keys_of(stream: StreamInfo, group: str) -> list[bytes]:
    return [store_keys.epoch_key(group, stream.id, shard.index) for shard in stream.shards]


def test_every_call_sweeps_keys_of_a_deleted_group(backend: LogAndStore) -> None:
    stream = _stream(backend)
    _worked(backend, stream, GROUP, 4)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, Delete(1))
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert _left_behind(backend, GROUP) == []
    assert coordinator.load(GROUP) == Group(GROUP, version=3, gone={"A": 1}, floor=1)
    before = backend.changes()
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert backend.changes() == before


def test_a_sweep_larger_than_one_transaction_takes_several() -> None:
    backend = Fickle()
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    many = {store_keys.state_key(GROUP, stream.id, 0, b"%d" % n): b"" for n in range(2_500)}
    backend.transact({}, many)
    coordinator.apply(GROUP, Delete(1))
    backend.calls = 0
    coordinator.apply(GROUP, Leave("A", 1))
    assert backend.calls == 3
    assert _left_behind(backend, GROUP) == []


@pytest.mark.parametrize("fate", ["conflict", "lost", "unheard"])
def test_a_disturbed_sweep_is_repeated(fate: Fate) -> None:
    backend = Fickle()
    stream = _stream(backend)
    _worked(backend, stream, GROUP, 4)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, Delete(1))
    backend.fates = [fate]
    mine = _granted(coordinator.apply(GROUP, _join(stream, "A", 2)))
    assert mine == dict.fromkeys(range(4), 2)
    assert _left_behind(backend, GROUP) == sorted(_epoch_keys_of(stream, GROUP))
    assert coordinator.load(GROUP).version == 4


def test_a_sweep_spares_a_group_created_again_meanwhile() -> None:
    backend = Before()
    stream = _stream(backend)
    _worked(backend, stream, GROUP, 4)
    ours, theirs = _coordinator(backend), _coordinator(backend)
    ours.apply(GROUP, Delete(1))
    backend.next.append(lambda: theirs.apply(GROUP, _join(stream, "B", 2)))
    ours.apply(GROUP, Leave("A", 1))
    group = ours.load(GROUP)
    assert set(group.members) == {"B"}
    assert _epoch_keys(backend) == _epochs_of(group)


def test_a_swept_event_from_outside_changes_nothing(backend: LogAndStore) -> None:
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(_stream(backend), "A"))
    before = backend.changes()
    assert coordinator.apply(GROUP, Swept(1)) == Settled(1)
    assert backend.changes() == before


# What cannot be read


def test_a_group_of_a_newer_version_is_refused_and_others_go_on(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    newer = b"\2" + encoded(coordinator.load(GROUP))[1:]
    backend.transact({}, {store_keys.group_key(GROUP): newer})
    before = list(backend.scan(b""))
    for call in (coordinator.load, lambda name: coordinator.apply(name, _join(stream, "B"))):
        with pytest.raises(NewerFormat):
            call(GROUP)
    assert list(backend.scan(b"")) == before
    assert _granted(coordinator.apply("other", _join(stream, "A"))) == dict.fromkeys(range(4), 1)


def test_a_damaged_group_is_refused_and_others_go_on(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    backend.transact({}, {store_keys.group_key(GROUP): encoded(coordinator.load(GROUP))[:-1]})
    before = list(backend.scan(b""))
    with pytest.raises(BadStored):
        coordinator.apply(GROUP, _join(stream, "B"))
    assert list(backend.scan(b"")) == before
    assert _granted(coordinator.apply("other", _join(stream, "A"))) == dict.fromkeys(range(4), 1)


# Allocators


def _all_to_the_last(
    members: Sequence[Candidate], shards: Sequence[ShardId], _: object
) -> Mapping[str, Sequence[ShardId]]:
    return {members[-1].name: shards}


OWN = Allocator("own", "3", deal=_all_to_the_last)


def test_a_custom_allocator_deals_where_it_is_known(backend: LogAndStore) -> None:
    stream = _stream(backend)
    knowing = _coordinator(backend, OWN)
    for name in "AB":
        knowing.apply(GROUP, Join(name, 1, (_facts(stream),), OWN))
    knowing.apply(GROUP, _beat(knowing.load(GROUP), "A"))
    assert knowing.load(GROUP).allocator is OWN
    assert {s.owner for s in knowing.load(GROUP).shards.values()} == {"B"}


def test_without_the_allocator_the_shards_are_dealt_later(backend: LogAndStore) -> None:
    stream = _stream(backend)
    knowing, other = _coordinator(backend, OWN), _coordinator(backend)
    for name in "AB":
        knowing.apply(GROUP, Join(name, 1, (_facts(stream),), OWN))
    knowing.apply(GROUP, _beat(knowing.load(GROUP), "A"))
    other.apply(GROUP, Evict("B", 1, "dead"))
    group = other.load(GROUP)
    assert (group.pending, group.allocator.deal) == (True, None)
    assert {s.owner for s in group.shards.values()} == {None}
    assert _epoch_keys(backend) == {}
    assert _granted(other.apply(GROUP, _beat(group, "A"))) == {}
    assert _granted(knowing.apply(GROUP, _beat(group, "A"))) == dict.fromkeys(range(4), 3)
    assert not other.load(GROUP).pending


def test_a_shipped_allocator_of_another_version_is_unknown(backend: LogAndStore) -> None:
    later = Allocator("balanced", "2", deal=balanced.deal)
    stream = _stream(backend)
    _coordinator(backend, later).apply(GROUP, Join("A", 1, (_facts(stream),), later))
    assert _coordinator(backend).load(GROUP).allocator.deal is None
    assert _coordinator(backend, later).load(GROUP).allocator is later


def test_a_shipped_allocator_is_known_everywhere(backend: LogAndStore) -> None:
    stream = _stream(backend)
    _coordinator(backend).apply(GROUP, _join(stream, "A"))
    assert _coordinator(backend).load(GROUP).allocator is balanced


def test_loading_a_group_by_a_bad_name_is_refused(backend: LogAndStore) -> None:
    with pytest.raises(BadName, match="bad name"):
        Coordinator(backend).load("a b")
