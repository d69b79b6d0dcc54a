"""How far a group has come in a shard: the next offset to read, and how it may move."""

from __future__ import annotations

import struct
from collections import deque
from typing import NamedTuple

from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.model import Bounds, ShardId, Slice

_CHECKPOINT = struct.Struct(">QQ")


class Checkpoint(NamedTuple):
    """The next offset to read, and how many commits led there."""

    next: int = 0
    commits: int = 0

    def advanced(self, done: Slice) -> Checkpoint | None:
        """Behind the slice; None if it begins before the checkpoint, so was committed already."""
        return None if done.start < self.next else Checkpoint(done.end, self.commits + 1)

    def moved(self, shard: ShardId, to: int, bounds: Bounds) -> Checkpoint:
        """Moved by force, back or forth, to what can be read; else `OffsetOutOfRange`."""
        if isinstance(to, bool) or not isinstance(to, int):
            raise BadSetting(f"a checkpoint at {to!r}: an offset is a whole number")
        if not bounds.start <= to <= bounds.end:
            raise OffsetOutOfRange(shard.stream, shard.index, to, *bounds)
        return Checkpoint(to, self.commits)

    def lag(self, bounds: Bounds) -> int:
        """How many kept records are still to be read."""
        return max(bounds.end - max(self.next, bounds.start), 0)

    def encoded(self) -> bytes:
        return _CHECKPOINT.pack(self.next, self.commits)

    @classmethod
    def decoded(cls, value: bytes) -> Checkpoint:
        return cls(*_CHECKPOINT.unpack(value))


class HandedOut:
    """What was handed out of one shard under one grant, and what of it is done, in any order.

    The checkpoint may only move to `next`: behind everything that is done, before anything that is
    not."""

    def __init__(self, start: int) -> None:
        self.committed = start
        self.given = start
        """Where the next slice to be handed out begins."""
        self.next = start
        self._open: deque[int] = deque()
        self._ends: dict[int, int] = {}
        self._done: set[int] = set()
        self._since: float | None = None

    def give(self, end: int) -> tuple[int, int]:
        """Hand out what lies between the last slice and ``end``."""
        assert end > self.given, f"nothing to give from {self.given} to {end}"
        start, self.given = self.given, end
        self._open.append(start)
        self._ends[start] = end
        return start, end

    def done(self, start: int, now: float) -> None:
        """The slice that begins there is done; repeated or unknown, this changes nothing."""
        if start not in self._ends:
            return
        self._done.add(start)
        while self._open and self._open[0] in self._done:
            first = self._open.popleft()
            self._done.discard(first)
            self._moved(self._ends.pop(first), now)

    def _moved(self, to: int, now: float) -> None:
        self.next = to
        if self._since is None:
            self._since = now

    def done_to(self, end: int, now: float) -> None:
        """All that was handed out before this offset is done."""
        while self._open and self._ends[self._open[0]] <= end:
            self.done(self._open[0], now)
        if self._open and self._open[0] < end:
            rest = self._ends.pop(self._open.popleft())
            self._open.appendleft(end)
            self._ends[end] = rest
            self._moved(end, now)

    def take_back(self, to: int) -> None:
        """What lies behind this offset was not handed out after all."""
        while self._open and self._open[-1] >= to:
            del self._ends[self._open.pop()]
        if self._open and self._ends[self._open[-1]] > to:
            self._ends[self._open[-1]] = to
        self.given = min(self.given, to)

    @property
    def unmarked(self) -> int:
        """How many slices are handed out and not done, or not yet counted as done because one
        before them is not."""
        return len(self._open)

    def due(self, now: float, every_s: float) -> bool:
        """Whether something done has waited that long for its commit, also if nothing follows."""
        return self._since is not None and now - self._since >= every_s

    def commit(self, end: int, now: float) -> None:
        """The checkpoint is stored there; what was done meanwhile waits from now on."""
        self.committed = end
        self._since = None if self.next <= end else now
