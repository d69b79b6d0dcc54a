"""The Arrow schema of a batch of records, and columns in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, reduce

import pyarrow as pa
import pyarrow.compute as pc

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
"""The schema of a batch on its way in. Spark accepts all its types everywhere."""
OFFSET_FIELD = pa.field("offset", pa.int64(), False)
TIMESTAMP = SCHEMA.get_field_index("timestamp")
SEQUENCE = SCHEMA.get_field_index("sequence")
FLAGS = SCHEMA.get_field_index("flags")
HEADERS = SCHEMA.get_field_index("headers")
TRACE = SCHEMA.get_field_index("trace")
_DEFAULT_ROWS = 4096


@lru_cache(maxsize=1024)
def read_schema(stream: str, shard: int) -> pa.Schema:
    """The schema of a batch that was read: `SCHEMA` with offsets; stream and shard are metadata."""
    return placed_schema(stream, shard).append(OFFSET_FIELD)


@lru_cache(maxsize=1024)
def placed_schema(stream: str, shard: int) -> pa.Schema:
    """`SCHEMA` with stream and shard as metadata."""
    return SCHEMA.with_metadata({"headrace.stream": stream, "headrace.shard": str(shard)})


def placed(arrow: pa.RecordBatch, offsets: Sequence[int]) -> pa.RecordBatch:
    """A batch in `SCHEMA`, with a column of its offsets added."""
    return arrow.append_column(OFFSET_FIELD, _offsets_array(offsets))


def default_column(column: int, count: int) -> pa.Array:
    """A column of `SCHEMA` in which all records hold the default: null, 0, or no headers."""
    if count <= _DEFAULT_ROWS:
        return _default_rows(column).slice(0, count)
    return _default_array(column, count)


@cache
def _default_rows(column: int) -> pa.Array:
    return _default_array(column, _DEFAULT_ROWS)


def _default_array(column: int, count: int) -> pa.Array:
    kind = SCHEMA.field(column).type
    if column == HEADERS:
        none = pa.array([], HEADERS_TYPE.value_type)
        zeros = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
        return pa.ListArray.from_arrays(zeros, none).cast(kind)
    return pa.nulls(count, kind) if kind == pa.binary() else pa.repeat(pa.scalar(0, kind), count)


def all_zero(column: pa.Array) -> bool:
    """Whether all integers of a column are 0."""
    raw = raw_bytes(column)
    return raw.count(0) == len(raw)


def extremes(column: pa.Array) -> tuple[int, int]:
    """The lowest and the highest integer of a column."""
    found = pc.min_max(column).as_py()
    return found["min"], found["max"]


def byte_lengths(*columns: pa.Array) -> pa.Array:
    """How many bytes each record has in these columns together."""
    lengths = [pc.fill_null(pc.binary_length(column), 0) for column in columns]
    return reduce(pc.add, lengths)


def raw_bytes(column: pa.Array) -> bytes:
    """The bytes of a column of numbers."""
    width = column.type.bit_width // 8
    start = column.offset * width
    return bytes(memoryview(column.buffers()[1])[start : start + len(column) * width])


def _offsets_array(offsets: Sequence[int]) -> pa.Array:
    if isinstance(offsets, range) and offsets.step == 1:
        return pa.arange(offsets.start, offsets.stop)
    return pa.array(offsets, pa.int64())
