"""What can be loaded, but not by a lane."""

from __future__ import annotations

from headrace import Topology, computation
from headrace.engines.remote_lane import is_lane

if is_lane():
    raise ValueError("no table\nof prices here")


@computation(inputs="orders")
def serve(record: object) -> None:
    pass


topology = Topology(serve, streams={"orders": {"shards": 1}})
