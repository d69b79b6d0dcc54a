"""The stored state of a computation."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.model import ShardId
from headrace.hub.hub import Hub

StoredState = dict[ShardId, dict[str, Any]]

_decode = msgspec.msgpack.Decoder().decode


def stored_state(hub: Hub, group: str, inputs: tuple[str, ...]) -> StoredState:
    """The state by shard, without shards that have none."""
    found: StoredState = {}
    for name in inputs:
        info = hub.stream(name).info
        for shard in info.shards:
            rows = dict(hub.home.state(group, info, shard.index).entries())
            if rows:
                entries = {key.decode(): _decode(value) for key, value in rows.items()}
                found[ShardId(name, shard.index)] = entries
    return found
