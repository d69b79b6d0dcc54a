"""What grants a consumer its shards: a place in a group, or the user who names the shards."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.consumers.settings import ConsumerSettings
from headrace.core.errors import BadSetting
from headrace.core.groups.subscription import Subscription
from headrace.core.ports import Backend, Grant, Log, Membership
from headrace.core.records.limits import check_shard
from headrace.groups.fixed_shards import FixedShards
from headrace.groups.home import home_of


def membership_of(backend: Backend, settings: ConsumerSettings) -> Membership:
    """The membership of a consumer with these settings, which has not joined yet."""
    if settings.member is not None:
        return home_of(backend).membership(settings.subscription, settings.member)
    return FixedShards(_grants(backend.log, settings.subscription, settings.shards))


def _grants(records: Log, subscription: Subscription, shards: object) -> list[Grant]:
    if len(subscription.names) != 1 or subscription.patterns:
        raise BadSetting("shards=… are those of one stream: name one, without a pattern")
    info = records.stream(subscription.names[0])
    if not isinstance(shards, Sequence) or isinstance(shards, str) or not shards:
        raise BadSetting(f"shards {shards!r}: a list of numbers, as in [0, 2]")
    for shard in shards:
        check_shard(info, shard)
    return [Grant("", info, shard, b"") for shard in dict.fromkeys(shards)]
