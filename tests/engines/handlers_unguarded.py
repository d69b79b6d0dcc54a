"""A program that runs its topology whenever it is loaded, by its own lanes too."""

from __future__ import annotations

import os

import headrace
from headrace import Topology, computation


@computation(inputs="orders")
def serve(record: object) -> None:
    pass


topology = Topology(serve, streams={"orders": {"shards": 1}})
if "UNGUARDED_HUB" in os.environ:
    where = os.environ["UNGUARDED_HUB"]
    with headrace.start(topology, where, processes=True, reference=__file__) as running:
        running.wait(until_caught_up=True)
