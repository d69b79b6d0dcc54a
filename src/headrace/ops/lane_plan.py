"""How many lanes a topology wants: what ``headrace run --plan`` shows."""

from __future__ import annotations

from typing import Any

from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import UnknownStream
from headrace.hub.hub import Hub


def advised_lanes(shards: int, replicas: int) -> int:
    """A fifth more than the shards of each replica, so that one that is lost leaves no shard
    waiting: 5 for 16 shards and 4 replicas."""
    return -(-shards * 6 // (replicas * 5))


def plan(topology: Topology, settings: RunSettings, hub: Hub | None, replicas: int) -> list[Any]:
    """One row for each computation, and one for all of them at once."""
    rows = []
    for each in topology.computations:
        shards = sum(_shards(name, topology, settings, hub) for name in each.inputs)
        lanes = advised_lanes(shards, replicas)
        most = settings.concurrency(each)
        rows.append(
            {
                "computation": each.name,
                "shards": shards,
                "replicas": replicas,
                "shards_each": -(-shards // replicas),
                "concurrency": most,
                "lanes": lanes if most is None else min(lanes, most),
            }
        )
    return rows


def _shards(name: str, topology: Topology, settings: RunSettings, hub: Hub | None) -> int:
    """As it is, or as it would be made."""
    if hub is not None:
        try:
            return hub.stream(name).shards
        except UnknownStream:
            pass
    made = settings.stream(name, topology)
    if not made and name in topology.sources:
        raise UnknownStream(name)
    return int(made.get("shards", 1))
