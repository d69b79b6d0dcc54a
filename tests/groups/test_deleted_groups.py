"""A deleted group: its keys are swept before a group of the same name begins."""

from __future__ import annotations

import pytest

from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import Fenced
from headrace.core.groups.events import (
    Delete,
    Denied,
    Leave,
    Settled,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.model import Slice, StreamInfo
from headrace.core.ports import Commit, Grant
from tests.groups.coordinating import (
    GROUP,
    Fate,
    Interrupted,
    LosingAnswers,
    beat_of,
    commit_of,
    eager_coordinator,
    empty_stream,
    expected_epoch_keys,
    grant_of,
    granted_epochs,
    join_of,
    stored_checkpoint,
    stored_epoch_keys,
)


def _left_behind(backend: LogAndStore, group: str) -> list[bytes]:
    return [
        key
        for kind in (b"e", b"c", b"k", b"s")
        for key, _ in backend.scan(kind)
        if store_keys.is_of(key, group)
    ]


def _worked(backend: LogAndStore, stream: StreamInfo, group: str, shards: int) -> None:
    """A group with a checkpoint, state and a story for each shard."""
    eager_coordinator(backend).apply(group, join_of(stream, "A"))
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
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    beat = beat_of(coordinator.load(GROUP), "A")
    coordinator.apply(GROUP, Delete(1))
    assert coordinator.apply(GROUP, beat) == Denied("no group", "")
    with pytest.raises(Fenced):
        backend.commit(commit_of(grant_of(stream, 0, 1), 0, 5))


def test_keys_of_a_deleted_group_are_swept_before_a_new_one_begins(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    _worked(backend, stream, GROUP, 4)
    _worked(backend, stream, "other", 4)
    others = _left_behind(backend, "other")
    coordinator = eager_coordinator(backend)
    assert len(_left_behind(backend, GROUP)) == len(others) == 16
    coordinator.apply(GROUP, Delete(1))
    assert len(_left_behind(backend, GROUP)) == 12
    mine = granted_epochs(coordinator.apply(GROUP, join_of(stream, "A", 2)))
    assert mine == dict.fromkeys(range(4), 2)
    assert _left_behind(backend, GROUP) == sorted(_epoch_keys_of(stream, GROUP))
    assert _left_behind(backend, "other") == others
    assert coordinator.load(GROUP).version == 4
    assert stored_checkpoint(backend, stream, 0) is None


def _epoch_keys_of(stream: StreamInfo, group: str) -> list[bytes]:
    return [store_keys.epoch_key(group, stream.id, shard.index) for shard in stream.shards]


def test_every_call_sweeps_keys_of_a_deleted_group(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    _worked(backend, stream, GROUP, 4)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, Delete(1))
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert _left_behind(backend, GROUP) == []
    assert coordinator.load(GROUP) == Group(GROUP, version=3, gone={"A": 1}, floor=1)
    before = backend.changes()
    assert coordinator.apply(GROUP, Leave("A", 1)) == Denied("no group", "")
    assert backend.changes() == before


def test_a_sweep_larger_than_one_transaction_takes_several() -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend, 1)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    many = {store_keys.state_key(GROUP, stream.id, 0, b"%d" % n): b"" for n in range(2_500)}
    backend.transact({}, many)
    coordinator.apply(GROUP, Delete(1))
    backend.calls = 0
    coordinator.apply(GROUP, Leave("A", 1))
    assert backend.calls == 3
    assert _left_behind(backend, GROUP) == []


@pytest.mark.parametrize("fate", ["conflict", "lost", "unheard"])
def test_a_disturbed_sweep_is_repeated(fate: Fate) -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    _worked(backend, stream, GROUP, 4)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, Delete(1))
    backend.fates = [fate]
    mine = granted_epochs(coordinator.apply(GROUP, join_of(stream, "A", 2)))
    assert mine == dict.fromkeys(range(4), 2)
    assert _left_behind(backend, GROUP) == sorted(_epoch_keys_of(stream, GROUP))
    assert coordinator.load(GROUP).version == 4


def test_a_sweep_spares_a_group_created_again_meanwhile() -> None:
    backend = Interrupted()
    stream = empty_stream(backend)
    _worked(backend, stream, GROUP, 4)
    ours, theirs = eager_coordinator(backend), eager_coordinator(backend)
    ours.apply(GROUP, Delete(1))
    backend.next.append(lambda: theirs.apply(GROUP, join_of(stream, "B", 2)))
    ours.apply(GROUP, Leave("A", 1))
    group = ours.load(GROUP)
    assert set(group.members) == {"B"}
    assert stored_epoch_keys(backend) == expected_epoch_keys(group)


def test_a_swept_event_from_outside_changes_nothing(backend: LogAndStore) -> None:
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(empty_stream(backend), "A"))
    before = backend.changes()
    assert coordinator.apply(GROUP, Swept(1)) == Settled(1)
    assert backend.changes() == before
