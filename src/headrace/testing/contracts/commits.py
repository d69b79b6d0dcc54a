"""Promises about the commit: all effects of a slice and its checkpoint are stored, or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from time import monotonic
from typing import Any, NamedTuple

import pytest

from headrace.core.capabilities import Capability
from headrace.core.errors import BadRecord, BadSetting, Fenced, UnknownStream
from headrace.core.groups.allocators import balanced
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import Fence, Join, ShardFacts, StreamFacts
from headrace.core.model import ShardId, Slice, StreamInfo
from headrace.core.ports import Append, Backend, Commit, Grant, GroupStore, Log, Place
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX, Row
from headrace.core.records.to_arrow import arrow_of
from headrace.core.transaction import VALUE_BYTES_MAX
from headrace.groups.admin import Groups
from headrace.groups.coordinator import Coordinator
from headrace.groups.stored import ShardState, attempts_of, checkpoint_of, granted, story_rows
from headrace.testing.contracts.backend_under_test import (
    WAIT_S,
    BackendUnderTest,
    Opening,
    appended,
    lacks,
    made,
    read_rows,
    some_rows,
)

GROUP = "billing"
_NEEDED: tuple[Capability, ...] = ("durable", "store", "commit")


class Scene(NamedTuple):
    """An input stream, a stream for outputs and one for dead letters, and a valid grant."""

    log: Log
    store: GroupStore
    orders: StreamInfo
    invoices: StreamInfo
    dead: StreamInfo
    grant: Grant

    def commit(self, start: int, end: int, *, grant: Grant | None = None) -> Commit:
        """A commit with outputs, state, a dead letter, attempts and a story."""
        return Commit(
            grant=grant or self.grant,
            done=Slice(self.orders.name, 1, start, end),
            outputs=[
                Append(self.invoices, 1, Batch.of_rows(some_rows(2))),
                Append(self.invoices, 0, Batch.of_arrow(arrow_of(some_rows(20)))),
            ],
            state={b"ann": b"1", b"": b"", b"long" * 999: b"x"},
            dead_letters=[Append(self.dead, 0, Batch.of_rows([Row(b"k", b"bad", 1)]))],
            attempts=b"tried once",
            story=b"what happened",
        )

    def everything(self) -> object:
        """All records and stored values: everything that a commit can change."""
        streams = [(info, shard.index) for info in self.log.streams() for shard in info.shards]
        records = [read_rows(self.log, info, shard) for info, shard in streams]
        return records, list(self.store.scan(b""))

    def checkpoint(self) -> Checkpoint | None:
        return checkpoint_of(self.store, GROUP, self.orders.id, 1)

    def state(self) -> dict[bytes, bytes]:
        return dict(ShardState(self.store, GROUP, self.orders.id, 1).entries())

    def attempts(self, group: str = GROUP, shard: int = 1) -> bytes | None:
        found = attempts_of(self.store, group, self.orders.id, shard)
        return found.value if found else None

    def granted(self, group: str, shard: int) -> Grant:
        """The grant of the member that joined."""
        standing = Coordinator(self.store).load(group).shards[ShardId(self.orders.name, shard)]
        return granted(group, self.orders, shard, standing.epoch)

    def tried(self, attempts: bytes | None, at: int, grant: Grant | None = None) -> Commit:
        """A commit that finishes no record and stores attempts for the next one."""
        done = Slice(self.orders.name, 1, at, at)
        return Commit(grant=grant or self.grant, done=done, attempts=attempts)

    def stories(self) -> list[bytes]:
        return list(story_rows(self.store, GROUP, self.orders.id, 1))


def _scene(backend: Backend) -> Scene:
    log, store = backend.log, backend.store
    assert store is not None
    orders, dead = made(log, "orders", shards=2), made(log, "dead")
    invoices = made(log, "invoices", shards=2)
    _join(store, GROUP, orders)
    scene = Scene(log, store, orders, invoices, dead, Grant(GROUP, orders, 1, b""))
    return scene._replace(grant=scene.granted(GROUP, 1))


def _join(store: GroupStore, group: str, stream: StreamInfo) -> None:
    """Let one member join and hold every shard of the stream."""
    facts = StreamFacts(stream.name, stream.id, (ShardFacts(0), ShardFacts(1)))
    Coordinator(store).apply(group, Join("A", 1, (facts,), balanced))


class CommitContract(BackendUnderTest):
    @pytest.fixture
    def scene(self, backend: Backend) -> Scene | None:
        """None for a backend without commits, after a check that it refuses them with the
        reason."""
        if lacks(backend, "commit", partial(backend.capabilities.require, "commit")):
            return None
        return _scene(backend)

    def test_a_commit_makes_everything_visible(self, scene: Scene | None) -> None:
        if scene is None:
            return
        base = appended(scene.log, scene.invoices, Batch.of_rows(some_rows(3)))[-1] + 1
        places = scene.store.commit(scene.commit(0, 5))
        assert places[0] == Place(1, 0)
        assert (places[1].shard, len(places)) == (0, 2)
        assert places[1].base >= base
        assert list(read_rows(scene.log, scene.invoices, 1).values()) == some_rows(2)
        expected = [*some_rows(3), *some_rows(20)]
        assert list(read_rows(scene.log, scene.invoices, 0).values()) == expected
        assert list(read_rows(scene.log, scene.dead).values()) == [Row(b"k", b"bad", 1)]
        assert scene.checkpoint() == Checkpoint(5, 1)
        assert scene.state() == {b"ann": b"1", b"": b"", b"long" * 999: b"x"}
        assert scene.attempts() == b"tried once"
        assert [story.endswith(b"what happened") for story in scene.stories()] == [True]

    def test_commits_follow_each_other(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        done = Slice("orders", 1, 5, 9)
        changed = {b"ann": b"2", b"": None, b"new": b"3", b"never": None}
        scene.store.commit(Commit(grant=scene.grant, done=done, state=changed, story=b"more"))
        assert scene.checkpoint() == Checkpoint(9, 2)
        assert scene.state() == {b"ann": b"2", b"new": b"3", b"long" * 999: b"x"}
        assert [story[-4:] for story in scene.stories()] == [b"ened", b"more"]

    def test_an_empty_commit_moves_only_the_checkpoint(self, scene: Scene | None) -> None:
        if scene is None:
            return
        done = Slice("orders", 1, 0, 4)
        assert scene.store.commit(Commit(grant=scene.grant, done=done)) == []
        assert scene.checkpoint() == Checkpoint(4, 1)
        assert (scene.state(), scene.attempts(), scene.stories()) == ({}, None, [])

    def test_attempts_stay_until_a_commit_replaces_or_forgets_them(
        self, scene: Scene | None
    ) -> None:
        if scene is None:
            return
        found = []
        for attempts in (b"once", None, b"twice", b"", None, b""):
            scene.store.commit(scene.tried(attempts, at=0))
            found.append(scene.attempts())
        assert found == [b"once", b"once", b"twice", None, None, None]

    def test_attempts_are_stored_by_a_commit_that_finishes_no_record(
        self, scene: Scene | None
    ) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        scene.store.commit(scene.tried(b"twice", at=5))
        assert scene.checkpoint() == Checkpoint(5, 2)
        assert scene.attempts() == b"twice"
        scene.store.commit(scene.commit(5, 9))
        assert scene.checkpoint() == Checkpoint(9, 3)

    def test_attempts_of_a_fenced_member_are_not_stored(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        before = scene.everything()
        zombie = Grant(GROUP, scene.orders, 1, b"epoch 0")
        for late in (
            scene.tried(b"zombie", at=5, grant=zombie),
            scene.tried(b"", at=5, grant=zombie),
            scene.tried(b"late", at=4),
        ):
            with pytest.raises(Fenced):
                scene.store.commit(late)
            assert isinstance(scene.store.commit_each([late])[0], Fenced)
        assert scene.everything() == before

    def test_several_commits_at_once_store_the_attempts_of_each(self, scene: Scene | None) -> None:
        if scene is None:
            return
        grant = scene.granted(GROUP, 0)
        other = Commit(grant=grant, done=Slice("orders", 0, 0, 0), attempts=b"other")
        assert scene.store.commit_each([scene.tried(b"once", at=0), other]) == [None, None]
        assert scene.attempts() == b"once"
        assert scene.attempts(shard=0) == b"other"

    def test_attempts_are_deleted_with_their_stream(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        scene.log.delete_stream("orders")
        until = monotonic() + WAIT_S
        while scene.attempts() is not None:  # the backend may free space later
            assert monotonic() < until, "the attempts of a deleted stream are still stored"
            scene.log.wait(scene.log.changes(), 0.1)

    def test_attempts_are_deleted_with_their_group(self, scene: Scene | None) -> None:
        if scene is None:
            return
        for name in ("audit", "other"):
            _join(scene.store, name, scene.orders)
            scene.store.commit(scene.tried(b"once", at=0, grant=scene.granted(name, 1)))
        Groups(Backend(scene.log, scene.store)).delete("audit", force=True)
        assert [scene.attempts(group) for group in ("audit", "other")] == [None, b"once"]

    @pytest.mark.parametrize(
        ("group", "token"),
        [(GROUP, b"epoch 0"), (GROUP, b"\0" * 8), (GROUP, b""), ("no group", b"epoch 1")],
    )
    def test_a_commit_without_a_valid_grant_changes_nothing(
        self, scene: Scene | None, group: str, token: bytes
    ) -> None:
        if scene is None:
            return
        before = scene.everything()
        grant = Grant(group, scene.orders, 1, token)
        with pytest.raises(Fenced, match="nothing was written") as caught:
            scene.store.commit(scene.commit(0, 5, grant=grant))
        assert vars(caught.value) == {"group": group, "stream": "orders", "shard": 1}
        assert scene.everything() == before

    def test_a_grant_that_was_taken_back_is_fenced(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        epoch = scene.grant.epoch_shown
        assert epoch is not None
        Coordinator(scene.store).apply(GROUP, Fence(ShardId(scene.orders.name, 1), epoch))
        before = scene.everything()
        with pytest.raises(Fenced):
            scene.store.commit(scene.commit(5, 9))
        assert scene.everything() == before
        newer = scene.granted(GROUP, 1)
        scene.store.commit(scene.commit(5, 9, grant=newer))
        assert scene.checkpoint() == Checkpoint(9, 2)

    @pytest.mark.parametrize(("start", "end"), [(0, 5), (0, 9), (4, 9), (2, 3)])
    def test_a_slice_before_the_checkpoint_is_not_committed_again(
        self, scene: Scene | None, start: int, end: int
    ) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        before = scene.everything()
        with pytest.raises(Fenced):
            scene.store.commit(scene.commit(start, end))
        assert scene.everything() == before

    def test_when_two_commit_the_same_slice_one_succeeds(self, scene: Scene | None) -> None:
        if scene is None:
            return
        start = Barrier(4)

        def commit(_: int) -> bool:
            start.wait(WAIT_S)
            try:
                scene.store.commit(scene.commit(0, 5))
            except Fenced:
                return False
            return True

        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(commit, range(4), timeout=WAIT_S))
        assert sorted(outcomes) == [False, False, False, True]
        assert len(read_rows(scene.log, scene.invoices, 1)) == 2
        assert scene.checkpoint() == Checkpoint(5, 1)

    def test_a_commit_to_a_deleted_output_stream_changes_nothing(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.log.delete_stream("dead")
        before = scene.everything()
        with pytest.raises(UnknownStream, match="'dead'"):
            scene.store.commit(scene.commit(0, 5))
        assert scene.everything() == before

    def test_a_commit_that_is_too_large_is_refused_as_a_whole(self, scene: Scene | None) -> None:
        if scene is None:
            return
        before = scene.everything()
        half = Append(scene.dead, 0, Batch.of_rows([Row(None, b"x" * (COMMIT_BYTES_MAX // 2), 1)]))
        commit = Commit(
            grant=scene.grant,
            done=Slice("orders", 1, 0, 1),
            outputs=[half],
            dead_letters=[half],
        )
        with pytest.raises(BadRecord, match="in one commit"):
            scene.store.commit(commit)
        assert scene.everything() == before

    def test_state_and_story_have_limits(self, scene: Scene | None) -> None:
        if scene is None:
            return
        before = scene.everything()
        done = Slice("orders", 1, 0, 1)
        large = b"x" * VALUE_BYTES_MAX
        bad: list[dict[str, Any]] = [
            {"state": {b"k": large + b"x"}},
            {"state": {large + b"x": b""}},
            {"state": {b"%d" % i: large for i in range(4)}},
            {"state": {"text": b""}},
            {"state": {b"k": "text"}},
            {"attempts": large + b"x"},
            {"attempts": "text"},
            {"story": large + b"x"},
        ]
        for parts in bad:
            with pytest.raises((BadSetting, BadRecord), match="at most"):
                scene.store.commit(Commit(grant=scene.grant, done=done, **parts))
        assert scene.everything() == before
        scene.store.commit(Commit(grant=scene.grant, done=done, state={b"k": large}))
        assert scene.state() == {b"k": large}

    def test_each_group_and_shard_has_its_own_checkpoint(self, scene: Scene | None) -> None:
        if scene is None:
            return
        scene.store.commit(scene.commit(0, 5))
        _join(scene.store, "other", scene.orders)
        for group, shard in ((GROUP, 0), ("other", 1)):
            grant = scene.granted(group, shard)
            done = Slice("orders", shard, 0, 2)
            scene.store.commit(Commit(grant=grant, done=done, state={b"ann": b"2"}))
        assert scene.checkpoint() == Checkpoint(5, 1)
        assert scene.state()[b"ann"] == b"1"

    def test_a_commit_survives_a_restart(self, opening: Opening) -> None:
        backend = opening()
        if any(
            lacks(backend, missing, partial(backend.capabilities.require, missing))
            for missing in _NEEDED
        ):
            backend.close()
            return
        scene = _scene(backend)
        scene.store.commit(scene.commit(0, 5))
        before = scene.everything()
        backend.close()
        reopened = opening()
        assert reopened.store is not None
        again = scene._replace(log=reopened.log, store=reopened.store)
        assert again.everything() == before
        with pytest.raises(Fenced):
            again.store.commit(again.commit(0, 5))
        again.store.commit(again.commit(5, 6))
        assert again.checkpoint() == Checkpoint(6, 2)
        reopened.close()
