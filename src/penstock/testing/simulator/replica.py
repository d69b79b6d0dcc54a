"""A process of the simulation: it joins, heartbeats, watches the others, and works on what it is
granted. What it may do is decided by the real `Seat`, `Watch` and `Marks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from penstock.core import keys
from penstock.core.assign import Allocator, balanced
from penstock.core.checkpoint import Checkpoint, Marks
from penstock.core.errors import Fenced, PenstockError
from penstock.core.events import (
    Denied,
    Evict,
    Granted,
    Join,
    Leave,
    Reply,
    ShardFacts,
    ShardsChanged,
    StreamFacts,
)
from penstock.core.member import Change, Seat
from penstock.core.model import ShardId, Slice
from penstock.core.ports import Grant
from penstock.core.standing import Group
from penstock.core.watch import Watch, Watched
from penstock.run.coordinator import Coordinator, Get
from penstock.testing.simulator.net import Net
from penstock.testing.simulator.store import GROUP, SimStore
from penstock.testing.simulator.swarm import HEARTBEAT_S, SESSION_S, Swarm
from penstock.testing.simulator.world import Node, World

STREAMS = ("a", "b")
COMMIT_EVERY_S = 1.0
ANSWER_S_MAX = 2.0
LEASE_CHECK_S = 0.5


class Effects(Protocol):
    """Who is told what the processes do."""

    def effect(self, worker: Worker, offset: int) -> None: ...
    def evicting(self, evict: Evict, watched_s: float) -> None: ...
    def began(self, worker: Worker) -> None: ...


class Replica:
    """One process of a name; every life and every doubt is a new incarnation of it."""

    def __init__(
        self, node: Node, name: str, net: Net, store: SimStore, swarm: Swarm, effects: Effects
    ) -> None:
        self.node = node
        self.name = name
        self.net = net
        self.store = store
        self.swarm = swarm
        self.effects = effects
        self.wanted = True
        self.seat: Seat | None = None
        self.workers: dict[ShardId, Worker] = {}
        self.waiting_since_s: float | None = None
        self._coordinator = self._new_coordinator()
        self._observer: Observer | None = None
        self._stint = 0
        """Counts seats, so that what belongs to an older one falls silent."""

    @property
    def world(self) -> World:
        return self.node.world

    def start(self) -> None:
        """A new process of this name, if none runs."""
        if self.node.alive:
            return
        self.node.alive = True
        self.workers = {}
        self._coordinator = self._new_coordinator()
        self._observer = Observer(self.node, self.net, self.store, self._coordinator, self.effects)
        self._observer.start(lambda: self.seat)
        self._take_seat()

    def kill(self) -> None:
        self.node.kill()
        self.seat = None
        self.workers = {}
        self.waiting_since_s = None

    def leave(self) -> None:
        """Finish, commit, let go, leave: and be gone until started anew."""
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
        """Whether it may act; a member in doubt stops all work and comes back as a new one."""
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

    def tell(self, stream: str, finished: Callable[[ShardId], bool]) -> None:
        assert self._observer is not None
        self._observer.tell(stream, finished)

    # Getting a seat

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self.store, [self.allocator()], dice=self.world.dice.random)

    @staticmethod
    def allocator() -> Allocator:
        return balanced

    def _take_seat(self) -> None:
        if self.seat is not None or not self.wanted:
            return
        self._stint += 1
        stint = self._stint
        self.waiting_since_s = self.world.now_s

        def found(group: Any, error: PenstockError | None) -> None:
            if stint != self._stint:
                return
            self._join(stint, self._coordinator.read(GROUP, group))

        self.store.ask(self.node, Get(keys.group_key(GROUP)), found, None)

    def _join(self, stint: int, group: Group) -> None:
        incarnation = (group.version + 1) << 20 | self.world.dice.randrange(1 << 20)
        began_s = self.node.clock_s()
        event = Join(
            self.name,
            incarnation,
            tuple(facts_of(self.store, name, group, self.store.is_read) for name in STREAMS),
            self.allocator(),
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

        def joined(reply: Reply | PenstockError) -> None:
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
        """Who was fenced by its own name waits longer: nobody plays ping-pong."""
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

            def answered(reply: Reply | PenstockError) -> None:
                if self.seat is seat:
                    self._answered(seat, beat, reply)

            self._call(heartbeat, answered)
            if self.net.servers:
                self.node.later(ANSWER_S_MAX, lambda: seat.unanswered(beat))
        jitter = 0.9 + 0.2 * self.world.dice.random()
        self.node.later(HEARTBEAT_S * jitter, lambda: self._heartbeats(seat))

    def _answered(self, seat: Seat, beat: int, reply: Reply | PenstockError) -> None:
        if isinstance(reply, PenstockError):
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

    def _change(self, change: Change) -> None:
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
        worker = Worker(self, shard, epoch)
        self.workers[shard] = worker
        worker.start()

    def _call(self, event: Any, done: Callable[[Reply | PenstockError], None]) -> None:
        self.net.call(self.node, self._coordinator, event, done)


class Worker:
    """Works on one shard under one epoch: reads from the checkpoint, has effects, commits."""

    def __init__(self, replica: Replica, shard: ShardId, epoch: int) -> None:
        self.replica = replica
        self.node = replica.node
        self.world = replica.node.world
        self.store = replica.store
        self.shard = shard
        self.epoch = epoch
        assert replica.seat is not None
        self.member = replica.seat.member
        self.incarnation = replica.seat.incarnation
        self.seat = replica.seat
        info = replica.store.streams[shard.stream]
        self.grant = Grant(GROUP, info, shard.index, keys.epoch_token(epoch))
        self.marks: Marks | None = None
        self.working = True
        """Effects may still come."""
        self.checked_pauses = 0
        """How often its process had been paused when it last checked its lease."""
        self.checked_s = 0.0
        self.checked_seen = 0
        """Which version of the group it knew then."""
        self._finishing = False
        self._committing = False
        self._told = False

    def start(self) -> None:
        self.replica.effects.began(self)
        key = keys.checkpoint_key(GROUP, self.grant.stream.id, self.shard.index)

        def found(value: Any, error: PenstockError | None) -> None:
            if not self.working:
                return
            checkpoint = Checkpoint.decoded(value.value) if value else Checkpoint()
            self.marks = Marks(checkpoint.next)
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
        if not self.replica.check_lease():
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
        self.replica.effects.effect(self, offset)
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
            self.replica.tell(self.shard.stream, lambda shard: shard == self.shard)

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

        def answered(_: Any, error: PenstockError | None) -> None:
            if error is None:
                committed()
            elif isinstance(error, Fenced | LookupError):
                self._ended()
            else:
                self.store.ask(self.node, look, found, None)

        def look() -> tuple[bytes | None, int]:
            key = keys.epoch_key(GROUP, self.grant.stream.id, self.shard.index)
            epoch = self.store.get(key)
            return (None if epoch is None else epoch.value), self.store.checkpoint(self.shard).next

        def found(seen: Any, error: PenstockError | None) -> None:
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
            self.marks.commit(end)
            if self._finishing and self.working:
                self._commit_the_rest()

        self.store.ask(self.node, put, answered, None)

    def _ended(self) -> None:
        if self.working:
            self.working = False
            self.replica.released(self.shard, self.epoch)


class Observer:
    """Watches the members, and what becomes of the streams."""

    def __init__(
        self, node: Node, net: Net, store: SimStore, coordinator: Coordinator, effects: Effects
    ) -> None:
        self.node = node
        self.net = net
        self.store = store
        self.coordinator = coordinator
        self.effects = effects
        self._watch = Watch(gap_s_max=HEARTBEAT_S * 2)

    def start(self, own: Callable[[], Seat | None]) -> None:
        """Begin to look; a process that was killed remembers nothing of what it saw."""
        self._watch = Watch(gap_s_max=HEARTBEAT_S * 2)

        def look() -> None:
            self.store.ask(self.node, Get(keys.group_key(GROUP)), found, None)
            self.node.later(HEARTBEAT_S / 2, look)

        def found(value: Any, error: PenstockError | None) -> None:
            if value is None:
                return
            group = self.coordinator.read(GROUP, value)
            seat = own()
            self._judge(group, None if seat is None else (seat.member, seat.incarnation))
            self._tell_changes(group)

        look()

    def tell(self, stream: str, finished: Callable[[ShardId], bool]) -> None:
        """Look at a stream and at the group, in this order, and tell the group of the stream."""

        def found(value: Any, error: PenstockError | None) -> None:
            if value is not None:
                group = self.coordinator.read(GROUP, value)
                self._send(facts_of(self.store, stream, group, finished))

        self.store.ask(self.node, Get(keys.group_key(GROUP)), found, None)

    def _judge(self, group: Group, own: Watched | None) -> None:
        signs = {
            (name, member.incarnation): (
                self.net.look((name, member.incarnation)),
                member.timeout_s,
            )
            for name, member in group.members.items()
            if (name, member.incarnation) != own
        }
        watched_s = self.node.world.now_s - self.node.woke_s
        for evict in self._watch.look(signs, self.node.clock_s()):

            def still(evict: Evict = evict) -> bool:
                sign = self.net.look((evict.member, evict.incarnation))
                if not self._watch.still_gone(evict, sign):
                    return False
                self.effects.evicting(evict, watched_s)
                return True

            self.net.call(self.node, self.coordinator, evict, lambda reply: None, still)

    def _tell_changes(self, group: Group) -> None:
        for stream in STREAMS:
            info = self.store.streams.get(stream)
            known = group.streams.get(stream)
            unknown = info is not None and any(
                ShardId(stream, s.index) not in group.shards for s in info.shards if s.open
            )
            closed = info is not None and any(
                ShardId(stream, s.index) in group.shards for s in info.shards if not s.open
            )
            if unknown or closed or (info is None) != (known is None):
                # Facts are gathered later than the group they are compared with.
                life = self.node.world.about(self.store.swarm.latency_s)
                self.node.later(life, lambda stream=stream: self._gather(stream, group))  # type: ignore[misc]

    def _gather(self, stream: str, group: Group) -> None:
        self._send(facts_of(self.store, stream, group, self.store.is_read))

    def _send(self, facts: StreamFacts) -> None:
        self.net.call(self.node, self.coordinator, ShardsChanged(facts), lambda reply: None)


def facts_of(
    store: SimStore, stream: str, group: Group | None, finished: Callable[[ShardId], bool]
) -> StreamFacts:
    """What there is to tell about a stream; the epochs are those of the group as it was read."""
    info = store.streams.get(stream)
    if info is None:
        known = 0 if group is None else group.streams.get(stream, 0)
        return StreamFacts(stream, known, ())
    shards = []
    for shard in info.shards:
        at = None
        if not shard.open and finished(ShardId(stream, shard.index)):
            standing = None if group is None else group.shards.get(ShardId(stream, shard.index))
            at = 0 if standing is None else standing.epoch
        shards.append(ShardFacts(shard.index, shard.parents, at))
    return StreamFacts(stream, info.id, tuple(shards), 0 if group is None else group.version)
