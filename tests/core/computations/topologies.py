"""Computations and topologies to test with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from headrace.core.computations.computation import Computation, computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology

Streams = str | Sequence[str]


def handler(record: Any) -> None: ...


def computation_of(
    name: str, inputs: Streams, outputs: Streams = (), **settings: Any
) -> Computation:
    return computation(inputs=inputs, outputs=outputs, name=name, **settings)(handler)


def names(topology: Topology) -> list[str]:
    return [each.name for each in topology.computations]


CHAIN = Topology(
    computation_of("bill", "orders", "invoices", policy=Policy(retries=3, then="dead-letter")),
    computation.batch(inputs="invoices", outputs="index", name="index", capacity=100)(handler),
    computation_of("post", "index", concurrency=2, start="latest"),
    streams={"orders": {"shards": 4, "codec": "json", "retention": "168h"}, "index": {"shards": 1}},
)
DIAMOND = Topology(
    computation_of("left", "orders", "a"),
    computation_of("right", "orders", "b"),
    computation_of("join", ["a", "b"], "all"),
)
TWO_BY_TWO = Topology(computation_of("both", ["x", "y"], ["p", "q"]), computation_of("last", "q"))


def any_computations(count: int, dice: random.Random) -> list[Computation]:
    """Computations wired at random without a cycle, in any order."""
    computations = [
        computation_of(
            f"c{at}",
            dice.sample([f"s{k}" for k in range(at + 1)], dice.randint(1, min(3, at + 1))),
            dice.sample(
                [f"s{k}" for k in range(at + 1, count + 2)], dice.randint(0, min(2, count + 1 - at))
            ),
        )
        for at in range(count)
    ]
    dice.shuffle(computations)
    return computations
