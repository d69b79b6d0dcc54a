"""A group in use: live members are changed by force only, dead members are evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core.errors import (
    Fenced,
    GroupInUse,
)
from headrace.core.groups.events import (
    Evict,
)
from headrace.core.ports import Sign
from tests.core.groups.building import at
from tests.groups.building import (
    GROUP,
    Meanwhile,
    checkpoints_of,
    commit_to,
    coordinator_on,
    granted_shards,
    groups_in,
    heartbeat_of,
    idle_group,
    join_event,
    new_stream,
)


@pytest.mark.parametrize("action", ["seek", "skip", "delete"])
def test_a_group_with_members_is_changed_by_force_only(backend: LogAndStore, action: str) -> None:
    stream = new_stream(backend)
    coordinator = coordinator_on(backend)
    for number in range(7):
        coordinator.apply(GROUP, join_event(stream, f"m{number}"))
    backend.liveness.beat(GROUP, "m1", 1, 5)
    groups = groups_in(backend)

    def act(force: bool) -> None:
        match action:
            case "seek":
                groups.seek(GROUP, 3, force=force)
            case "skip":
                groups.skip(GROUP, at(0), force=force)
            case _:
                groups.delete(GROUP, force=force)

    before = backend.changes()
    with pytest.raises(GroupInUse, match=r"m0, m1, m2, m3, m4 and 2 more; .*--force") as caught:
        act(force=False)
    assert caught.value.members == [f"m{number}" for number in range(7)]
    assert backend.changes() == before
    act(force=True)
    assert backend.changes() != before


def test_a_forced_seek_fences_the_owner_which_goes_on_from_there(
    backend: LogAndStore,
) -> None:
    stream = new_stream(backend, 2)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    for shard in (0, 1):
        commit_to(backend, stream, shard, 5)
    groups = groups_in(backend)
    groups.seek(GROUP, 2, shards=[0], force=True)
    with pytest.raises(Fenced):
        commit_to(backend, stream, 0, 9)
    commit_to(backend, stream, 1, 9)
    shards = granted_shards(coordinator.apply(GROUP, heartbeat_of(groups.load(GROUP), "A")))
    assert shards == {at(0): 2, at(1): 1}
    commit_to(backend, stream, 0, 3, epoch=2)
    assert checkpoints_of(groups) == {0: 3, 1: 9}


def test_a_forced_seek_to_the_current_checkpoint_fences_too(backend: LogAndStore) -> None:
    stream = new_stream(backend, 1)
    coordinator_on(backend).apply(GROUP, join_event(stream, "A"))
    commit_to(backend, stream, 0, 5)
    assert len(groups_in(backend).seek(GROUP, 5, force=True)) == 1
    with pytest.raises(Fenced):
        commit_to(backend, stream, 0, 9)


class Dead:
    """Signs of life that call some members dead. The member ``risen`` is alive from the second look
    on."""

    def __init__(self, *names: str) -> None:
        self.dead = set(names)
        self.asked: list[str] = []
        self.left: list[str] = []
        self.risen = ""

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        self.asked.append(member)
        if member == self.risen and self.asked.count(member) > 1:
            return Sign(True, 2, 0.0)
        return Sign(member not in self.dead, 1, 60.0)

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None: ...

    def leave(self, group: str, member: str, incarnation: int) -> None:
        self.left.append(member)


def test_dead_members_are_evicted_and_do_not_hinder_a_seek() -> None:
    backend = MemoryBackend()
    stream = new_stream(backend, 2)
    coordinator = coordinator_on(backend)
    for name in "AB":
        coordinator.apply(GROUP, join_event(stream, name))
    signs: Any = Dead("A", "B")
    backend.liveness = signs
    groups = groups_in(backend)
    groups.seek(GROUP, 3)
    assert groups.load(GROUP).members == {}
    assert [type(e.event) for e in groups.history(GROUP)[2:4]] == [Evict, Evict]
    assert signs.left == ["A", "B"]
    assert checkpoints_of(groups) == {0: 3, 1: 3}


def test_a_member_that_turns_out_alive_is_not_evicted() -> None:
    backend = MemoryBackend()
    stream = new_stream(backend, 2)
    coordinator_on(backend).apply(GROUP, join_event(stream, "A"))
    signs: Any = Dead("A")
    signs.risen = "A"
    backend.liveness = signs
    groups = groups_in(backend)
    with pytest.raises(GroupInUse):
        groups.seek(GROUP, 3)
    assert set(groups.load(GROUP).members) == {"A"}
    assert signs.left == []


def test_a_dead_process_is_noticed_by_its_lost_lock(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path / "hub")
    stream = new_stream(backend, 2)
    backend.liveness.beat(GROUP, "A", 1, 1)
    coordinator_on(backend).apply(GROUP, join_event(stream, "A"))
    groups = groups_in(backend)
    with pytest.raises(GroupInUse):
        groups.seek(GROUP, 3)
    backend.liveness.let_go()  # as the kernel does for a killed process
    groups.seek(GROUP, 3)
    assert groups.load(GROUP).members == {}
    backend.close()


def test_a_member_that_joins_during_a_seek_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = idle_group(backend, 1)
    groups = groups_in(backend)
    backend.happens = lambda: coordinator_on(backend).apply(GROUP, join_event(stream, "B", 2))
    with pytest.raises(GroupInUse, match="B"):
        groups.seek(GROUP, 1)
    assert checkpoints_of(groups) == {0: 4}
    assert groups.load(GROUP).shards[at(0)].owner == "B"
