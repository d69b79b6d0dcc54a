"""Stopped shards: their attempts, and how an operator resumes or skips."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.errors import (
    BadSetting,
    Contended,
    Fenced,
    GroupInUse,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownShard,
)
from headrace.core.groups.events import (
    Leave,
    Release,
    Resume,
    ShardsChanged,
    Stop,
)
from headrace.core.model import RecordId, ShardId
from headrace.groups.admin import Groups
from headrace.groups.positions import Seek
from tests.core.groups.building import at
from tests.groups.building import (
    BEGIN_MS,
    FAILED,
    FRESH,
    GROUP,
    NOW_MS,
    STREAM,
    Meanwhile,
    attempts_in,
    checkpoints_of,
    commit_to,
    coordinator_on,
    groups_in,
    idle_group,
    join_event,
    new_stream,
    note_attempts,
    shown_shards,
    stopped_group,
    stream_facts,
)


def standing_of(groups: Groups, index: int = 0) -> tuple[bool, str | None, int]:
    standing = groups.load(GROUP).shards[at(index)]
    return standing.stopped, standing.owner, standing.epoch


def test_attempts_are_listed_for_shards_that_have_some(backend: LogAndStore) -> None:
    stream, other = new_stream(backend, 3), new_stream(backend, 1, name="bills")
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, ShardsChanged(stream_facts(other, seen=1)))
    note = Attempts(3, failed=2, at_ms=BEGIN_MS, reason="boom")
    note_attempts(backend, stream, 1, note)
    groups = groups_in(backend)
    group = groups.load(GROUP)
    assert groups.attempts(group) == {at(1): note}
    assert groups.attempts(group, "bills") == {}
    with pytest.raises(BadSetting, match="does not read 'x'"):
        groups.attempts(group, "x")
    backend.delete_stream(STREAM)
    assert groups.attempts(group) == {}


def test_a_resumed_shard_has_all_its_retries_and_others_stay_stopped(
    backend: LogAndStore,
) -> None:
    stopped_group(backend, 3, stopped=(0, 2))
    groups = groups_in(backend)
    assert groups.resume(GROUP, at(2)) == [at(2)]
    assert standing_of(groups, 2) == (False, "A", 3)
    assert standing_of(groups, 0) == (True, None, 1)
    assert attempts_in(groups) == {0: FAILED, 2: FRESH}
    assert checkpoints_of(groups) == {0: 4, 1: 4, 2: 4}
    assert groups.load(GROUP).shards[at(1)].epoch == 1


def test_all_stopped_shards_are_resumed_together(backend: LogAndStore) -> None:
    stopped_group(backend, 3, stopped=(0, 2))
    groups = groups_in(backend)
    assert groups.resume(GROUP) == [at(0), at(2)]
    assert [standing_of(groups, index) for index in range(3)] == [
        (False, "A", 3),
        (False, "A", 1),
        (False, "A", 3),
    ]
    assert attempts_in(groups) == {0: FRESH, 2: FRESH}


def test_a_shard_stopped_without_attempts_is_resumed_too(backend: LogAndStore) -> None:
    stream = new_stream(backend, 1)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, Stop(at(0), 1))
    coordinator.apply(GROUP, Leave("A", 1))
    groups = groups_in(backend)
    assert groups.resume(GROUP, at(0)) == [at(0)]
    assert standing_of(groups) == (False, None, 2)
    assert attempts_in(groups) == {}


def test_resuming_a_shard_that_is_not_stopped_is_refused(backend: LogAndStore) -> None:
    stopped_group(backend)
    groups = groups_in(backend)
    before = backend.changes()
    with pytest.raises(
        BadSetting, match=r"orders:1 is not stopped in group 'billing'.*; stopped are orders:0"
    ):
        groups.resume(GROUP, at(1))
    with pytest.raises(BadSetting, match="does not read 'x'"):
        groups.resume(GROUP, ShardId("x", 0))
    with pytest.raises(UnknownShard):
        groups.resume(GROUP, at(9))
    with pytest.raises(UnknownGroup):
        groups.resume("other")
    assert backend.changes() == before
    groups.resume(GROUP)
    with pytest.raises(BadSetting, match="no shard of group 'billing' is stopped"):
        groups.resume(GROUP)
    with pytest.raises(BadSetting, match="orders:0 is not stopped in group 'billing': nothing"):
        groups.resume(GROUP, at(0))


def test_an_owner_that_has_not_released_cannot_overwrite_reset_attempts() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend, released=False)
    groups = groups_in(backend)
    stored = []

    def late() -> None:
        try:
            note_attempts(backend, stream, 0, FAILED)
        except Fenced:
            stored.append(False)
        else:
            stored.append(True)

    backend.happens, backend.times = late, 99
    assert groups.resume(GROUP) == [at(0)]
    assert attempts_in(groups)[0] == FRESH
    assert stored == [True, False, False, False, False]
    assert standing_of(groups)[:2] == (False, "A")


def test_when_two_resume_the_same_shard_both_succeed() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend)
    groups, others = groups_in(backend), groups_in(backend)
    note = Attempts(4, failed=1, working=True, at_ms=NOW_MS, reason="again")

    def faster() -> None:
        others.resume(GROUP)
        note_attempts(backend, stream, 0, note, epoch=3)

    backend.happens = faster
    assert groups.resume(GROUP) == [at(0)]
    assert standing_of(groups) == (False, "A", 3)
    assert attempts_in(groups) == {0: note}
    commit_to(backend, stream, 0, 5, epoch=3)


def test_attempts_are_not_reset_under_a_new_owner() -> None:
    backend = Meanwhile()
    stopped_group(backend)
    groups = groups_in(backend)
    backend.happens = lambda: coordinator_on(backend).apply(GROUP, Resume(at(0), 1))
    assert groups.resume(GROUP) == [at(0)]
    assert standing_of(groups) == (False, "A", 3)
    assert attempts_in(groups) == {0: FAILED}


def test_a_shard_resumed_between_reset_and_resume_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend)
    groups, others = groups_in(backend), groups_in(backend)
    backend.when(store_keys.group_key(GROUP), lambda: others.resume(GROUP))
    assert groups.resume(GROUP) == [at(0)]
    assert standing_of(groups) == (False, "A", 3)
    commit_to(backend, stream, 0, 5, epoch=3)


def test_an_interrupted_resume_can_be_repeated() -> None:
    backend = Meanwhile()
    stopped_group(backend)
    groups = groups_in(backend)

    def dies() -> None:
        raise KeyboardInterrupt

    backend.when(store_keys.group_key(GROUP), dies)
    with pytest.raises(KeyboardInterrupt):
        groups.resume(GROUP)
    assert standing_of(groups) == (True, None, 1)
    assert attempts_in(groups) == {0: FRESH}
    assert shown_shards(groups)[0]["attempts"]["reason"] == "boom"
    assert groups.resume(GROUP) == [at(0)]
    assert standing_of(groups) == (False, "A", 3)


class Stubborn(MemoryBackend):
    """A backend on which a lane writes the attempts right before each reset."""

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        for key in puts:
            if key[:1] == b"a":
                super().transact({}, {key: FAILED.encoded()})
        return super().transact(checks, puts)


def test_without_a_reset_of_the_attempts_a_shard_is_not_resumed() -> None:
    backend = Stubborn()
    stopped_group(backend)
    with pytest.raises(Contended, match=GROUP):
        groups_in(backend).resume(GROUP)
    assert standing_of(groups_in(backend)) == (True, None, 1)


def test_skipping_the_record_that_stopped_a_shard_resumes_it(backend: LogAndStore) -> None:
    stream = stopped_group(backend)
    groups = groups_in(backend)
    skipped = groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert skipped == Seek(at(0), 4, 5, 1, 0, False, (), resumes=True)
    assert checkpoints_of(groups) == {0: 5, 1: 4}
    assert standing_of(groups) == (False, "A", 4)
    assert attempts_in(groups) == {0: FRESH}
    commit_to(backend, stream, 0, 9, epoch=4)
    commit_to(backend, stream, 1, 9)


def test_several_records_of_a_stopped_shard_can_be_skipped(backend: LogAndStore) -> None:
    stopped_group(backend)
    groups = groups_in(backend)
    assert groups.skip(GROUP, at(0), 3).resumes
    assert checkpoints_of(groups) == {0: 7, 1: 4}
    assert standing_of(groups)[:2] == (False, "A")


@pytest.mark.parametrize("offset", [0, 3, 5, 10])
def test_only_the_next_record_is_skipped_by_its_id(backend: LogAndStore, offset: int) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    before = backend.changes()
    with pytest.raises(
        BadSetting,
        match=rf"orders:1\+{offset} is not what group 'billing' reads next there, "
        r"that is orders:1\+4: nothing was skipped",
    ):
        groups.skip(GROUP, RecordId(STREAM, 1, offset))
    assert backend.changes() == before


def test_the_next_record_can_be_skipped_by_its_id(backend: LogAndStore) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    assert groups.skip(GROUP, RecordId(STREAM, 1, 4)) == Seek(at(1), 4, 5, 1, 0, False, ())
    assert checkpoints_of(groups) == {0: 4, 1: 5}
    with pytest.raises(BadSetting, match="is one record, not 2"):
        groups.skip(GROUP, RecordId(STREAM, 1, 5), 2)
    with pytest.raises(UnknownShard):
        groups.skip(GROUP, RecordId(STREAM, 7, 0))
    groups.seek(GROUP, "latest")
    with pytest.raises(OffsetOutOfRange, match="beyond the end"):
        groups.skip(GROUP, RecordId(STREAM, 1, 10))


def test_records_of_a_held_shard_are_skipped_by_force_only(
    backend: LogAndStore,
) -> None:
    stopped_group(backend, released=False)
    groups = groups_in(backend)
    before = backend.changes()
    for index in (0, 1):  # shard 0 is stopped and not released yet, shard 1 is held
        with pytest.raises(GroupInUse):
            groups.skip(GROUP, RecordId(STREAM, index, 4))
    assert backend.changes() == before
    groups.skip(GROUP, RecordId(STREAM, 0, 4), force=True)
    assert checkpoints_of(groups) == {0: 5, 1: 4}
    assert standing_of(groups)[:2] == (False, "A")
    assert attempts_in(groups) == {0: FRESH}


def test_a_shard_resumed_during_a_skip_is_not_moved_back() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend)
    groups, others = groups_in(backend), groups_in(backend)

    def goes_on() -> None:
        others.resume(GROUP)
        commit_to(backend, stream, 0, 9, epoch=3)

    backend.happens = goes_on
    with pytest.raises(BadSetting, match="orders:0 was moved to 9 meanwhile: nothing was skipped"):
        groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert checkpoints_of(groups) == {0: 9, 1: 4}
    assert standing_of(groups) == (False, "A", 3)


def test_a_member_granted_the_shard_during_a_skip_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend)
    groups, others = groups_in(backend), groups_in(backend)
    backend.happens = lambda: others.resume(GROUP)
    with pytest.raises(GroupInUse):
        groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert standing_of(groups) == (False, "A", 3)
    commit_to(backend, stream, 0, 5, epoch=3)


def test_when_two_skip_the_same_record_it_is_skipped_once() -> None:
    backend = Meanwhile()
    stream = stopped_group(backend)
    coordinator = coordinator_on(backend)
    groups, others = groups_in(backend), groups_in(backend)

    def faster() -> None:
        others.skip(GROUP, RecordId(STREAM, 0, 4))
        note_attempts(backend, stream, 0, FAILED._replace(offset=5), epoch=4)
        coordinator.apply(GROUP, Stop(at(0), 4))
        coordinator.apply(GROUP, Release("A", 1, {at(0): 4}))

    backend.happens = faster
    with pytest.raises(BadSetting, match="was moved to 5 meanwhile: nothing was skipped"):
        groups.skip(GROUP, at(0))
    assert checkpoints_of(groups) == {0: 5, 1: 4}
    assert standing_of(groups) == (True, None, 4)


def test_a_late_stop_does_not_stop_a_resumed_shard(backend: LogAndStore) -> None:
    stopped_group(backend)
    groups = groups_in(backend)
    groups.resume(GROUP)
    coordinator_on(backend).apply(GROUP, Stop(at(0), 1))
    coordinator_on(backend).apply(GROUP, Resume(at(0), 1))
    assert standing_of(groups) == (False, "A", 3)
