"""How far a group has come in a shard: the next offset to read, and how it may move."""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.model import Bounds, ShardId, Slice

_CHECKPOINT = struct.Struct(">QQ")


class Checkpoint(NamedTuple):
    """The next offset to read, and how many commits led there."""

    next: int = 0
    commits: int = 0

    def advanced(self, done: Slice) -> Checkpoint | None:
        """The checkpoint behind the slice; None if the slice begins before the checkpoint, so that
        it was committed already."""
        return None if done.start < self.next else Checkpoint(done.end, self.commits + 1)

    def moved(self, shard: ShardId, to: int, bounds: Bounds) -> Checkpoint:
        """The checkpoint moved by force, back or forth; `OffsetOutOfRange` outside the bounds."""
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
