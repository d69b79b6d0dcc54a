"""What can be loaded, but not by a lane."""

from __future__ import annotations

from headrace import Topology, computation
from headrace.engines import lane_spec

if lane_spec.in_lane:
    raise ValueError("no table\nof prices here")


@computation(inputs="orders")
def serve(record: object) -> None:
    pass


topology = Topology(serve, streams={"orders": {"shards": 1}})
