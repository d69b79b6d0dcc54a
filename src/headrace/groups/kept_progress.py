"""How far the groups have come that the place of a log keeps by itself, as Kafka does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headrace.core.errors import BadSetting
from headrace.core.model import ShardId
from headrace.core.ports import KeptGroups, Log
from headrace.groups.positions import Position


class GroupProgress(NamedTuple):
    """How far a group has come, by shard."""

    group: str
    positions: dict[ShardId, Position]


def kept_progress(
    records: Log, kept: KeptGroups, name: str | None, stream: str | None
) -> Iterator[GroupProgress]:
    """The progress of each group that has committed in a stream, or of one group, in all shards of
    these streams."""
    for group, checkpoints in sorted(kept.checkpoints(name).items()):
        infos = {info.name: info for info, _ in checkpoints}
        if stream is not None and stream not in infos:
            if name is None:
                continue
            raise does_not_read(group, stream, infos)
        shards = [
            (info, shard.index)
            for _, info in sorted(infos.items())
            if stream in (None, info.name)
            for shard in info.shards
        ]
        positions = {
            ShardId(info.name, index): Position(info, index, checkpoints.get((info, index)), bounds)
            for (info, index), bounds in zip(shards, records.bounds_of(shards), strict=True)
        }
        yield GroupProgress(group, positions)


def does_not_read(group: str, stream: str, reads: Iterable[str]) -> BadSetting:
    known = ", ".join(sorted(reads)) or "nothing"
    return BadSetting(f"group {group!r} does not read {stream!r}: it reads {known}")
