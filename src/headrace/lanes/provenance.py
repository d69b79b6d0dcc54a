"""What outputs inherit from the records they are made from: time, sequence, trace and origin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.model import Record
from headrace.core.records.batch import Batch
from headrace.lanes.tracing import spans

ORIGIN = "headrace-origin"
"""The header that names the record of a source from which an output was made, where that is asked
for."""


class Provenance(NamedTuple):
    """What one handled batch passes on to the outputs made from it. Each function takes a row of
    the batch."""

    timestamps: Callable[[int], int]
    sequences: Callable[[int], int] | None = None
    traces: Callable[[int], bytes | None] | None = None
    origins: Callable[[int], bytes] | None = None
    """The record of a source that a row comes from; None: outputs do not name their origin."""
    time: int | None = None
    """The timestamp of all rows, if they have the same."""


def provenance_of(batch: Batch, *, tells_origins: bool) -> Provenance:
    """For outputs that are made from the rows of the batch one by one."""
    time_ms = _only_time(batch)
    return Provenance(
        batch.timestamps.__getitem__ if time_ms is None else lambda _: time_ms,
        None if batch.has_no_sequences else batch.sequences.__getitem__,
        None if batch.has_no_traces else spans(batch.traces),
        _origins(batch) if tells_origins else None,
        time_ms,
    )


def provenance_of_all(batches: Sequence[Batch], *, tells_origins: bool) -> Provenance:
    """For outputs that are made from all batches together, as if from the last record."""
    last = batches[-1]
    time_ms = last.timestamps[-1]
    return Provenance(lambda _: time_ms, origins=_origins(last) if tells_origins else None)


def _only_time(batch: Batch) -> int | None:
    """The timestamp of all records, if they have the same; found without a look at each record."""
    earliest, latest = batch.times_ms
    return latest if earliest == latest else None


def _origins(batch: Batch) -> Callable[[int], bytes]:
    def of(row: int) -> bytes:
        record = Record(batch, row)
        inherited = dict(record.headers).get(ORIGIN)
        return str(record.id).encode() if inherited is None else inherited

    return of
