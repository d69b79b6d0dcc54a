"""The plan of a proof: what is done to the replicas, and when. A seed always draws the same
plan."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

PAUSE_S = (0.2, 0.9)
"""The shortest and the longest time between two deeds."""
STOPS = (0.5, 0.9, 1.5, 3.0)
"""How long a replica is stopped, in sessions: shorter and longer than one session."""
KILLS_SHARE = 0.6

DeedKind = Literal["kill", "stop", "start"]


class Deed(NamedTuple):
    at_s: float
    """When, after the load began."""
    kind: DeedKind
    slot: int
    """Which replica; the next one if this one does not work at that time."""
    for_s: float = 0.0
    """How long the replica is stopped."""
    locked: bool = True
    """Whether the replica may be stopped while it holds the write lock of the hub: then no process
    can write until it goes on."""


def drawn(seed: str, deeds: int, replicas: int, session_s: float) -> list[Deed]:
    dice = random.Random(f"{seed} prove plan")
    plan, at_s = [], 0.0
    for _ in range(deeds):
        at_s += dice.uniform(*PAUSE_S)
        slot = dice.randrange(replicas)
        if dice.random() < KILLS_SHARE:
            plan.append(Deed(at_s, "kill", slot))
        else:
            plan.append(Deed(at_s, "stop", slot, dice.choice(STOPS) * session_s))
    return plan
