"""Measures what a heartbeat and a rebalance cost the group machine and the store."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import (
    Granted,
    Heartbeat,
    Join,
    Leave,
    Release,
    ShardFacts,
    StreamFacts,
)
from headrace.core.groups.group_bytes import encoded
from headrace.core.groups.machine import step
from headrace.core.store_keys import group_key
from headrace.groups.coordinator import Coordinator
from headrace.tools.bench.measure import Say, quantile, timed

SHARDS = 1_000
MEMBERS = 50
HEARTBEATS = 2_000
ROUNDS = 7

_GROUP = "bench"
_FACTS = StreamFacts("orders", 1, tuple(ShardFacts(index) for index in range(SHARDS)))


def measured(place: Path, say: Say) -> dict[str, Any]:
    backend = LmdbBackend(place / "machine")
    try:
        coordinator = Coordinator(backend)
        say("members join")
        for number in range(MEMBERS):
            _join(coordinator, f"member{number:02}")
        _settle(coordinator)
        figures: dict[str, Any] = {"shards": SHARDS, "members": MEMBERS}
        say("heartbeats")
        figures |= _heartbeats(backend, coordinator)
        say("rebalances")
        figures |= _rebalances(coordinator)
        figures["group_bytes"] = len(encoded(coordinator.load(_GROUP)))
        return figures
    finally:
        backend.close()


def _heartbeats(backend: LmdbBackend, coordinator: Coordinator) -> dict[str, Any]:
    """Heartbeats through the coordinator and the store; they must not write."""
    group = coordinator.load(_GROUP)
    beats = [_heartbeat(coordinator, name) for name in group.members]
    before = backend.changes()
    key = group_key(_GROUP)
    took, raw, pure = [], [], []
    for turn in range(HEARTBEATS):
        beat = beats[turn % len(beats)]
        took.append(timed(lambda beat=beat: coordinator.apply(_GROUP, beat)))  # type: ignore[misc]
        raw.append(timed(lambda: backend.get(key)))
        pure.append(timed(lambda beat=beat: step(group, beat)))  # type: ignore[misc]
    return {
        "heartbeat_us": round(statistics.median(took) * 1e6, 1),
        "heartbeat_us_p99": round(quantile(took, 0.99) * 1e6, 1),
        "heartbeat_get_us": round(statistics.median(raw) * 1e6, 1),
        "heartbeat_step_us": round(statistics.median(pure) * 1e6, 1),
        "heartbeat_writes": backend.changes() - before,
    }


def _rebalances(coordinator: Coordinator) -> dict[str, Any]:
    """A join at full size until it is stored: shards are dealt anew, with the moves this needs."""
    took, pure, moves = [], [], []
    for turn in range(ROUNDS):
        join = Join("newcomer", turn + 1, (_FACTS,), balanced)
        before = coordinator.load(_GROUP)
        pure.append(timed(lambda before=before, join=join: step(before, join)))  # type: ignore[misc]
        took.append(timed(lambda join=join: coordinator.apply(_GROUP, join)))  # type: ignore[misc]
        after = coordinator.load(_GROUP)
        moves.append(sum(s.state == "moving" for s in after.shards.values()))
        _settle(coordinator)
        coordinator.apply(_GROUP, Leave("newcomer", turn + 1))
    return {
        "rebalance_ms": round(statistics.median(took) * 1e3, 2),
        "rebalance_step_ms": round(statistics.median(pure) * 1e3, 2),
        "rebalance_moves": statistics.median(moves),
    }


def _join(coordinator: Coordinator, name: str) -> None:
    reply = coordinator.apply(_GROUP, Join(name, 1, (_FACTS,), balanced))
    assert isinstance(reply, Granted), reply


def _settle(coordinator: Coordinator) -> None:
    """Every member lets go of the shards that move to another."""
    for name, member in coordinator.load(_GROUP).members.items():
        owned = coordinator.load(_GROUP).owned(name).items()
        moving = {shard: s.epoch for shard, s in owned if s.state == "moving"}
        if moving:
            coordinator.apply(_GROUP, Release(name, member.incarnation, moving))


def _heartbeat(coordinator: Coordinator, name: str) -> Heartbeat:
    group = coordinator.load(_GROUP)
    held = {shard: standing.epoch for shard, standing in group.owned(name).items()}
    return Heartbeat(name, group.members[name].incarnation, 1, group.version, held)
