"""What a user says about a consumer, checked and turned into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from headrace.consumers.consumer import Consumer, GrantCallback
from headrace.consumers.reader import Limits
from headrace.core.errors import BadName, BadSetting
from headrace.core.groups.allocators import Allocator, named
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.names import checked_name
from headrace.core.ports import Backend, Grant, Log, Membership
from headrace.core.quantities import Duration, Size, instant_ms, seconds, size_bytes
from headrace.core.records.limits import check_shard
from headrace.groups.fixed_shards import FixedShards
from headrace.groups.home import home_of
from headrace.groups.member_settings import default_name, session_of
from headrace.streams.start import Start


def made_consumer(
    backend: Backend,
    streams: str | Sequence[str],
    *,
    group: str | None,
    name: str | None,
    start: Start,
    shards: Sequence[int] | None,
    allocator: str | Allocator,
    decode: Callable[[bytes], Any] | None,
    prefetch: int,
    max_records: int | None,
    max_bytes: Size,
    min_bytes: Size,
    max_wait: Duration,
    max_wait_handler: Duration,
    commit_every: Duration,
    auto_mark: bool,
    session: Duration,
    heartbeat: Duration,
    on_grant: GrantCallback | None,
    on_revoke: GrantCallback | None,
    capacity: float,
    order: bool,
    create: bool,
) -> Consumer:
    subscription = Subscription(streams)
    if (group is None) == (shards is None):
        raise BadSetting(
            "a consumer has a group that shares the shards, group='billing', or its own shards, "
            "shards=[0, 2]: give one of them"
        )
    _check_start(start)
    for what, told in (("decode", decode), ("on_grant", on_grant), ("on_revoke", on_revoke)):
        if told is not None and not callable(told):
            raise BadSetting(f"{what} {told!r}: a function, or None")
    for what, flag in (("auto_mark", auto_mark), ("create", create)):
        if not isinstance(flag, bool):
            raise BadSetting(f"{what} {flag!r}: True or False")
    limits = Limits(
        prefetch=_count("prefetch", prefetch),
        max_records=_count("max_records", prefetch if max_records is None else max_records),
        max_bytes=_size("max_bytes", max_bytes),
        min_bytes=_size("min_bytes", min_bytes),
        max_wait_s=seconds(max_wait, what="max_wait"),
    )
    if limits.min_bytes > limits.max_bytes:
        raise BadSetting(f"min_bytes {min_bytes} is more than max_bytes {max_bytes}")
    own_name = default_name() if name is None else name
    if not isinstance(own_name, str):
        raise BadSetting(f"name {name!r}: text, its own for each consumer, or none")
    membership: Membership
    if group is not None:
        if group == "":
            raise BadName(group, "a group needs one, as in group='billing'")
        checked_name(group)
        membership = home_of(backend).membership(
            subscription,
            MemberSettings(
                group=group,
                name=own_name,
                allocator=_allocator(allocator),
                capacity=capacity,
                order=order,
                create=create,
                **session_of(session, heartbeat),
            ),
        )
    else:
        assert shards is not None
        membership = FixedShards(_fixed(backend.log, subscription, shards))
    return Consumer(
        backend.log,
        membership,
        name=own_name,
        group=group,
        named=subscription.names,
        limits=limits,
        start=start,
        decode=decode,
        commit_every_s=seconds(commit_every, what="commit_every"),
        handler_s_max=seconds(max_wait_handler, what="max_wait_handler"),
        auto_mark=auto_mark,
        on_grant=on_grant,
        on_revoke=on_revoke,
    )


def _allocator(allocator: str | Allocator) -> Allocator:
    if isinstance(allocator, Allocator):
        return allocator
    if not isinstance(allocator, str):
        raise BadSetting(f"allocator {allocator!r}: a name like 'balanced', or an Allocator")
    return named(allocator)


def _fixed(backend: Log, subscription: Subscription, shards: Sequence[int]) -> list[Grant]:
    if len(subscription.names) != 1 or subscription.patterns:
        raise BadSetting("shards=… are those of one stream: name one, without a pattern")
    info = backend.stream(subscription.names[0])
    if not isinstance(shards, Sequence) or isinstance(shards, str) or not shards:
        raise BadSetting(f"shards {shards!r}: a list of numbers, as in [0, 2]")
    for shard in shards:
        check_shard(info, shard)
    return [Grant("", info, shard, b"") for shard in dict.fromkeys(shards)]


def _check_start(start: object) -> None:
    if isinstance(start, datetime):
        instant_ms(start, what="start")
    elif start not in ("earliest", "latest", "error"):
        raise BadSetting(f"start {start!r}: 'earliest', 'latest', 'error' or a datetime")


def _count(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
        raise BadSetting(f"{what} {value!r}: a whole number, 1 to {10**9}")
    return value


def _size(what: str, value: Size) -> int:
    nbytes = size_bytes(value, what=what)
    if nbytes < 1:
        raise BadSetting(f"{what} {value}: at least 1")
    return nbytes
