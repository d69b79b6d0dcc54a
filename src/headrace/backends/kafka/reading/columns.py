"""Fetched records as columns, and the batch of all records of a read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

from headrace.backends.kafka.reading.listed import JoinedRecords, ListedRecords
from headrace.core.records.batch import Batch
from headrace.core.records.row import ROW_OVERHEAD
from headrace.core.records.schema import SCHEMA, TIMESTAMP, byte_lengths, default_column


class ColumnRecords:
    """Records of one partition, in order, none of which has headers."""

    __slots__ = ("data", "keys", "nbytes", "offsets", "times")

    def __init__(
        self, offsets: Sequence[int], keys: pa.Array, data: pa.Array, times: pa.Array
    ) -> None:
        self.offsets = offsets
        self.keys = keys
        self.data = data
        self.times = times
        """Timestamps in microseconds, each a whole number of milliseconds."""
        self.nbytes = self._bytes_of_first(len(keys))

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, start: int, end: int) -> ColumnRecords:
        count = end - start
        return ColumnRecords(
            self.offsets[start:end],
            self.keys.slice(start, count),
            self.data.slice(start, count),
            self.times.slice(start, count),
        )

    def fitting(self, nbytes: int) -> int:
        """How many records, from the first on, fit into that many bytes."""
        return bisect_right(range(1, len(self) + 1), nbytes, key=self._bytes_of_first)

    def _bytes_of_first(self, count: int) -> int:
        own = _bytes_of_first(self.keys, count) + _bytes_of_first(self.data, count)
        return own + ROW_OVERHEAD * count

    def sizes(self) -> list[int]:
        """The bytes of each record: those of its key and value."""
        sizes: list[int] = byte_lengths(self.keys, self.data).to_pylist()
        return sizes

    def listed(self) -> ListedRecords:
        return ListedRecords(
            list(self.offsets),
            self.keys.to_pylist(),
            self.data.to_pylist(),
            [us // 1000 for us in self.times.to_pylist()],
            [None] * len(self),
        )


def _bytes_of_first(column: pa.Array, count: int) -> int:
    ends = memoryview(column.buffers()[1]).cast("i")
    start: int = ends[column.offset]
    end: int = ends[column.offset + count]
    return end - start


def joined(parts: Sequence[ListedRecords | ColumnRecords], stream: str, shard: int) -> Batch:
    """One batch of records that follow one another."""
    nbytes = sum(part.nbytes for part in parts)
    columns = [part for part in parts if isinstance(part, ColumnRecords)]
    if len(columns) == len(parts):
        return Batch.of_arrow(
            _arrow(columns),
            stream=stream,
            shard=shard,
            offsets=_offsets(columns),
            nbytes=nbytes,
        )
    listed = JoinedRecords(
        [part.listed() if isinstance(part, ColumnRecords) else part for part in parts]
    )
    return Batch.of_listed(
        listed, stream=stream, shard=shard, offsets=listed.offsets(), nbytes=nbytes
    )


def _arrow(parts: Sequence[ColumnRecords]) -> pa.RecordBatch:
    count = sum(map(len, parts))
    columns = [
        pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
        for arrays in (
            [part.keys for part in parts],
            [part.data for part in parts],
            [part.times for part in parts],
        )
    ]
    columns[TIMESTAMP] = columns[TIMESTAMP].view(SCHEMA.field(TIMESTAMP).type)
    columns += [default_column(i, count) for i in range(3, len(SCHEMA))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _offsets(parts: Sequence[ColumnRecords]) -> Sequence[int]:
    if len(parts) == 1:
        return parts[0].offsets
    first, last = parts[0].offsets[0], parts[-1].offsets[-1]
    if last - first == sum(map(len, parts)) - 1:
        return range(first, last + 1)
    return [offset for part in parts for offset in part.offsets]
