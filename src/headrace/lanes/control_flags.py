"""Flags of records that steer a lane: COMMIT stores at once, POISON_PILL stops the shard."""

from __future__ import annotations

from headrace.core.model import Flag
from headrace.core.records.batch import Batch

_STEERING = Flag.COMMIT | Flag.POISON_PILL


def flagged(batch: Batch) -> list[int]:
    """The rows whose flags steer the lane."""
    if batch.has_no_flags:
        return []
    return [row for row, flags in enumerate(batch.flags) if flags & _STEERING]


def to_first_flag(batches: list[Batch], behind: int) -> tuple[list[Batch], int]:
    """The batches up to and with the first record whose flags steer the lane, and the offset at
    which reading goes on. ``behind`` is that offset if no record has such flags."""
    for at, batch in enumerate(batches):
        for row in flagged(batch)[:1]:
            following = batch.offsets[row] + 1
            if row + 1 == len(batch):
                following = batches[at + 1].offsets[0] if batches[at + 1 :] else behind
            return [*batches[:at], batch.part(0, row + 1)], following
    return batches, behind
