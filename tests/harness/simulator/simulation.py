"""The group simulation: one seed from beginning to end."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, replace

from headrace.core.model import ShardId
from headrace.groups.coordinator import Coordinator
from tests.harness.simulator.chaos import Chaos
from tests.harness.simulator.checks import Checks, Violation
from tests.harness.simulator.net import Net
from tests.harness.simulator.observer import SimObserver
from tests.harness.simulator.replica import SimReplica
from tests.harness.simulator.store import STREAMS, SimStore
from tests.harness.simulator.swarm import FAULTS, HEARTBEAT_S, SESSION_S, Swarm, drawn
from tests.harness.simulator.world import Node, World

DURATION_S = 900.0
REST_S = 2 * SESSION_S + 4 * HEARTBEAT_S
"""Within this time after the last fault every shard has an owner (L1, L3, L4)."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    seed: int
    hours: float
    digest: int
    counts: Counter[str]
    hand_overs: int
    edges: frozenset[tuple[str, str, str]]
    violation: str = ""
    story: tuple[str, ...] = ()


def simulate(
    seed: int, duration_s: float = DURATION_S, swarm: Swarm | None = None
) -> SimulationOutcome:
    """Run one seed. The outcome has the violation, if any, and the story of its shard."""
    simulation = _Simulation(seed, swarm or drawn(seed))
    violation = ""
    story: tuple[str, ...] = ()
    try:
        simulation.run(duration_s)
    except Violation as found:
        violation = str(found)
        story = tuple(simulation.world.story(found.shard))
    except Exception as error:
        violation = f"crash: {type(error).__name__}: {error}"
        story = (*simulation.world.story(None), *traceback.format_exception(error))
    world, checks = simulation.world, simulation.checks
    return SimulationOutcome(
        seed,
        world.now_s / 3600,
        world.digest,
        world.counts,
        checks.hand_overs,
        frozenset(checks.edges),
        violation,
        story,
    )


def shrunk(
    outcome: SimulationOutcome, duration_s: float = DURATION_S
) -> tuple[SimulationOutcome, list[str]]:
    """The same violation with as few kinds of faults as possible, and the names of these faults."""
    swarm = drawn(outcome.seed)
    for fault in FAULTS:
        if getattr(swarm, fault):
            less = replace(swarm, **{fault: 0})  # type: ignore[arg-type]
            found = simulate(outcome.seed, duration_s, less)
            if found.violation[:2] == outcome.violation[:2]:
                swarm, outcome = less, found
    return outcome, [fault for fault in FAULTS if getattr(swarm, fault)]


class _Simulation:
    def __init__(self, seed: int, swarm: Swarm) -> None:
        world = self.world = World(seed)
        self.swarm = swarm
        store = self.store = SimStore(world, swarm)
        net = self.net = Net(world, swarm, store)
        checks = self.checks = Checks(world, store, net)
        store.create_stream("a", swarm.shards)
        store.create_stream("b", 2)

        def node(name: str) -> Node:
            return Node(world, name, 1.0 + swarm.drift * (2 * world.dice.random() - 1))

        def observer(name: str) -> SimObserver:
            own = node(name)
            coordinator = Coordinator(store, dice=world.dice.random, now_ms=world.now_ms)
            return SimObserver(own, net, store, coordinator, checks)

        names = [f"m{n}" for n in range(swarm.members)]
        nodes = {name: name for name in names} | ({"twin of m0": "m0"} if swarm.twins else {})
        self.replicas = [
            SimReplica(node(own), name, net, store, swarm, checks) for own, name in nodes.items()
        ]
        self.servers = [observer(f"server{n}") for n in range(swarm.servers)]
        net.servers = [(server.node, server.coordinator) for server in self.servers]
        checks.replicas = self.replicas
        self.chaos = Chaos(
            world, swarm, store, net, self.replicas, self.servers, observer("admin"), checks
        )

    def run(self, duration_s: float) -> None:
        for server in self.servers:
            server.start(lambda: None)
        for replica in self.replicas:
            replica.node.alive = False
            self.world.after(self.world.about(5.0), replica.start)
        self.chaos.begin()
        if not self.swarm.heals:
            self.world.run(duration_s)
            return
        self.world.run(0.75 * duration_s)
        self.chaos.heal()
        healed_s = self.world.now_s
        self.chaos.producing = False
        self.world.run(healed_s + REST_S)
        self._check_everything_is_owned()
        self.world.run(duration_s)
        self._check_rest()

    # Liveness

    def _check_everything_is_owned(self) -> None:
        group = self.checks.group
        if not group.members:
            raise Violation("L4", None, f"the group has no member {REST_S} s after the last fault")
        for shard, standing in sorted(group.shards.items()):
            if standing.state == "free":
                raise Violation("L1", shard, f"free {REST_S} s after the last fault")
        for replica in self.replicas:
            if not replica.wanted or replica.node.name in self.net.muted:
                continue
            since_s = replica.waiting_since_s
            if since_s is not None and self.world.now_s - since_s > REST_S:
                raise Violation("L5", None, f"{replica.name} waits for an answer since {since_s}")
            if replica.seat is None or replica.name not in group.members:
                raise Violation("L4", None, f"{replica.name} is no member {REST_S} s after faults")

    def _check_rest(self) -> None:
        group = self.checks.group
        counts = {name: len(group.owned(name)) for name in group.members}
        even = group.allocator.name in ("balanced", "own", "round_robin")
        if even and max(counts.values()) - min(counts.values()) > 1:
            raise Violation("L3", None, f"shards are held unevenly: {counts}")
        quiet_s = self.world.now_s - self.checks.last_change_of_owner_s
        for shard, standing in sorted(group.shards.items()):
            if standing.state not in ("held",):
                raise Violation("L1", shard, f"is {standing.state} at the end")
        for stream in STREAMS:
            for part in self.store.streams[stream].shards:
                one = ShardId(stream, part.index)
                if not self.store.is_read(one):
                    raise Violation("L2", one, f"read to {self.store.checkpoint(one).next} only")
        if quiet_s < 10 * HEARTBEAT_S:
            raise Violation("L3", None, f"owners changed {quiet_s:.1f} s before the end")
