"""The faults of a simulation, and what administrators do meanwhile: all drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.groups.events import (
    Configure,
    Delete,
    Event,
    Fence,
    ForceCheckpoint,
    Resume,
    Stop,
)
from headrace.core.model import ShardId, StreamInfo
from tests.harness.simulator.checks import Checks
from tests.harness.simulator.net import Done, Net
from tests.harness.simulator.observer import SimObserver
from tests.harness.simulator.replica import SimReplica
from tests.harness.simulator.store import STREAMS, SimStore
from tests.harness.simulator.swarm import SESSION_S, Swarm
from tests.harness.simulator.world import Node, World

SHARDS_MAX = 14


class Chaos:
    def __init__(
        self,
        world: World,
        swarm: Swarm,
        store: SimStore,
        net: Net,
        replicas: list[SimReplica],
        observers: list[SimObserver],
        admin: SimObserver,
        checks: Checks,
    ) -> None:
        self.world = world
        self.swarm = swarm
        self.store = store
        self.net = net
        self.replicas = replicas
        self.servers = observers
        self.admin = admin
        self.checks = checks
        self.over = False
        self.producing = True

    def begin(self) -> None:
        swarm = self.swarm
        for per_hour, happen in (
            (swarm.kills, self._kill),
            (swarm.pauses, self._pause),
            (swarm.everyone_pauses, self._pause_everyone),
            (swarm.slow, self._slow_down),
            (swarm.partitions, self._part),
            (swarm.leaves, self._leave),
            (swarm.splits, self._split_or_merge),
            (swarm.forces, self._force),
            (swarm.fences, self._fence),
            (swarm.stops, self._stop),
            (swarm.configures, self._configure),
            (swarm.deletes, self._delete),
            (swarm.stream_deletes, self._delete_stream),
            (swarm.signs_fail, self._fail_signs),
        ):
            if per_hour:
                self._now_and_then(3600 / per_hour, happen)
        self._produce()

    def heal(self) -> None:
        """End all faults; every process that shall be there comes back."""
        self.over = True
        self.net.faulty = self.store.faulty = False
        self.net.cut.clear()
        self.net.signs_fail = False
        for node in self._nodes():
            node.wake()
            node.slowness = 1.0
            node.doom = None
        for observer in self.servers:
            if not observer.node.alive:
                self._restart_server(observer)
        healthy = self.replicas[:1] if self.swarm.lone else self.replicas
        names: set[str] = set()
        for replica in self.replicas:
            if replica not in healthy or replica.name in names:
                self._shut_out(replica)
                continue
            names.add(replica.name)
            if not replica.node.alive:
                replica.wanted = True
                replica.start()
            else:
                replica.come_back()
        for stream in STREAMS:
            if stream not in self.store.streams:
                self.store.create_stream(stream, 2)
        self.admin.node.later(1.0, self._resume_all)

    def _shut_out(self, replica: SimReplica) -> None:
        """Shut a replica out for good: dead, or alive and unheard."""
        replica.wanted = False
        if self.net.servers and self.world.seed % 2:
            replica.wanted = replica.node.alive
            self.net.muted.add(replica.node.name)
        else:
            replica.kill()

    def _resume_all(self) -> None:
        for shard, standing in self.checks.group.shards.items():
            if standing.stopped:
                self._ask(Resume(shard, standing.epoch))
        self.admin.node.later(5.0, self._resume_all)

    def _now_and_then(self, every_s: float, happen: Callable[[], None]) -> None:
        def fire() -> None:
            if not self.over:
                happen()
                self.world.after(self.world.about(every_s), fire)

        self.world.after(self.world.about(every_s), fire)

    # Append records

    def _produce(self) -> None:
        if not self.producing:
            return
        stream = self.world.dice.choice(STREAMS)
        info = self.store.streams.get(stream)
        if info is not None:
            shard = self.world.dice.choice([s for s in info.shards if s.open])
            self.store.append(ShardId(stream, shard.index), self.world.dice.randint(1, 6))
        self.world.after(self.world.about(1.5), self._produce)

    # Processes

    def _kill(self) -> None:
        nodes: list[SimReplica | SimObserver] = [*self.replicas, *self.servers]
        victim = self.world.dice.choice(nodes)
        if self.world.chance(0.3):
            victim.node.doom = lambda: self._kill_now(victim)
        else:
            self._kill_now(victim)

    def _kill_now(self, victim: SimReplica | SimObserver) -> None:
        if not victim.node.alive:
            return
        self.world.counts["kills"] += 1
        self.world.note(None, "kill", victim.node.name)
        if isinstance(victim, SimObserver):
            victim.node.kill()
            self.world.after(self.world.about(10), lambda: self._restart_server(victim))
            return
        victim.kill()
        self.world.after(self.world.about(15), lambda: self._restart(victim))

    def _restart(self, replica: SimReplica) -> None:
        if not replica.node.alive and not self.over:
            self.world.note(None, "start", replica.node.name)
            replica.wanted = True
            replica.start()

    def _restart_server(self, server: SimObserver) -> None:
        if not server.node.alive:
            server.node.alive = True
            server.start(lambda: None)

    def _pause(self) -> None:
        self._stop_for(self.world.dice.choice(self._nodes()))

    def _nodes(self) -> list[Node]:
        return [r.node for r in self.replicas] + [s.node for s in self.servers]

    def _pause_everyone(self) -> None:
        """Pause all processes together, as when a laptop sleeps; or one by one, in any order."""
        together = self.world.chance(0.5)
        seconds = self.world.about(SESSION_S * 2)
        for node in self._nodes():
            self.world.counts["pauses"] += 1
            if together:
                node.pause(seconds)
            else:
                self.world.after(self.world.about(5.0), lambda node=node: self._stop_for(node))  # type: ignore[misc]

    def _stop_for(self, node: Node) -> None:
        if node.alive and not self.over:
            share = self.world.dice.choice((0.05, 0.5, 0.9, 1.1, 1.5, 5.0))
            self.world.counts["pauses"] += 1
            self.world.note(None, "pause", node.name, f"for {share * SESSION_S:.1f} s")
            node.pause(share * SESSION_S)

    def _slow_down(self) -> None:
        node = self.world.dice.choice(self.replicas).node
        node.slowness = 10.0

        def recover() -> None:
            node.slowness = 1.0

        self.world.after(self.world.about(30), recover)

    def _leave(self) -> None:
        replica = self.world.dice.choice(self.replicas)
        if replica.node.alive:
            self.world.counts["leaves"] += 1
            replica.leave()
            self.world.after(self.world.about(30), lambda: self._come_back(replica))

    def _come_back(self, replica: SimReplica) -> None:
        if not self.over:
            replica.come_back()

    # The network, and signs of life

    def _part(self) -> None:
        """Cut the network between two processes, in one direction or in both."""
        names = [node.name for node in self._nodes()]
        one, other = self.world.dice.sample(names, 2)
        ways = {(one, other)} if self.world.chance(0.6) else {(one, other), (other, one)}
        self.net.cut |= ways
        self.world.after(self.world.about(15), lambda: self.net.cut.difference_update(ways))

    def _fail_signs(self) -> None:
        self.net.signs_fail = True

        def recover() -> None:
            self.net.signs_fail = False

        self.world.after(self.world.about(SESSION_S), recover)

    # Streams

    def _split_or_merge(self) -> None:
        stream = self.world.dice.choice(STREAMS)
        info = self.store.streams.get(stream)
        if info is None or len(info.shards) >= SHARDS_MAX:
            return
        moving = any(s.state == "moving" for s in self.checks.group.shards.values())
        self.world.counts["sometimes: split or merge during a transfer"] += moving
        self._change_shards(info)
        if self.world.chance(0.3):
            # A second change at once: some shards are closed before they get a record.
            self._change_shards(self.store.streams[stream])

    def _change_shards(self, info: StreamInfo) -> None:
        stream = info.name
        by_begin = sorted((s for s in info.shards if s.open), key=lambda s: s.begin)
        if len(by_begin) > 1 and self.world.chance(0.4):
            at = self.world.dice.randrange(len(by_begin) - 1)
            left, right = by_begin[at].index, by_begin[at + 1].index
            self.world.note(None, "merge", stream, left, right)
            self.store.merge(stream, left, right)
        else:
            newest = max(by_begin, key=lambda shard: shard.index)
            index = self.world.dice.choice((*by_begin, newest)).index
            self.world.note(None, "split", stream, index)
            self.store.split(stream, index)

    def _delete_stream(self) -> None:
        if "b" in self.store.streams:
            self.world.note(None, "delete stream b")
            self.store.delete_stream("b")
        else:
            self.world.note(None, "create stream b")
            self.store.create_stream("b", self.world.dice.randint(1, 3))

    # What administrators ask for, from what they saw of the group

    def _some_shard(self) -> tuple[ShardId, int] | None:
        shards = sorted(self.checks.group.shards)
        if not shards:
            return None
        shard = self.world.dice.choice(shards)
        return shard, self.checks.group.shards[shard].epoch

    def _fence(self) -> None:
        some = self._some_shard()
        if some:
            event = Fence(*some)
            self._ask(event, lambda reply: self.checks.acknowledged(event, reply))

    def _stop(self) -> None:
        some = self._some_shard()
        if some:
            shard, epoch = some
            event = Stop(shard, epoch)
            if self.checks.group.shards[shard].stopped:
                self._ask(event)
            else:
                self._ask(event, lambda reply: self.checks.acknowledged(event, reply))

            def resume() -> None:
                standing = self.checks.group.shards.get(shard)
                if standing is not None:
                    self._ask(Resume(shard, standing.epoch))

            self.world.after(self.world.about(5), resume)

    def _force(self) -> None:
        stream = self.world.dice.choice(STREAMS)
        info = self.store.streams.get(stream)
        if info is None or self.checks.group.streams.get(stream) != info.id:
            return
        index = self.world.dice.randrange(len(info.shards))
        shard = ShardId(stream, index)
        standing = self.checks.group.shards.get(shard)
        end = self.store.end_of(shard)
        to = self.world.dice.choice((0, end, self.world.dice.randint(0, end)))
        event = ForceCheckpoint(
            shard,
            self.checks.group.floor if standing is None else standing.epoch,
            to,
            finished=not info.shards[index].open and to == end,
            parents=info.shards[index].parents,
        )
        self._ask(event, lambda reply: self.checks.acknowledged(event, reply))

    def _configure(self) -> None:
        seen = self.checks.group.configured
        if self.world.chance(0.5):
            self._ask(Configure(seen, order=self.world.chance(0.5)))
        else:
            timeout_s = self.world.dice.choice((SESSION_S, SESSION_S / 2, 20.0))
            self._ask(Configure(seen, timeout_s=timeout_s))

    def _delete(self) -> None:
        self.world.note(None, "delete the group")
        self._ask(Delete(self.checks.group.born))

    def _ask(self, event: Event, done: Done = lambda reply: None) -> None:
        admin = self.admin
        self.net.call(admin.node, admin.coordinator, event, done)
        if self.world.chance(self.swarm.double):
            late_s = self.world.about(5.0)
            self.world.after(
                late_s,
                lambda: self.net.call(admin.node, admin.coordinator, event, lambda reply: None),
            )
