"""What a seed draws for a group simulation: which faults exist, and how often they happen.

Many runs with a few kinds of faults each find more bugs than one run with all kinds."""

from __future__ import annotations

import random
from dataclasses import dataclass

SESSION_S = 10.0
HEARTBEAT_S = 3.0
DRIFT_MAX = 0.02


@dataclass(frozen=True, slots=True)
class Swarm:
    members: int
    twins: bool
    """Whether two processes share a name."""
    servers: int
    """How many coordinators stand behind a network; 0: each member has its own, as in the
    library."""
    shards: int
    order: bool
    heals: bool
    """Whether faults end at three quarters of the time, and the group must come to rest."""
    lone: bool
    """Whether only one member comes back when the faults end."""
    latency_s: float
    spikes: float
    conflict: float
    unknown: float
    stale: float
    drop: float
    double: float
    partitions: float
    """How often per simulated hour, as the numbers below down to `signs_fail`."""
    kills: float
    pauses: float
    everyone_pauses: float
    slow: float
    leaves: float
    splits: float
    forces: float
    fences: float
    stops: float
    configures: float
    deletes: float
    stream_deletes: float
    signs_fail: float
    drift: float
    dead_is_seen: bool
    own_allocator: bool
    """Whether members use an allocator that administrators do not know; only without servers."""
    allocator: str


FAULTS = (
    "everyone_pauses", "kills", "pauses", "partitions", "slow", "drop", "double", "unknown",
    "conflict", "stale", "spikes", "signs_fail", "drift", "leaves", "splits", "forces", "fences",
    "stops", "configures", "deletes", "stream_deletes", "twins", "servers",
)  # fmt: skip


def drawn(seed: int) -> Swarm:
    dice = random.Random(f"swarm {seed}")

    def some(share: float, low: float, high: float) -> float:
        return dice.uniform(low, high) if dice.random() < share else 0.0

    return Swarm(
        members=dice.randint(2, 5),
        twins=dice.random() < 0.2,
        servers=dice.choice((0, 0, 1, 2, 3)),
        shards=dice.randint(1, 8),
        order=dice.random() < 0.6,
        heals=dice.random() < 0.6,
        lone=dice.random() < 0.2,
        latency_s=dice.choice((0.001, 0.01, 0.05, 0.3)),
        spikes=some(0.4, 0.001, 0.03),
        conflict=some(0.5, 0.01, 0.3),
        unknown=some(0.5, 0.01, 0.3),
        stale=some(0.3, 0.01, 0.3),
        drop=some(0.5, 0.01, 0.3),
        double=some(0.5, 0.01, 0.3),
        partitions=some(0.4, 20, 120),
        kills=some(0.7, 20, 300),
        pauses=some(0.7, 20, 300),
        everyone_pauses=some(0.2, 4, 20),
        slow=some(0.2, 10, 60),
        leaves=some(0.5, 20, 100),
        splits=some(0.6, 20, 80),
        forces=some(0.4, 10, 60),
        fences=some(0.4, 10, 60),
        stops=some(0.3, 10, 60),
        configures=some(0.4, 10, 60),
        deletes=some(0.15, 4, 12),
        stream_deletes=some(0.2, 4, 20),
        signs_fail=some(0.2, 4, 30),
        drift=some(0.5, 0.001, DRIFT_MAX),
        dead_is_seen=dice.random() < 0.5,
        own_allocator=dice.random() < 0.5,
        allocator=dice.choice(("balanced", "balanced", "weighted", "single", "round_robin")),
    )
