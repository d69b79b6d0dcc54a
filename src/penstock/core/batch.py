"""A batch of records: one set of columns with two faces, Arrow for many and plain rows for a few.

Each face is made from the other when it is asked for, so that a single append never builds Arrow
arrays and a large read never builds Python objects that nobody looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.core.errors import BadRecord
from penstock.core.model import Header, Record
from penstock.core.quantities import TIMESTAMP_MS_MAX, shown_size

HEADERS_TYPE = pa.list_(
    pa.field(
        "item",
        pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.binary())]),
        False,
    )
)
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("data", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", "UTC"), False),
        pa.field("sequence", pa.int32(), False),
        pa.field("flags", pa.int16(), False),
        pa.field("headers", HEADERS_TYPE, False),
        pa.field("trace", pa.binary()),
    ]
)
"""A batch on its way in: types that Spark takes everywhere."""

OFFSET_FIELD = pa.field("offset", pa.int64(), False)

COMMIT_BYTES_MAX = 4 * 1024 * 1024
"""What one commit may hold: 13 ms of a disk's time, where 16 MiB take 69."""

RECORD_BYTES_MAX = COMMIT_BYTES_MAX - 4096
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
        if not 0 <= self.timestamp <= TIMESTAMP_MS_MAX:
            raise BadRecord(f"timestamp {self.timestamp} ms: it must lie between 1970 and 9999")
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise BadRecord(f"sequence {self.sequence}: 0 to {SEQUENCE_MAX}")
        if not 0 <= self.flags <= FLAGS_MAX:
            raise BadRecord(f"flags {self.flags:#x}: nine bits, 0 to {FLAGS_MAX:#x}")
        if self.nbytes > RECORD_BYTES_MAX:
            raise BadRecord(
                f"a record of {shown_size(self.nbytes)}: the most is "
                f"{shown_size(RECORD_BYTES_MAX)}; "
                "store the payload elsewhere and append a reference to it"
            )
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of key, data, headers and trace."""
        own = len(self.key or b"") + len(self.data or b"") + len(self.trace or b"")
        if self.headers:
            own += sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return own


def _undecoded(data: bytes) -> Any:
    return data


class Batch:
    """Records of one shard, in order. Read back, it knows its place; on the way in it has none."""

    def __init__(
        self,
        *,
        rows: Sequence[Row] | None = None,
        arrow: pa.RecordBatch | None = None,
        stream: str = "",
        shard: int = -1,
        offsets: Sequence[int] = (),
        decode: Callable[[bytes], Any] = _undecoded,
    ) -> None:
        assert (rows is None) != (arrow is None), "a batch is made of one face"
        self._rows = rows
        self._arrow = arrow
        self.is_rows = rows is not None
        """Which face it was made of: the cheap one to look at."""
        self._len: int = len(arrow if rows is None else rows)  # type: ignore[arg-type]
        self.stream = stream
        self.shard = shard
        self.offsets = offsets
        self.decode = decode

    def __len__(self) -> int:
        return self._len

    def records(self) -> Iterator[Record]:
        return map(Record, repeat(self), range(self._len))

    def decoded_by(self, decode: Callable[[bytes], Any]) -> Batch:
        """The same records with another way to look at their data."""
        return Batch(
            rows=self._rows,
            arrow=self._arrow,
            stream=self.stream,
            shard=self.shard,
            offsets=self.offsets,
            decode=decode,
        )

    def part(self, start: int, end: int) -> Batch:
        """The records at positions ``start <= i < end``."""
        if start <= 0 and end >= self._len:
            return self
        return Batch(
            rows=self._rows[start:end] if self._rows is not None else None,
            arrow=self._arrow.slice(start, end - start) if self._arrow is not None else None,
            stream=self.stream,
            shard=self.shard,
            offsets=self.offsets[start:end],
            decode=self.decode,
        )

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes; what limits count."""
        if self.is_rows:
            return sum(row.nbytes for row in self.rows) + 32 * self._len
        return int(self.columns.nbytes)

    @property
    def arrow(self) -> pa.RecordBatch:
        """As an Arrow record batch with offsets, its place in the schema's metadata."""
        schema = read_schema(self.stream, self.shard)
        offsets = pa.array(self.offsets, pa.int64())
        return pa.RecordBatch.from_arrays([*self.columns.columns, offsets], schema=schema)

    @cached_property
    def columns(self) -> pa.RecordBatch:
        """The records as Arrow, exactly in `SCHEMA`."""
        return self._arrow if self._rows is None else arrow_of(self._rows)

    @cached_property
    def rows(self) -> Sequence[Row]:
        """The records as plain rows."""
        if self._rows is not None:
            return self._rows
        columns = (self.keys, self.data, self.timestamps, self.sequences, self.flags, self.headers)
        return list(map(Row, *columns, self.traces))

    @cached_property
    def keys(self) -> Sequence[bytes | None]:
        return [row[0] for row in self.rows] if self.is_rows else self._listed(0)

    @cached_property
    def data(self) -> Sequence[bytes | None]:
        return [row[1] for row in self.rows] if self.is_rows else self._listed(1)

    @cached_property
    def timestamps(self) -> Sequence[int]:
        """In milliseconds."""
        if self.is_rows:
            return [row[2] for row in self.rows]
        return [us // 1000 for us in self.columns.column(2).cast(pa.int64()).to_pylist()]

    @cached_property
    def sequences(self) -> Sequence[int]:
        return [row[3] for row in self.rows] if self.is_rows else self._listed(3)

    @cached_property
    def flags(self) -> Sequence[int]:
        return [row[4] for row in self.rows] if self.is_rows else self._listed(4)

    @cached_property
    def headers(self) -> Sequence[Sequence[Header]]:
        if self.is_rows:
            return [row[5] for row in self.rows]
        return [tuple((h["name"], h["value"]) for h in pairs) for pairs in self._listed(5)]

    @cached_property
    def traces(self) -> Sequence[bytes | None]:
        return [row[6] for row in self.rows] if self.is_rows else self._listed(6)

    def _listed(self, column: int) -> list[Any]:
        listed: list[Any] = self.columns.column(column).to_pylist()
        return listed


def read_schema(stream: str, shard: int) -> pa.Schema:
    """The schema of a batch read back: `SCHEMA` with offsets, and its place as metadata."""
    place = {"penstock.stream": stream, "penstock.shard": str(shard)}
    return SCHEMA.append(OFFSET_FIELD).with_metadata(place)


def keyed_batch(keys: Sequence[bytes | None], data: Sequence[bytes | None], now_ms: int) -> Batch:
    """A batch of records that have a key and data and nothing else to tell; no Python object per
    record."""
    count = len(keys)
    lengths = [len(k or b"") + len(d or b"") for k, d in zip(keys, data, strict=True)]
    if max(lengths) > RECORD_BYTES_MAX:
        at = lengths.index(max(lengths))
        Row(keys[at], data[at], now_ms).checked()
    times = pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), count).cast(pa.timestamp("us", "UTC"))
    columns = [
        pa.array(keys, pa.binary()),
        pa.array(data, pa.binary()),
        times,
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.repeat(pa.scalar(0, pa.int16()), count),
        _headers_array((), count),
        pa.nulls(count, pa.binary()),
    ]
    return Batch(arrow=pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def arrow_of(rows: Iterable[Row]) -> pa.RecordBatch:
    keys, data, times, sequences, flags, headers, traces = zip(*rows, strict=True)
    count = len(keys)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(data, pa.binary()),
            pa.array([ms * 1000 for ms in times], pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array(sequences, pa.int32()),
            pa.array(flags, pa.int16()),
            _headers_array(headers, count),
            pa.array(traces, pa.binary()),
        ],
        schema=SCHEMA,
    )


def _headers_array(headers: Sequence[Sequence[Header]], count: int) -> pa.Array:
    if not any(headers):
        return pa.repeat(pa.scalar([], HEADERS_TYPE), count)
    named = [[{"name": name, "value": value} for name, value in pairs] for pairs in headers]
    return pa.array(named, HEADERS_TYPE)
