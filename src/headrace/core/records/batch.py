"""A batch of records: the same records seen as rows, as Arrow columns or as lists.

A batch is made of one of these faces, and makes another when it is asked for. So a single append
never builds Arrow arrays, and a large read never builds Python objects that are not looked at.
Lists are the face of a backend whose client returns Python objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import BadValue
from headrace.core.lazy import lazy
from headrace.core.model import Header, Record, Values
from headrace.core.records.row import ROW_OVERHEAD, Row
from headrace.core.records.schema import (
    FLAGS,
    HEADERS,
    SCHEMA,
    SEQUENCE,
    TIMESTAMP,
    TRACE,
    all_zero,
    extremes,
    placed,
    placed_schema,
    raw_bytes,
)
from headrace.core.records.to_arrow import Listed, arrow_of, arrow_of_lists

Decode = Callable[[bytes], Any]
DecodeMany = Callable[[Sequence[bytes | None]], list[Any]]


def _undecoded(data: bytes) -> Any:
    return data


class Batch:
    """Records of one shard, in order. A batch that was read knows its place: stream, shard and
    offsets. A batch on its way in has none.

    Made by `of_rows`, `of_arrow` or `of_listed`, or as a `part` of another batch.
    """

    _rows: Sequence[Row] | None = None
    _whole_arrow: pa.RecordBatch | None = None
    _lists_of: Listed | None = None
    _within: tuple[Batch, int, int] | None = None
    """A larger batch that is not made of rows, and the positions in it. What the larger batch has
    worked out is used by all its parts."""

    is_rows = False
    """Whether the batch is made of rows: then rows are the cheap face to look at."""

    def __init__(
        self, count: int, stream: str, shard: int, offsets: Sequence[int], nbytes: int | None
    ) -> None:
        """For the constructors below: they add the one face that the batch is made of."""
        self._len = count
        self._lists: dict[int, list[Any]] = {}
        self.stream = stream
        self.shard = shard
        self.offsets = offsets
        self._nbytes = nbytes
        self._decode: Decode = _undecoded
        self._decode_many: DecodeMany | None = None

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[Row],
        *,
        stream: str = "",
        shard: int = -1,
        offsets: Sequence[int] = (),
        nbytes: int | None = None,
    ) -> Batch:
        batch = cls(len(rows), stream, shard, offsets, nbytes)
        batch._rows = rows
        batch.is_rows = True
        return batch

    @classmethod
    def of_arrow(
        cls,
        arrow: pa.RecordBatch,
        *,
        stream: str = "",
        shard: int = -1,
        offsets: Sequence[int] = (),
        nbytes: int | None = None,
    ) -> Batch:
        """``arrow`` is in `SCHEMA`; a column of offsets may follow."""
        batch = cls(len(arrow), stream, shard, offsets, nbytes)
        batch._whole_arrow = arrow
        return batch

    @classmethod
    def of_listed(
        cls,
        listed: Listed,
        *,
        stream: str = "",
        shard: int = -1,
        offsets: Sequence[int] = (),
        nbytes: int | None = None,
    ) -> Batch:
        batch = cls(len(listed), stream, shard, offsets, nbytes)
        batch._lists_of = listed
        return batch

    @classmethod
    def _of_part(cls, whole: Batch, start: int, end: int) -> Batch:
        place = whole.stream, whole.shard, whole.offsets[start:end]
        if whole._rows is None:
            batch = cls(end - start, *place, None)
            batch._within = whole, start, end
        else:
            rows = whole._rows[start:end]
            batch = cls(len(rows), *place, None)
            batch._rows = rows
            batch.is_rows = True
        batch._decode, batch._decode_many = whole._decode, whole._decode_many
        return batch

    def __len__(self) -> int:
        return self._len

    def records(self) -> Iterator[Record]:
        return map(Record, repeat(self), range(self._len))

    def decoded_by(self, decode: Decode, decode_many: DecodeMany | None = None) -> Batch:
        """The same records with another way to look at their data."""
        batch = Batch(self._len, self.stream, self.shard, self.offsets, self._nbytes)
        batch._rows, batch.is_rows = self._rows, self.is_rows
        batch._whole_arrow, batch._lists_of = self._whole_arrow, self._lists_of
        batch._within = self._within
        batch._decode, batch._decode_many = decode, decode_many
        return batch

    def part(self, start: int, end: int) -> Batch:
        """The records at positions ``start <= i < end``."""
        if start <= 0 and end >= self._len:
            return self
        return Batch._of_part(self, start, end)

    def shared_out(self, targets: Sequence[int]) -> dict[int, Batch]:
        """For each target, a batch of its records in their order; each record has one target.

        Together the batches count as many bytes as the whole. So what fits one commit still does.
        """
        # Sorted once, then cut: a piece costs nothing. The sort keeps the order of equals.
        ordered = self.columns.take(pc.array_sort_indices(pa.array(targets, pa.int32())))
        counts = Counter(targets)
        pieces, start = {}, 0
        for target in sorted(counts):
            count = counts[target]
            nbytes = self.nbytes * count // self._len
            piece = Batch.of_arrow(ordered.slice(start, count), nbytes=nbytes)
            if self.times_us[0] == self.times_us[1]:
                piece.times_us = self.times_us
            pieces[target] = piece
            start += count
        return pieces

    def counted_as(self, nbytes: int) -> Batch:
        """The batch itself; from now on its size is ``nbytes``, its share of a larger batch's."""
        self._nbytes = nbytes
        return self

    def fitting(self, nbytes: int) -> int:
        """How many records, from the first on, fit into ``nbytes``."""
        if self._rows is not None:
            sizes = accumulate(row.nbytes + ROW_OVERHEAD for row in self._rows)
            return bisect_right(list(sizes), nbytes)
        columns, counts = self.columns, range(1, self._len + 1)
        return bisect_right(counts, nbytes, key=lambda count: columns.slice(0, count).nbytes)

    @property
    def nbytes(self) -> int:
        """About how many bytes the records take. Limits count these."""
        if self._nbytes is None:
            if self._rows is not None:
                self._nbytes = sum(row.nbytes for row in self._rows) + ROW_OVERHEAD * self._len
            else:
                self._nbytes = self.columns.nbytes
        return self._nbytes

    @property
    def arrow(self) -> pa.RecordBatch:
        """An Arrow record batch with offsets; stream and shard are in the schema's metadata."""
        if not self.is_rows and self._arrow.num_columns > len(SCHEMA):
            return self._arrow
        schema = placed_schema(self.stream, self.shard)
        return placed(self.columns.replace_schema_metadata(schema.metadata), self.offsets)

    @lazy
    def columns(self) -> pa.RecordBatch:
        """The records as Arrow, exactly in `SCHEMA`."""
        if self._rows is not None:
            return arrow_of(self._rows)
        if self._arrow.num_columns == len(SCHEMA):
            return self._arrow
        return pa.RecordBatch.from_arrays(self._arrow.columns[: len(SCHEMA)], schema=SCHEMA)

    @lazy
    def times_ms(self) -> tuple[int, int]:
        """The earliest and the latest timestamp."""
        if self._rows is not None:
            times = [row.timestamp for row in self._rows]
            return min(times), max(times)
        earliest, latest = self.times_us
        return earliest // 1000, latest // 1000

    @lazy
    def times_us(self) -> tuple[int, int]:
        """The earliest and the latest timestamp in microseconds, of a batch not made of rows."""
        column = self._arrow.column(TIMESTAMP)
        raw = raw_bytes(column)
        # The records of one call mostly have one timestamp: no need to look at each.
        if raw == raw[:8] * len(column):
            only = int.from_bytes(raw[:8], "little", signed=True)
            return only, only
        return extremes(column.view(pa.int64()))

    @lazy
    def rows(self) -> Sequence[Row]:
        """The records as plain rows."""
        if self._rows is not None:
            return self._rows
        columns = (self.keys, self.data, self.timestamps, self.sequences, self.flags, self.headers)
        return list(map(Row, *columns, self.traces))

    @lazy
    def values(self) -> Values:
        """The decoded data of each record; decoded all at once if the codec can do that."""
        if self._decode_many is not None:
            try:
                return self._decode_many(self.data)
            except BadValue:
                pass  # decoded one by one, only the bad value raises, when it is asked for
        return _OneByOne(self.data, self._decode)

    @lazy
    def keys(self) -> Sequence[bytes | None]:
        return [row[0] for row in self.rows] if self.is_rows else self._listed(0)

    @lazy
    def data(self) -> Sequence[bytes | None]:
        return [row[1] for row in self.rows] if self.is_rows else self._listed(1)

    @lazy
    def timestamps(self) -> Sequence[int]:
        """In milliseconds."""
        if self.is_rows:
            return [row[2] for row in self.rows]
        if self._within is not None:
            batch, start, end = self._within
            return batch.timestamps[start:end]
        if self._lists_of is not None:
            return self._listed(TIMESTAMP)
        earliest, latest = self.times_us
        if earliest == latest:
            return [earliest // 1000] * self._len
        return [us // 1000 for us in self._arrow.column(2).view(pa.int64()).to_pylist()]

    @lazy
    def sequences(self) -> Sequence[int]:
        return [row[3] for row in self.rows] if self.is_rows else self._listed(3)

    @lazy
    def flags(self) -> Sequence[int]:
        return [row[4] for row in self.rows] if self.is_rows else self._listed(4)

    @property
    def has_no_flags(self) -> bool:
        """Whether no record has a flag; Arrow columns tell without a look at each record."""
        return not any(self.flags) if self.is_rows else all_zero(self._arrow.column(FLAGS))

    @property
    def has_no_traces(self) -> bool:
        if self.is_rows:
            return not any(row[6] is not None for row in self.rows)
        return bool(self._arrow.column(TRACE).null_count == self._len)

    @property
    def has_no_headers(self) -> bool:
        if self.is_rows:
            return not any(row[5] for row in self.rows)
        return not len(self._arrow.column(HEADERS).flatten())

    @property
    def has_no_sequences(self) -> bool:
        return not any(self.sequences) if self.is_rows else all_zero(self._arrow.column(SEQUENCE))

    @lazy
    def headers(self) -> Sequence[Sequence[Header]]:
        if self.is_rows:
            return [row[5] for row in self.rows]
        if self._within is not None:
            batch, start, end = self._within
            return batch.headers[start:end]
        if self._lists_of is not None:
            return self._listed(HEADERS)
        return [tuple((h["name"], h["value"]) for h in pairs) for pairs in self._listed(HEADERS)]

    @lazy
    def traces(self) -> Sequence[bytes | None]:
        return [row[6] for row in self.rows] if self.is_rows else self._listed(6)

    @lazy
    def _arrow(self) -> Any:
        if self._within is None:
            return self._whole_arrow if self._lists_of is None else arrow_of_lists(self._lists_of)
        batch, start, end = self._within
        return batch._arrow.slice(start, end - start)

    def _listed(self, column: int) -> list[Any]:
        if self._within is not None:
            batch, start, end = self._within
            return batch._listed(column)[start:end]
        listed = self._lists.get(column)
        if listed is None:
            listed = self._column_list(column)
            self._lists[column] = listed
        return listed

    def _column_list(self, column: int) -> list[Any]:
        if self._lists_of is None:
            listed: list[Any] = self._arrow.column(column).to_pylist()
            return listed
        found = self._lists_of.column(column)
        return [_DEFAULTS[column]] * self._len if found is None else found


_DEFAULTS = (None, None, 0, 0, 0, (), None)
"""What a record holds in each column for which no value was given."""

_UNREAD = object()


class _OneByOne:
    """Values that are decoded once, when they are asked for."""

    __slots__ = ("_data", "_decode", "_values")

    def __init__(self, data: Sequence[bytes | None], decode: Decode) -> None:
        self._data = data
        self._decode = decode
        self._values: list[Any] = [None if value is None else _UNREAD for value in data]

    def __getitem__(self, row: int) -> Any:
        value = self._values[row]
        if value is _UNREAD:
            data = self._data[row]
            assert data is not None, "a tombstone has no value to decode"
            value = self._values[row] = self._decode(data)
        return value
