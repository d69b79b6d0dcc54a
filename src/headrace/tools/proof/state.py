"""What a group's computation remembers, as it is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.core import store_keys
from headrace.core.model import ShardId
from headrace.core.transaction import state_entry
from headrace.hub.hub import Hub

StoredState = dict[ShardId, dict[str, Any]]

_decode = msgspec.msgpack.Decoder().decode


def stored_state(hub: Hub, group: str, inputs: tuple[str, ...]) -> StoredState:
    """By shard; shards without any are left out."""
    found: StoredState = {}
    for name in inputs:
        info = hub.stream(name).info
        for shard in info.shards:
            prefix = store_keys.state_prefix(group, info.id, shard.index)
            rows = [state_entry(row.value) for _, row in hub.backend.scan(prefix)]
            if rows:
                told = {key.decode(): _decode(value) for key, value in rows}
                found[ShardId(name, shard.index)] = told
    return found
