"""What a seed draws for a dispatch simulation: lanes, computations, and which faults exist.

Many runs with a few kinds of faults each find more bugs than one run with all kinds."""

from __future__ import annotations

import random
from typing import NamedTuple

from headrace.core.computations.dispatch import Rules
from headrace.core.computations.settings import Allocation

COST_S_MIN = 0.002
"""The shortest time that a record takes."""


class Draw(NamedTuple):
    """The settings of one run. Shares of slices are between 0 and 1."""

    lanes: int
    allocation: Allocation
    shards: int
    rules: dict[str, Rules]
    cost_s: dict[str, float]
    """How long a record takes, by computation."""
    deals_first: bool
    """Whether ended grants are asked for after slices were assigned, instead of before."""
    reuse: bool
    """Whether a new lane takes the number of the lane it replaces."""
    hangs: float
    """The share of slices whose handler hangs."""
    deaths: float
    """The share of slices during which the lane dies."""
    fails: float
    """The share of slices that are parked after a failure."""
    gives_up: float
    """The share of slices that stop their shard."""
    goes_back: float
    """The share of slices that end before they began."""
    doubts: float
    """The share of slices whose commit has an unknown outcome."""
    late: float
    """The share of reports that come late."""
    twice: float
    """The share of reports that come twice."""
    timers: float
    """The share of slices that set a timer."""
    trouble_s: float
    """The average time between two faults of the grants."""

    @classmethod
    def of(cls, seed: int) -> Draw:
        dice = random.Random(f"dispatch {seed}")

        def some(share: float, most: float) -> float:
            return dice.uniform(0, most) if dice.random() < share else 0.0

        names = ("parse", "bill", "send")[: dice.randint(1, 3)]
        return cls(
            lanes=dice.randint(1, 4),
            allocation=dice.choice(("pool", "pool", "static")),
            shards=dice.randint(1, 5),
            rules={name: _some_rules(dice) for name in names},
            cost_s={name: dice.choice((COST_S_MIN, 0.02, 0.1)) for name in names},
            deals_first=dice.random() < 0.5,
            reuse=dice.random() < 0.5,
            hangs=some(0.5, 0.1),
            deaths=some(0.5, 0.1),
            fails=some(0.6, 0.3),
            gives_up=some(0.4, 0.1),
            goes_back=some(0.3, 0.1),
            doubts=some(0.4, 0.1),
            late=some(0.5, 0.2),
            twice=some(0.5, 0.3),
            timers=some(0.5, 0.4),
            trouble_s=dice.choice((0.2, 0.5, 2.0)),
        )


def _some_rules(dice: random.Random) -> Rules:
    batch = dice.random() < 0.3
    return Rules(
        concurrency=dice.choice((None, None, 1, 2)),
        capacity=dice.randint(2, 12) if batch else None,
        threshold_s=dice.uniform(0.1, 3.0) if batch else 0.0,
    )
