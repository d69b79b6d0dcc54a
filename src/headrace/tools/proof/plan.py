"""What will be done to the replicas, and when: drawn from a seed, the same each time."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

PAUSE_S = (0.2, 0.9)
"""Between two deeds."""
STOPS = (0.5, 0.9, 1.5, 3.0)
"""How long one is stopped, in sessions: shorter and longer than one."""
KILLS_SHARE = 0.6


DeedKind = Literal["kill", "stop", "start"]


class Deed(NamedTuple):
    at_s: float
    """After the load began."""
    kind: DeedKind
    slot: int
    """Which of the replicas; the next one if that one does nothing just then."""
    for_s: float = 0.0
    """How long it is stopped."""
    locked: bool = True
    """Whether it may be stopped at a moment when nobody can write until it goes on: with the lock
    of the hub in its hands."""


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
