"""What a batch of input tells about its records and about what is made from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from headrace.core.model import Flag, Record
from headrace.core.records.batch import Batch
from headrace.lanes.outputs import ORIGIN, Provenance
from headrace.lanes.tracing import spans

_ACTING = Flag.COMMIT | Flag.POISON_PILL


def provenance_of(batch: Batch, *, tells_origins: bool) -> Provenance:
    """For outputs that were made from its rows one by one."""
    time_ms = _only_time(batch)
    return Provenance(
        batch.timestamps.__getitem__ if time_ms is None else lambda _: time_ms,
        None if batch.has_no_sequences else batch.sequences.__getitem__,
        None if batch.has_no_traces else spans(batch.traces),
        _origins(batch) if tells_origins else None,
        time_ms,
    )


def provenance_of_all(batches: Sequence[Batch], *, tells_origins: bool) -> Provenance:
    """For outputs that were made from all of them together: as if from the last."""
    last = batches[-1]
    time_ms = last.timestamps[-1]
    return Provenance(lambda _: time_ms, origins=_origins(last) if tells_origins else None)


def flagged(batch: Batch) -> list[int]:
    """The rows whose flags ask for something."""
    if batch.has_no_flags:
        return []
    return [row for row, flags in enumerate(batch.flags) if flags & _ACTING]


def to_first_flag(batches: list[Batch], behind: int) -> tuple[list[Batch], int]:
    """The batches up to the first record whose flags ask for something, and where to go on."""
    for at, batch in enumerate(batches):
        for row in flagged(batch)[:1]:
            following = batch.offsets[row] + 1
            if row + 1 == len(batch):
                following = batches[at + 1].offsets[0] if batches[at + 1 :] else behind
            return [*batches[:at], batch.part(0, row + 1)], following
    return batches, behind


def as_arrow(batches: Sequence[Batch]) -> pa.RecordBatch:
    """All of them as one."""
    if len(batches) == 1:
        return batches[0].arrow
    table = pa.Table.from_batches([batch.arrow for batch in batches]).combine_chunks()
    return table.to_batches()[0]


def _only_time(batch: Batch) -> int | None:
    """The timestamp of all records, if they have the same: told without looking at each."""
    earliest, latest = batch.times_ms
    return latest if earliest == latest else None


def _origins(batch: Batch) -> Callable[[int], bytes]:
    def of(row: int) -> bytes:
        record = Record(batch, row)
        told = dict(record.headers).get(ORIGIN)
        return str(record.id).encode() if told is None else told

    return of
