"""The streams of a subscription as they are now, and what a group is told about them."""

from __future__ import annotations

import logging

from headrace.core.errors import UnknownStream
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import ShardFacts, StreamFacts
from headrace.core.groups.group import Group
from headrace.core.groups.subscription import Subscription
from headrace.core.model import ShardId, StreamInfo
from headrace.core.ports import Log, Store
from headrace.groups.stored import checkpoint_of

log = logging.getLogger("headrace")


def found_streams(subscription: Subscription, records: Log) -> dict[str, StreamInfo]:
    """The streams of a subscription by name; `UnknownStream` if a named one does not exist."""
    found = {name: records.stream(name) for name in subscription.names}
    found |= _matching(subscription, records)
    if not found:
        log.warning("no stream matches %s yet", ", ".join(subscription.patterns))
    return found


def current_streams(subscription: Subscription, records: Log) -> dict[str, StreamInfo]:
    """The streams of a subscription that exist now, by name."""
    found = {}
    for name in subscription.names:
        try:
            found[name] = records.stream(name)
        except UnknownStream:
            continue
    return found | _matching(subscription, records)


def _matching(subscription: Subscription, records: Log) -> dict[str, StreamInfo]:
    if not subscription.patterns:
        return {}
    return {info.name: info for info in records.streams() if subscription.matches(info.name)}


def facts_of(records: Log, store: Store, info: StreamInfo, group: Group) -> StreamFacts:
    """What a group is told about a stream. The group was read before: its epochs say under which
    grant a closed shard was found read to its end."""
    shards = []
    for shard in info.shards:
        finished_at = None
        if not shard.open and _is_read(records, store, info, shard.index, group.name):
            standing = group.shards.get(ShardId(info.name, shard.index))
            finished_at = 0 if standing is None else standing.epoch
        shards.append(ShardFacts(shard.index, shard.parents, finished_at))
    return StreamFacts(info.name, info.id, tuple(shards), group.version)


def facts_of_deleted(stream: str, group: Group) -> StreamFacts:
    """What a group is told about a stream that was deleted."""
    return StreamFacts(stream, group.streams[stream], ())


def _is_read(records: Log, store: Store, info: StreamInfo, shard: int, group: str) -> bool:
    checkpoint = checkpoint_of(store, group, info.id, shard) or Checkpoint()
    return checkpoint.lag(records.bounds(info, shard)) == 0
