"""A simulated worker: one granted shard, read from its checkpoint, with effects and commits. The
real `HandedOut` decides how far it may commit."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.core import store_keys
from headrace.core.errors import HeadraceError
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import Evict
from headrace.core.groups.handed_out import HandedOut
from headrace.core.groups.seat import Seat
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Grant
from headrace.groups.coordinator import Get
from tests.harness.simulator.store import GROUP, SimStore
from tests.harness.simulator.world import Node

COMMIT_EVERY_S = 1.0


class ProcessChecks(Protocol):
    """Is told what the processes do."""

    def effect(self, worker: SimWorker, offset: int) -> None: ...
    def evicting(self, evict: Evict, watched_s: float) -> None: ...
    def began(self, worker: SimWorker) -> None: ...


class WorkerProcess(Protocol):
    """The process in which a worker works."""

    node: Node
    store: SimStore
    checks: ProcessChecks
    seat: Seat | None

    def check_lease(self) -> bool:
        """Whether the process may act."""

    def released(self, shard: ShardId, epoch: int) -> None:
        """A worker has ended."""

    def tell_read(self, shard: ShardId, epoch: int) -> None:
        """A closed shard was read to its end under that epoch."""


class SimWorker:
    """Works on one shard under one epoch."""

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
        self.handed_out: HandedOut | None = None
        self.working = True
        """Whether effects may still come."""
        self.checked_pauses = 0
        """How often the process had been paused when the worker last checked the lease."""
        self.checked_s = 0.0
        self.checked_seen = 0
        """Which version of the group the process knew at that check."""
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
            self.handed_out = HandedOut(checkpoint.next)
            self._turn()

        self.store.ask(self.node, Get(key), found, None)

    def finish(self) -> None:
        """Commit what is done, then let go."""
        self._finishing = True
        if self.handed_out is None:
            self._ended()

    def stop(self) -> None:
        """Stop at once, without a commit."""
        self.working = False

    def _turn(self) -> None:
        if not self.working or self.handed_out is None:
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
        if self.handed_out.given < self.store.end_of(self.shard):
            start, _ = self.handed_out.give(self.handed_out.given + 1)
            self.node.later(self.world.about(0.05), lambda: self._act(start))
        else:
            self._at_end()
            self.node.later(self.world.about(0.7), self._turn)
        self._commit_if_due()

    def _act(self, offset: int) -> None:
        if not self.working or self.handed_out is None:
            return
        if self.node.pauses != self.checked_pauses:
            self.world.counts["sometimes: pause between lease check and effect"] += 1
        self.process.checks.effect(self, offset)
        self.handed_out.done(offset, self.node.clock_s())
        self.node.later(self.world.about(0.2), self._turn)

    def _at_end(self) -> None:
        """Tell once that a closed shard is read and committed to its end: then it is done."""
        assert self.handed_out is not None
        index = self.shard.index
        closed = not self.store.streams[self.shard.stream].shards[index].open
        at_end = self.handed_out.committed >= self.store.end_of(self.shard)
        if closed and at_end and not self._told:
            self._told = True
            self.process.tell_read(self.shard, self.epoch)

    def _commit_if_due(self) -> None:
        assert self.handed_out is not None
        if not self._committing and self.handed_out.due(self.node.clock_s(), COMMIT_EVERY_S):
            self._commit()

    def _commit_the_rest(self) -> None:
        assert self.handed_out is not None
        if self._committing:
            return
        if self.handed_out.next > self.handed_out.committed:
            self._commit()
        else:
            self._ended()

    def _commit(self) -> None:
        assert self.handed_out is not None
        self._committing = True
        start, end = self.handed_out.committed, self.handed_out.next
        done = Slice(self.shard.stream, self.shard.index, start, end)

        def put() -> None:
            self.store.commit(self, self.grant, done, range(start, end))

        def answered(_: Any, error: HeadraceError | None) -> None:
            if error is None:
                committed()
            elif isinstance(error, LookupError):
                self._ended()
            else:
                # Fenced, or unknown: the answer to our own write may have been lost.
                self.store.ask(self.node, look, found, None)

        def look() -> tuple[bytes | None, int]:
            key = store_keys.epoch_key(GROUP, self.grant.stream.id, self.shard.index)
            epoch = self.store.get(key)
            return (None if epoch is None else epoch.value), self.store.checkpoint(self.shard).next

        def found(seen: Any, error: HeadraceError | None) -> None:
            # Look whether the commit happened: under our epoch no other process commits.
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
            assert self.handed_out is not None
            self._committing = False
            self.handed_out.commit(end, self.node.clock_s())
            if self._finishing and self.working:
                self._commit_the_rest()

        self.store.ask(self.node, put, answered, None)

    def _ended(self) -> None:
        if self.working:
            self.working = False
            self.process.released(self.shard, self.epoch)
