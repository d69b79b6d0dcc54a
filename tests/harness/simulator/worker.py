"""What a process does with a shard it was granted: reads from the checkpoint, has effects, commits.
How far it may commit is decided by the real `HandedOut`."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.core import store_keys
from headrace.core.errors import HeadraceError
from headrace.core.groups.checkpoint import Checkpoint, HandedOut
from headrace.core.groups.events import Evict
from headrace.core.groups.seat import Seat
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Grant
from headrace.groups.coordinator import Get
from tests.harness.simulator.store import GROUP, SimStore
from tests.harness.simulator.world import Node

COMMIT_EVERY_S = 1.0


class ProcessChecks(Protocol):
    """Who is told what the processes do."""

    def effect(self, worker: SimWorker, offset: int) -> None: ...
    def evicting(self, evict: Evict, watched_s: float) -> None: ...
    def began(self, worker: SimWorker) -> None: ...


class WorkerProcess(Protocol):
    """The process a worker lives in."""

    node: Node
    store: SimStore
    checks: ProcessChecks
    seat: Seat | None

    def check_lease(self) -> bool:
        """Whether it may act."""

    def released(self, shard: ShardId, epoch: int) -> None:
        """A worker has ended."""

    def tell_read(self, shard: ShardId, epoch: int) -> None:
        """A closed shard is read to its end, by one who worked under that epoch."""


class SimWorker:
    """Works on one shard under one epoch: reads from the checkpoint, has effects, commits."""

    def __init__(self, process: WorkerProcess, shard: ShardId, epoch: int) -> None:
        self.process = process
        self.node = process.node
        self.world = process.node.world
        self.store = process.store
        self.shard = shard
        self.epoch = epoch
        assert process.seat is not None
        self.member = process.seat.member
        self.incarnation = process.seat.incarnation
        self.seat = process.seat
        info = process.store.streams[shard.stream]
        self.grant = Grant(GROUP, info, shard.index, store_keys.epoch_token(epoch))
        self.marks: HandedOut | None = None
        self.working = True
        """ProcessChecks may still come."""
        self.checked_pauses = 0
        """How often its process had been paused when it last checked its lease."""
        self.checked_s = 0.0
        self.checked_seen = 0
        """Which version of the group it knew then."""
        self._finishing = False
        self._committing = False
        self._told = False

    def start(self) -> None:
        self.process.checks.began(self)
        key = store_keys.checkpoint_key(GROUP, self.grant.stream.id, self.shard.index)

        def found(value: Any, error: HeadraceError | None) -> None:
            if not self.working:
                return
            checkpoint = Checkpoint.decoded(value.value) if value else Checkpoint()
            self.marks = HandedOut(checkpoint.next)
            self._turn()

        self.store.ask(self.node, Get(key), found, None)

    def finish(self) -> None:
        """Let go once what is done is committed."""
        self._finishing = True
        if self.marks is None:
            self._ended()

    def stop(self) -> None:
        """Drop everything, at once."""
        self.working = False

    def _turn(self) -> None:
        if not self.working or self.marks is None:
            return
        if self._finishing:
            self._commit_the_rest()
            return
        if not self.process.check_lease():
            return
        self.checked_pauses = self.node.pauses
        self.checked_s = self.world.now_s
        self.checked_seen = self.seat.seen
        info = self.store.streams.get(self.shard.stream)
        if info is None or info.id != self.grant.stream.id:
            self._ended()
            return
        # The handler begins here: a pause may fall between the check of the lease and the effect.
        if self.marks.given < self.store.end_of(self.shard):
            start, _ = self.marks.give(self.marks.given + 1)
            self.node.later(self.world.about(0.05), lambda: self._act(start))
        else:
            self._at_end()
            self.node.later(self.world.about(0.7), self._turn)
        self._commit_if_due()

    def _act(self, offset: int) -> None:
        if not self.working or self.marks is None:
            return
        if self.node.pauses != self.checked_pauses:
            self.world.counts["sometimes: pause between lease check and effect"] += 1
        self.process.checks.effect(self, offset)
        self.marks.done(offset, self.node.clock_s())
        self.node.later(self.world.about(0.2), self._turn)

    def _at_end(self) -> None:
        """A closed shard that is read and committed to its end is told once: then it is done."""
        assert self.marks is not None
        index = self.shard.index
        closed = not self.store.streams[self.shard.stream].shards[index].open
        at_end = self.marks.committed >= self.store.end_of(self.shard)
        if closed and at_end and not self._told:
            self._told = True
            self.process.tell_read(self.shard, self.epoch)

    def _commit_if_due(self) -> None:
        assert self.marks is not None
        if not self._committing and self.marks.due(self.node.clock_s(), COMMIT_EVERY_S):
            self._commit()

    def _commit_the_rest(self) -> None:
        assert self.marks is not None
        if self._committing:
            return
        if self.marks.next > self.marks.committed:
            self._commit()
        else:
            self._ended()

    def _commit(self) -> None:
        assert self.marks is not None
        self._committing = True
        start, end = self.marks.committed, self.marks.next
        done = Slice(self.shard.stream, self.shard.index, start, end)

        def put() -> None:
            self.store.commit(self, self.grant, done, range(start, end))

        def answered(_: Any, error: HeadraceError | None) -> None:
            if error is None:
                committed()
            elif isinstance(error, LookupError):
                self._ended()
            else:
                # Fenced, or unknown: it may have been our own write, unheard.
                self.store.ask(self.node, look, found, None)

        def look() -> tuple[bytes | None, int]:
            key = store_keys.epoch_key(GROUP, self.grant.stream.id, self.shard.index)
            epoch = self.store.get(key)
            return (None if epoch is None else epoch.value), self.store.checkpoint(self.shard).next

        def found(seen: Any, error: HeadraceError | None) -> None:
            # Not knowing whether a commit happened, look: under our epoch nobody else commits.
            if error is not None:
                self.store.ask(self.node, look, found, None)
                return
            token, stored = seen
            if token != self.grant.token:
                self._ended()
            elif stored >= end:
                committed()
            else:
                self.store.ask(self.node, put, answered, None)

        def committed() -> None:
            assert self.marks is not None
            self._committing = False
            self.marks.commit(end, self.node.clock_s())
            if self._finishing and self.working:
                self._commit_the_rest()

        self.store.ask(self.node, put, answered, None)

    def _ended(self) -> None:
        if self.working:
            self.working = False
            self.process.released(self.shard, self.epoch)
