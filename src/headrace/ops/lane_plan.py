"""How many lanes a topology needs: what ``headrace run --plan`` shows."""

from __future__ import annotations

from typing import Any

from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import UnknownStream
from headrace.hub.hub import Hub


def advised_lanes(shards: int, replicas: int) -> int:
    """How many lanes a replica should have: a fifth more than its share of the shards, so that no
    shard waits when one replica is lost. 5 for 16 shards and 4 replicas."""
    return -(-shards * 6 // (replicas * 5))


def plan_lanes(
    topology: Topology, settings: RunSettings, hub: Hub | None, replicas: int
) -> list[Any]:
    """One row for each computation: its shards, and the lanes for them."""
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
    """How many shards a stream has, or would be made with."""
    if hub is not None:
        try:
            return hub.stream(name).shards
        except UnknownStream:
            pass
    made = settings.stream(name, topology)
    if not made and name in topology.sources:
        raise UnknownStream(name)
    return int(made.get("shards", 1))
