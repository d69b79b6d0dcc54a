"""The limits that all backends share: which offsets are in range, how much one read or one commit
may hold."""

from __future__ import annotations

from headrace.core.errors import BadRecord, OffsetOutOfRange, UnknownShard
from headrace.core.model import Bounds, RecordId, StreamInfo
from headrace.core.quantities import shown_size
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX


def check_shard(stream: StreamInfo, shard: int) -> None:
    if isinstance(shard, bool) or not isinstance(shard, int) or not 0 <= shard < len(stream.shards):
        raise UnknownShard(stream.name, shard, len(stream.shards))


def check_start(stream: StreamInfo, shard: int, start: int, bounds: Bounds) -> None:
    if not bounds.start <= start <= bounds.end:
        raise OffsetOutOfRange(stream.name, shard, start, *bounds)


def check_commit_bytes(nbytes: int) -> None:
    if nbytes > COMMIT_BYTES_MAX:
        most = shown_size(COMMIT_BYTES_MAX)
        raise BadRecord(f"{shown_size(nbytes)} in one commit: at most {most}; append in parts")


def too_large(batch: Batch, most: str) -> BadRecord:
    """The refusal of a copied batch; it names the largest record by its id in the source."""
    sizes = [row.nbytes for row in batch.rows]
    row = sizes.index(max(sizes))
    record = RecordId(batch.stream, batch.shard, batch.offsets[row])
    return BadRecord(
        f"the record {record} has {shown_size(sizes[row])}: the target takes at most {most}; "
        "the copy of its shard does not get beyond it"
    )


class ReadBudget:
    """How many records and bytes a read may still take. The first record always fits."""

    __slots__ = ("_empty", "nbytes", "records")

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.records = max_records
        self.nbytes = max_bytes
        self._empty = True

    @property
    def full(self) -> bool:
        return self.records <= 0 or (self.nbytes <= 0 and not self._empty)

    def take(self, batch: Batch, start: int, end: int) -> Batch:
        """The records with ``start <= offset < end`` that fit, of a batch without gaps."""
        base = batch.offsets[0]
        first = max(start - base, 0)
        taken = batch.part(first, min(end - base, first + self.records, len(batch)))
        if batch.nbytes <= self.nbytes:
            if taken is not batch:
                taken.counted_as(batch.nbytes * len(taken) // len(batch))
        elif taken.nbytes > self.nbytes:
            # Only the first batch is cut. The next read takes a later batch whole.
            fitting = max(taken.fitting(self.nbytes), 1) if self._empty else 0
            taken = taken.part(0, fitting)
            self.records = len(taken)  # full, else the next batch would leave a gap
        self.records -= len(taken)
        self.nbytes -= taken.nbytes
        self._empty = self._empty and not len(taken)
        return taken
