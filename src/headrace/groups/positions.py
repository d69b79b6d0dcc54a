"""The position of a group in a shard, and a planned move of its checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from headrace.core.errors import BadSetting
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import Bounds, RecordId, ShardId, StreamInfo

SeekTo = Literal["earliest", "latest"] | int | datetime | timedelta
"""Where to read next: an offset, the first record not earlier than a time, or a duration ago."""


class Position(NamedTuple):
    """How far a group has come in a shard of an existing stream."""

    stream: StreamInfo
    shard: int
    checkpoint: int | None
    """None if the group has not committed there."""
    bounds: Bounds

    @property
    def next(self) -> int:
        """The first kept record that is still to be read."""
        return max(self.checkpoint or 0, self.bounds.start)

    @property
    def lag(self) -> int:
        return Checkpoint(self.next).lag(self.bounds)

    @property
    def closed(self) -> bool:
        return not self.stream.shards[self.shard].open


class Seek(NamedTuple):
    """A checkpoint to be moved."""

    shard: ShardId
    checkpoint: int | None
    to: int
    skipped: int
    """Records that will not be read."""
    repeated: int
    """Records that will be read once more."""
    finished: bool
    """The shard is closed, and this is its end."""
    parents: tuple[int, ...]
    resumes: bool = False
    """The shard is stopped, and goes on from there."""


def seek_of(shard: ShardId, position: Position, to: int) -> Seek:
    return Seek(
        shard,
        position.checkpoint,
        to,
        skipped=max(to - position.next, 0),
        repeated=max(position.next - to, 0),
        finished=position.closed and to == position.bounds.end,
        parents=position.stream.shards[position.shard].parents,
    )


def check_is_next(name: str, record: RecordId, records: int, position: Position) -> None:
    if records != 1:
        raise BadSetting(f"{record} is one record, not {records}: name a shard to skip several")
    if record.offset != position.next:
        there = record._replace(offset=position.next)
        raise BadSetting(
            f"{record} is not what group {name!r} reads next there, that is {there}: "
            "nothing was skipped"
        )
