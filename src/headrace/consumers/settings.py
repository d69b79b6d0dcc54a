"""What a user says about a consumer: the keywords of `Hub.consumer`, checked once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.consumers.reader import Limits
from headrace.core.errors import BadName, BadSetting
from headrace.core.groups.allocators import Allocator, named
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.model import ShardId
from headrace.core.names import checked_name
from headrace.core.quantities import Size, instant_ms, seconds, size_bytes
from headrace.groups.member_settings import default_name, session_of
from headrace.streams.start import Start

GrantCallback = Callable[[list[ShardId]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    subscription: Subscription
    name: str
    member: MemberSettings | None
    """How the consumer takes part in its group; None: it has no group, but shards of its own."""
    shards: Sequence[int] | None
    """The shards of its own; None: the group gives it shards."""
    start: Start
    decode: Callable[[bytes], Any] | None
    limits: Limits
    commit_every_s: float
    handler_s_max: float
    auto_mark: bool
    on_grant: GrantCallback | None
    on_revoke: GrantCallback | None

    @property
    def group(self) -> str | None:
        return None if self.member is None else self.member.group

    @classmethod
    def parsed(cls, streams: str | Sequence[str], **keywords: Any) -> ConsumerSettings:
        """The keywords are those of `Hub.consumer`, all of them. `BadSetting` or another `Invalid`
        says what to write instead."""
        subscription = Subscription(streams)
        if (keywords["group"] is None) == (keywords["shards"] is None):
            raise BadSetting(
                "a consumer has a group that shares the shards, group='billing', or its own "
                "shards, shards=[0, 2]: give one of them"
            )
        _check_start(keywords["start"])
        for what in ("decode", "on_grant", "on_revoke"):
            if keywords[what] is not None and not callable(keywords[what]):
                raise BadSetting(f"{what} {keywords[what]!r}: a function, or None")
        for what in ("auto_mark", "create"):
            if not isinstance(keywords[what], bool):
                raise BadSetting(f"{what} {keywords[what]!r}: True or False")
        limits = _limits(keywords)
        name = default_name() if keywords["name"] is None else keywords["name"]
        if not isinstance(name, str):
            raise BadSetting(f"name {name!r}: text, its own for each consumer, or none")
        return cls(
            subscription=subscription,
            name=name,
            member=None if keywords["group"] is None else _member(name, keywords),
            shards=keywords["shards"],
            start=keywords["start"],
            decode=keywords["decode"],
            limits=limits,
            commit_every_s=seconds(keywords["commit_every"], what="commit_every"),
            handler_s_max=seconds(keywords["max_wait_handler"], what="max_wait_handler"),
            auto_mark=keywords["auto_mark"],
            on_grant=keywords["on_grant"],
            on_revoke=keywords["on_revoke"],
        )


def _limits(keywords: dict[str, Any]) -> Limits:
    prefetch, max_records = keywords["prefetch"], keywords["max_records"]
    max_bytes, min_bytes = keywords["max_bytes"], keywords["min_bytes"]
    limits = Limits(
        prefetch=_count("prefetch", prefetch),
        max_records=_count("max_records", prefetch if max_records is None else max_records),
        max_bytes=_size("max_bytes", max_bytes),
        min_bytes=_size("min_bytes", min_bytes),
        max_wait_s=seconds(keywords["max_wait"], what="max_wait"),
    )
    if limits.min_bytes > limits.max_bytes:
        raise BadSetting(f"min_bytes {min_bytes} is more than max_bytes {max_bytes}")
    return limits


def _member(name: str, keywords: dict[str, Any]) -> MemberSettings:
    group = keywords["group"]
    if group == "":
        raise BadName(group, "a group needs one, as in group='billing'")
    return MemberSettings(
        group=checked_name(group),
        name=name,
        allocator=_allocator(keywords["allocator"]),
        capacity=keywords["capacity"],
        order=keywords["order"],
        create=keywords["create"],
        **session_of(keywords["session"], keywords["heartbeat"]),
    )


def _allocator(allocator: object) -> Allocator:
    if isinstance(allocator, Allocator):
        return allocator
    if not isinstance(allocator, str):
        raise BadSetting(f"allocator {allocator!r}: a name like 'balanced', or an Allocator")
    return named(allocator)


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
