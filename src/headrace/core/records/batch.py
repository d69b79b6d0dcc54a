"""A batch of records: one set of columns with several faces, Arrow for many, plain rows for a few,
and lists where a backend's client gives Python objects.

Each face is made from the other when it is asked for, so that a single append never builds Arrow
arrays and a large read never builds Python objects that nobody looks at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import BadRecord, BadValue
from headrace.core.lazy import lazy
from headrace.core.model import Header, Record, Values
from headrace.core.quantities import TIMESTAMP_MS_MAX, shown_apart
from headrace.core.records.schema import (
    FLAGS,
    HEADERS,
    HEADERS_TYPE,
    SCHEMA,
    SEQUENCE,
    TIMESTAMP,
    TRACE,
    all_zero,
    default_column,
    extremes,
    placed,
    placed_schema,
    raw_bytes,
)

COMMIT_BYTES_MAX = 4 * 1024 * 1024
"""What one commit may hold: 13 ms of a disk's time, where 16 MiB take 69."""

RECORD_BYTES_MAX = COMMIT_BYTES_MAX - 4096
ROW_OVERHEAD = 40
"""What a record costs beside its own bytes, roughly."""

FLAGS_MAX = 0x1FF
SEQUENCE_MAX = 2**31 - 1


class Row(NamedTuple):
    """One record's own fields in the order of `SCHEMA`; the timestamp in milliseconds."""

    key: bytes | None
    data: bytes | None
    timestamp: int
    sequence: int = 0
    flags: int = 0
    headers: Sequence[Header] = ()
    trace: bytes | None = None

    def checked(self) -> Row:
        """Itself, if every field is in range and the whole is not too large."""
        if not _whole(self.timestamp, TIMESTAMP_MS_MAX):
            raise BadRecord(f"timestamp {self.timestamp!r} ms: it must lie between 1970 and 9999")
        if not _whole(self.sequence, SEQUENCE_MAX):
            raise BadRecord(f"sequence {self.sequence!r}: a whole number, 0 to {SEQUENCE_MAX}")
        if not _whole(self.flags, FLAGS_MAX):
            raise BadRecord(f"flags {self.flags!r}: nine bits, 0 to {FLAGS_MAX:#x}")
        if self.nbytes > RECORD_BYTES_MAX:
            size, most = shown_apart(self.nbytes, RECORD_BYTES_MAX)
            raise BadRecord(
                f"a record of {size}: the most is {most}; store the payload elsewhere and append "
                "a reference to it"
            )
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of key, data, headers and trace."""
        own = len(self.key or b"") + len(self.data or b"") + len(self.trace or b"")
        if self.headers:
            own += sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return own


def _whole(value: object, most: int) -> bool:
    # True and 1.0 would be stored as they are, and refused when they are read back.
    return type(value) is int and 0 <= value <= most


Decode = Callable[[bytes], Any]
DecodeMany = Callable[[Sequence[bytes | None]], list[Any]]


def _undecoded(data: bytes) -> Any:
    return data


class Listed(Protocol):
    """Records as one list for each column of `SCHEMA`; the timestamps in milliseconds."""

    def __len__(self) -> int: ...

    def column(self, index: int, /) -> list[Any] | None:
        """The values, None where all records have the default."""


class Batch:
    """Records of one shard, in order. Read back, it knows its place; on the way in it has none."""

    def __init__(
        self,
        *,
        rows: Sequence[Row] | None = None,
        arrow: pa.RecordBatch | None = None,
        listed: Listed | None = None,
        within: tuple[Batch, int, int] | None = None,
        stream: str = "",
        shard: int = -1,
        offsets: Sequence[int] = (),
        decode: Decode = _undecoded,
        decode_many: DecodeMany | None = None,
        nbytes: int | None = None,
    ) -> None:
        assert (rows, arrow, listed, within).count(None) == 3, "a batch is made of one face"
        self._rows = rows
        self._whole_arrow = arrow
        self._lists_of = listed
        self._within = within
        """Positions in a larger batch made of Arrow, with which it shares what was looked at."""
        self.is_rows = rows is not None
        """Which face it was made of: the cheap one to look at."""
        self._len: int
        if within is not None:
            self._len = within[2] - within[1]
        else:
            face: Any = next(face for face in (rows, arrow, listed) if face is not None)
            self._len = len(face)
        self._lists: dict[int, list[Any]] = {}
        self.stream = stream
        self.shard = shard
        self.offsets = offsets
        self._decode = decode
        self._decode_many = decode_many
        self._nbytes = nbytes

    def __len__(self) -> int:
        return self._len

    def records(self) -> Iterator[Record]:
        return map(Record, repeat(self), range(self._len))

    def decoded_by(self, decode: Decode, decode_many: DecodeMany | None = None) -> Batch:
        """The same records with another way to look at their data."""
        return Batch(
            rows=self._rows,
            arrow=self._whole_arrow,
            listed=self._lists_of,
            within=self._within,
            stream=self.stream,
            shard=self.shard,
            offsets=self.offsets,
            decode=decode,
            decode_many=decode_many,
            nbytes=self._nbytes,
        )

    def part(self, start: int, end: int) -> Batch:
        """The records at positions ``start <= i < end``."""
        if start <= 0 and end >= self._len:
            return self
        return Batch(
            rows=self._rows[start:end] if self._rows is not None else None,
            within=(self, start, end) if self._rows is None else None,
            stream=self.stream,
            shard=self.shard,
            offsets=self.offsets[start:end],
            decode=self._decode,
            decode_many=self._decode_many,
        )

    def shared_out(self, targets: Sequence[int]) -> dict[int, Batch]:
        """A batch of the records of each target, in their order, where each record has one.

        Together they count as many bytes as the whole, so that what fits one commit fits it still.
        """
        # Put into order once, then cut: a piece costs nothing. The sort keeps the order of equals.
        ordered = self.columns.take(pc.array_sort_indices(pa.array(targets, pa.int32())))
        counts = Counter(targets)
        pieces, start = {}, 0
        for target in sorted(counts):
            count = counts[target]
            piece = Batch(
                arrow=ordered.slice(start, count), nbytes=self.nbytes * count // self._len
            )
            if self.times_us[0] == self.times_us[1]:
                piece.times_us = self.times_us
            pieces[target] = piece
            start += count
        return pieces

    def counted_as(self, nbytes: int) -> Batch:
        """Itself, said to take so many bytes: its share of those of a larger one."""
        self._nbytes = nbytes
        return self

    def fitting(self, nbytes: int) -> int:
        """How many records from the first on take no more than so many bytes."""
        if self._rows is not None:
            sizes = accumulate(row.nbytes + ROW_OVERHEAD for row in self._rows)
            return bisect_right(list(sizes), nbytes)
        columns, counts = self.columns, range(1, self._len + 1)
        return bisect_right(counts, nbytes, key=lambda count: columns.slice(0, count).nbytes)

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes; what limits count."""
        if self._nbytes is None:
            if self._rows is not None:
                self._nbytes = sum(row.nbytes for row in self._rows) + ROW_OVERHEAD * self._len
            else:
                self._nbytes = self.columns.nbytes
        return self._nbytes

    @property
    def arrow(self) -> pa.RecordBatch:
        """As an Arrow record batch with offsets, its place in the schema's metadata."""
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
        """The same of a batch made of Arrow, in microseconds."""
        column = self._arrow.column(TIMESTAMP)
        raw = raw_bytes(column)
        # Records of one call mostly have one timestamp: that is seen without looking at each.
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
        """The data of each record decoded: all at once where that is quick, else one by one."""
        if self._decode_many is not None:
            try:
                return self._decode_many(self.data)
            except BadValue:
                pass  # then whoever asks for the bad one is told, and nobody else
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
        """Whether no record has any: told without looking at each."""
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


