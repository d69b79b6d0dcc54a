"""A simulated replica: it joins, sends heartbeats and works on its shards. The real `Seat` decides
what it may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.core import store_keys
from headrace.core.errors import HeadraceError
from headrace.core.groups.allocators import Allocator, balanced, named
from headrace.core.groups.events import Denied, Granted, Join, Leave, Reply
from headrace.core.groups.group import Group
from headrace.core.groups.seat import Seat, SeatChange
from headrace.core.model import ShardId
from headrace.groups.coordinator import Coordinator, Get
from tests.harness.simulator.net import Net
from tests.harness.simulator.observer import SimObserver, facts_of
from tests.harness.simulator.store import GROUP, STREAMS, SimStore
from tests.harness.simulator.swarm import HEARTBEAT_S, SESSION_S, Swarm
from tests.harness.simulator.worker import ProcessChecks, SimWorker
from tests.harness.simulator.world import Node, World

ANSWER_S_MAX = 2.0
OWN_ALLOCATOR = Allocator("own", "1", balanced.deal)
"""An allocator that members know; administrators and servers do not."""


class SimReplica:
    """One process with a member name. Every start, and every return from doubt, is a new
    incarnation."""

    def __init__(
        self, node: Node, name: str, net: Net, store: SimStore, swarm: Swarm, checks: ProcessChecks
    ) -> None:
        self.node = node
        self.name = name
        self.net = net
        self.store = store
        self.swarm = swarm
        self.checks = checks
        self.wanted = True
        self.seat: Seat | None = None
        self.workers: dict[ShardId, SimWorker] = {}
        self.waiting_since_s: float | None = None
        self._coordinator = self._new_coordinator()
        self._observer: SimObserver | None = None
        self._capacity = float(node.world.dice.randint(1, 3))
        self._stint = 0
        """Counts seats, so that calls for an older seat are ignored."""

    @property
    def world(self) -> World:
        return self.node.world

    def start(self) -> None:
        """Start a new process of this name, unless one runs."""
        if self.node.alive:
            return
        self.node.alive = True
        self.workers = {}
        self._coordinator = self._new_coordinator()
        self._observer = SimObserver(
            self.node, self.net, self.store, self._coordinator, self.checks
        )
        self._observer.start(lambda: self.seat)
        self._take_seat()

    def kill(self) -> None:
        self.node.kill()
        self.seat = None
        self.workers = {}
        self.waiting_since_s = None

    def leave(self) -> None:
        """Finish, commit, let go and leave; the replica is gone until it comes back."""
        self.wanted = False
        seat = self.seat
        if seat is None:
            return
        for worker in list(self.workers.values()):
            worker.finish()
        stint = self._stint

        def left() -> None:
            if self._stint != stint or seat.over or self.wanted:
                return
            if self.workers:
                self.node.later(0.1, left)
                return
            self._stint += 1
            self.seat = None
            self._call(Leave(seat.member, seat.incarnation), lambda reply: None)

        left()

    def come_back(self) -> None:
        if not self.node.alive:
            return
        self.wanted = True
        if self.seat is None:
            self._take_seat()
            return
        for shard, epoch in self.seat.held.items():
            if shard not in self.workers:
                self._begin(shard, epoch)

    def check_lease(self) -> bool:
        """Whether the replica may act. In doubt, it stops all work and joins again as a new
        incarnation."""
        seat = self.seat
        if seat is None:
            return False
        if not seat.in_doubt(self.node.clock_s()):
            return True
        self.world.counts["doubts"] += 1
        self._give_up(seat, self.world.about(1.0))
        return False

    def released(self, shard: ShardId, epoch: int) -> None:
        """A worker has ended."""
        seat = self.seat
        worker = self.workers.get(shard)
        if worker is not None and worker.epoch == epoch:
            del self.workers[shard]
        if seat is None:
            return
        release = seat.let_go(shard, epoch)
        if release is not None:
            self._call(release, lambda reply: None)
        if shard in seat.held and shard not in self.workers:
            self._begin(shard, seat.held[shard])

    def tell_read(self, shard: ShardId, epoch: int) -> None:
        assert self._observer is not None
        self._observer.tell_read(shard, epoch)

    # Getting a seat

    def _new_coordinator(self) -> Coordinator:
        world = self.world
        return Coordinator(self.store, [OWN_ALLOCATOR], dice=world.dice.random, now_ms=world.now_ms)

    def _take_seat(self) -> None:
        if self.seat is not None or not self.wanted:
            return
        self._stint += 1
        stint = self._stint
        if self.waiting_since_s is None:
            self.waiting_since_s = self.world.now_s

        def found(group: Any, error: HeadraceError | None) -> None:
            if stint != self._stint:
                return
            self._join(stint, self._coordinator.read(GROUP, group))

        self.store.ask(self.node, Get(store_keys.group_key(GROUP)), found, None)

    def _join(self, stint: int, group: Group) -> None:
        incarnation = (group.version + 1) << 20 | self.world.dice.randrange(1 << 20)
        began_s = self.node.clock_s()
        event = Join(
            self.name,
            incarnation,
            tuple(facts_of(self.store, name, group, self.store.is_read) for name in STREAMS),
            self._allocator(),
            capacity=self._capacity,
            order=self.swarm.order,
            timeout_s=SESSION_S,
        )
        who = self.name, incarnation
        signed = [False]

        def given() -> None:
            if not signed[0]:
                signed[0] = True
                send()

        def send() -> None:
            self._call(event, joined)
            self.node.later(ANSWER_S_MAX * 2, retry)

        def retry() -> None:
            if stint == self._stint and self.seat is None and self.wanted:
                self._take_seat()

        def joined(reply: Reply | HeadraceError) -> None:
            if stint != self._stint or self.seat is not None or not self.wanted:
                return
            match reply:
                case Granted():
                    self.waiting_since_s = None
                    self._sit(Seat(self.name, incarnation, reply, began_s))
                case Denied("fenced"):
                    self._stint += 1
                    self.node.later(self._back_off_s(), self._take_seat)
                case _:
                    pass

        self.net.sign(self.node, who, 0, given)
        self.node.later(ANSWER_S_MAX * 2, retry)

    def _allocator(self) -> Allocator:
        own = self.swarm.own_allocator and not self.net.servers
        return OWN_ALLOCATOR if own else named(self.swarm.allocator)

    def _sit(self, seat: Seat) -> None:
        self.seat = seat
        self.world.note(None, f"{self.name}#{seat.incarnation:x} joined at", seat.seen)
        for shard, epoch in list(seat.held.items()):
            self._begin(shard, epoch)
        self._beat(seat, 1)
        self._heartbeats(seat)

    def _give_up(self, seat: Seat, back_after_s: float) -> None:
        self.world.note(None, f"{self.name}#{seat.incarnation:x} is over")
        seat.over = True
        for worker in list(self.workers.values()):
            worker.stop()
        self.workers = {}
        self.seat = None
        self._stint += 1
        if self.wanted:
            self.node.later(back_after_s, self._take_seat)

    def _back_off_s(self) -> float:
        """A replica fenced by another of its name waits longer, so that the two do not
        alternate."""
        long = self.swarm.twins and self.net.faulty
        return self.world.about(60.0 if long else 1.0)

    # Signs of life and heartbeats

    def _beat(self, seat: Seat, beat: int) -> None:
        if self.seat is not seat:
            return
        if not self.check_lease():
            return
        began_s = self.node.clock_s()
        who = seat.member, seat.incarnation
        self.net.sign(self.node, who, beat, lambda: seat.signed(began_s))
        self.node.later(HEARTBEAT_S / 3, lambda: self._beat(seat, beat + 1))

    def _heartbeats(self, seat: Seat) -> None:
        if self.seat is not seat or not self.check_lease():
            return
        heartbeat = seat.heartbeat()
        if heartbeat is not None:
            beat = heartbeat.beat

            def answered(reply: Reply | HeadraceError) -> None:
                if self.seat is seat:
                    self._answered(seat, beat, reply)

            self._call(heartbeat, answered)
            if self.net.servers:
                self.node.later(ANSWER_S_MAX, lambda: seat.unanswered(beat))
        jitter = 0.9 + 0.2 * self.world.dice.random()
        self.node.later(HEARTBEAT_S * jitter, lambda: self._heartbeats(seat))

    def _answered(self, seat: Seat, beat: int, reply: Reply | HeadraceError) -> None:
        if isinstance(reply, HeadraceError):
            seat.unanswered(beat)
            return
        if seat.beat != beat:
            self.world.counts["sometimes: heartbeat answer overtaken"] += 1
        changes = seat.answered(beat, reply)
        if seat.over:
            self._give_up(seat, self._back_off_s())
            return
        for change in changes:
            self._change(change)

    def _change(self, change: SeatChange) -> None:
        if change.begin:
            if change.shard not in self.workers:
                self._begin(change.shard, change.epoch)
            return
        worker = self.workers.get(change.shard)
        if worker is not None and worker.epoch == change.epoch:
            worker.finish()
        else:
            self.released(change.shard, change.epoch)

    def _begin(self, shard: ShardId, epoch: int) -> None:
        info = self.store.streams.get(shard.stream)
        assert self.seat is not None
        if info is None or info.id != self.seat.streams.get(shard.stream) or not self.wanted:
            return
        worker = SimWorker(self, shard, epoch)
        self.workers[shard] = worker
        worker.start()

    def _call(self, event: Any, done: Callable[[Reply | HeadraceError], None]) -> None:
        self.net.call(self.node, self._coordinator, event, done)
