"""Where the reading of a shard begins, or goes on after its next records were trimmed."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Literal

from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import Begin, Grant, Log
from headrace.core.quantities import instant_ms
from headrace.core.records.limits import check_start
from headrace.process.clock import now_ms

log = logging.getLogger("headrace")

Start = Literal["earliest", "latest", "error"] | datetime
Where = Literal["earliest", "latest"] | int | datetime


def offset_of(records: Log, info: StreamInfo, shard: int, where: Where, what: str) -> int:
    """The offset that ``where`` names; `OffsetOutOfRange` if the shard has no such offset."""
    bounds = records.bounds(info, shard)
    if where == "earliest":
        return bounds.start
    if where == "latest":
        return bounds.end
    if isinstance(where, datetime):
        return records.offset_at(info, shard, instant_ms(where, what=what))
    if isinstance(where, bool) or not isinstance(where, int):
        raise BadSetting(f"{what} {where!r}: 'earliest', 'latest', an offset or a datetime")
    check_start(info, shard, where, bounds)
    return where


class StartPolicy:
    """Where to begin in a shard without a checkpoint: the user's choice."""

    def __init__(self, records: Log, start: Start) -> None:
        self._records = records
        self._start = start
        self._opened_ms = now_ms()

    @property
    def is_fixed(self) -> bool:
        """Whether all members would choose the same offset at any time."""
        return self._start == "earliest"

    def begin(self, begin: Begin) -> int:
        """The offset to begin at: the checkpoint, if there is one."""
        info, shard, at = begin.grant.stream, begin.grant.shard, begin.checkpoint
        bounds = self._records.bounds(info, shard)
        if at is None:
            return self._first(info, shard, bounds)
        if at < bounds.start:
            return self._after_trim(info, shard, at, bounds)
        if at > bounds.end:
            raise OffsetOutOfRange(info.name, shard, at, *bounds)
        return at

    def after_trim(self, grant: Grant, at: int, why: OffsetOutOfRange) -> int:
        """The offset to go on at, after the records at ``at`` were trimmed."""
        info, shard = grant.stream, grant.shard
        bounds = self._records.bounds(info, shard)
        if at > bounds.end:
            raise why
        return self._after_trim(info, shard, at, bounds)

    def _first(self, info: StreamInfo, shard: int, bounds: Bounds) -> int:
        if self._start == "error":
            raise BadSetting(
                f"{info.name}:{shard} has no checkpoint yet, and start='error' forbids to choose "
                "one: set it by headrace group seek GROUP --to …, or use start 'earliest' or "
                "'latest'"
            )
        if isinstance(self._start, datetime):
            return self._records.offset_at(info, shard, instant_ms(self._start, what="start"))
        # A stream or shard that is newer than this policy is read from its beginning: all its
        # records are later than "latest" was.
        is_new = info.created_ms > self._opened_ms or bool(info.shards[shard].parents)
        return bounds.start if self._start == "earliest" or is_new else bounds.end

    def _after_trim(self, info: StreamInfo, shard: int, at: int, bounds: Bounds) -> int:
        if self._start == "error":
            raise OffsetOutOfRange(info.name, shard, at, *bounds)
        to = self._first(info, shard, bounds)
        log.warning(
            "%s:%d: records %d to %d were dropped before they were read; going on at %d",
            info.name, shard, at, bounds.start - 1, to,
        )  # fmt: skip
        return to