_TIMES_MS = pa.timestamp("ms", "UTC")

_DEFAULTS = (None, None, 0, 0, 0, (), None)
"""What a record holds in each column where nothing was said."""

_UNREAD = object()


class _OneByOne:
    """Values decoded when they are asked for, and once."""

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


def keyed_batch(keys: Sequence[bytes | None], data: Sequence[bytes | None], now_ms: int) -> Batch:
    """Records with a key and data and nothing else; no Python object per record."""
    times = pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), len(keys)).view(SCHEMA.field(2).type)
    batch = _plain_batch(keys, data, times)
    batch.times_us = now_ms * 1000, now_ms * 1000
    return batch


def timed_batch(
    keys: Sequence[bytes | None], data: Sequence[bytes | None], times_ms: Sequence[int]
) -> Batch:
    """The same with a timestamp for each."""
    if times_ms.count(times_ms[0]) == len(times_ms):
        return keyed_batch(keys, data, times_ms[0])
    times = pa.array([ms * 1000 for ms in times_ms], pa.int64()).view(SCHEMA.field(2).type)
    return _plain_batch(keys, data, times)


def _plain_batch(
    keys: Sequence[bytes | None], data: Sequence[bytes | None], times: pa.Array
) -> Batch:
    count = len(keys)
    try:
        columns = [pa.array(keys, pa.binary()), pa.array(data, pa.binary()), times]
    except (pa.ArrowException, TypeError) as why:
        raise BadRecord(f"records that do not fit: {why}") from None
    if any(isinstance(column, pa.ChunkedArray) for column in columns):
        raise BadRecord("more than 2 GiB in one call: append in parts")
    if sum(column.nbytes for column in columns) > RECORD_BYTES_MAX:
        for key, value in zip(keys, data, strict=True):
            Row(key, value, 0).checked()
    columns += [default_column(i, count) for i in range(3, len(SCHEMA))]
    return Batch(arrow=pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def arrow_of(rows: Sequence[Row]) -> pa.RecordBatch:
    if not rows:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    arrays = [_array(i, column) for i, column in enumerate(zip(*rows, strict=True))]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def arrow_of_lists(lists: Listed) -> pa.RecordBatch:
    count = len(lists)
    arrays = []
    for i in range(len(SCHEMA)):
        values = lists.column(i)
        arrays.append(default_column(i, count) if values is None else _array(i, values))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _array(column: int, values: Sequence[Any]) -> pa.Array:
    if column == TIMESTAMP:
        return pa.array(values, pa.int64()).view(_TIMES_MS).cast(SCHEMA.field(column).type)
    if column == HEADERS:
        return _headers_array(values)
    return pa.array(values, SCHEMA.field(column).type)


def _headers_array(headers: Sequence[Sequence[Header]]) -> pa.Array:
    if not any(headers):
        return default_column(HEADERS, len(headers))
    named = [[{"name": name, "value": value} for name, value in pairs] for pairs in headers]
    return pa.array(named, HEADERS_TYPE)
