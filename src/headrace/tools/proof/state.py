"""The stored state of a computation."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core.model import ShardId
from headrace.hub.hub import Hub

State = dict[ShardId, dict[str, Any]]

_decode = msgspec.msgpack.Decoder().decode


def stored_state(hub: Hub, group: str, inputs: tuple[str, ...]) -> State:
    """The state of a group by shard; shards without state are left out."""
    found: State = {}
    for name in inputs:
        info = hub.stream(name).info
        for shard in info.shards:
            rows = dict(hub.home.state(group, info, shard.index).entries())
            if rows:
                state = {key.decode(): _decode(value) for key, value in rows.items()}
                found[ShardId(name, shard.index)] = state
    return found
