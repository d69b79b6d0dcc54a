"""A user's Arrow batch in the schema of a batch: missing columns get their default, types are
widened or refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import BadRecord
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.row import FLAGS_MAX, RECORD_BYTES_MAX, SEQUENCE_MAX, record_too_large
from headrace.core.records.schema import (
    HEADERS_TYPE,
    SCHEMA,
    all_zero,
    byte_lengths,
    default_column,
    extremes,
)

_IGNORED = {"offset"}
"""Columns that are dropped, so that a batch that was read can be appended elsewhere as it is."""


def conformed(batch: pa.RecordBatch | pa.Table, now_ms: int) -> Batch:
    """The batch in `SCHEMA`, with every value in range; else `BadRecord`."""
    if isinstance(batch, pa.Table):
        batch = batch.combine_chunks()
        parts = batch.to_batches()
        if len(parts) > 1:
            raise BadRecord("a table with more than 2 GiB in one column: append it in parts")
        batch = parts[0] if parts else pa.RecordBatch.from_pylist([], schema=batch.schema)
    if not isinstance(batch, pa.RecordBatch):
        raise BadRecord(
            f"append_arrow takes a pyarrow RecordBatch or Table, not {type(batch).__name__}"
        )
    ours = batch.schema.equals(SCHEMA)
    if not ours:
        _check_names(batch.schema.names)
    try:
        batch.validate(full=True)
        if not ours:
            columns = [_column(batch, i, now_ms) for i in range(len(SCHEMA))]
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except (pa.ArrowException, ValueError) as why:
        raise BadRecord(f"a batch that does not fit: {why}") from None
    # Whole buffers are quick to add up. The sum is too high only for a part of a larger batch.
    whole = batch.get_total_buffer_size()
    taken = Batch.of_arrow(batch, nbytes=whole if whole <= _SMALL_BYTES else None)
    if len(taken):
        _check_ranges(taken)
        taken = _whole_ms(taken)
    return taken


def _check_names(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise BadRecord(f"columns {names}: each may come once")
    unknown = set(names) - set(SCHEMA.names) - _IGNORED
    if unknown or "data" not in names:
        raise BadRecord(
            f"columns {names}: 'data' is needed, {SCHEMA.names} are known"
            + (f", {sorted(unknown)} are not" if unknown else "")
        )


def _column(batch: pa.RecordBatch, index: int, now_ms: int) -> pa.Array:
    field = SCHEMA.field(index)
    at = batch.schema.get_field_index(field.name)
    if at < 0:
        return _default(index, batch.num_rows, now_ms)
    column = batch.column(at)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if field.name == "timestamp" and pa.types.is_integer(column.type):
        raise BadRecord(f"column 'timestamp' is {column.type}: give it a timestamp type")
    if column.type != field.type:
        column = column.cast(field.type)
    if column.null_count and not field.nullable:
        if field.type == HEADERS_TYPE:
            present = column.to_pylist()
            return pa.array([pairs or [] for pairs in present], HEADERS_TYPE)
        return column.fill_null(_default(index, 1, now_ms)[0])
    return column


def _default(index: int, count: int, now_ms: int) -> pa.Array:
    if SCHEMA.field(index).name != "timestamp":
        return default_column(index, count)
    kind = SCHEMA.field(index).type
    return pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), count).view(kind)


def _whole_ms(taken: Batch) -> Batch:
    """The batch with its timestamps cut to the millisecond."""
    earliest, latest = taken.times_us
    if earliest == latest and earliest % 1000 == 0:
        return taken
    batch = taken.columns
    at = SCHEMA.get_field_index("timestamp")
    column = batch.column(at)
    try:
        column.cast(pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid:
        us = column.view(pa.int64())
        whole = pc.multiply(pc.divide(us, 1000), 1000).view(column.type)
        return Batch.of_arrow(batch.set_column(at, SCHEMA.field(at), whole))
    return taken


def _check_ranges(taken: Batch) -> None:
    batch = taken.columns
    for i in _NEVER_NULL:
        if batch.column(i).null_count:
            raise BadRecord(f"column {SCHEMA.field(i).name!r} has missing values")
    earliest, latest = taken.times_ms
    if earliest < 0 or latest > TIMESTAMP_MS_MAX:
        most = TIMESTAMP_MS_MAX
        raise BadRecord(f"column 'timestamp' goes from {earliest} to {latest} ms: 0 to {most}")
    for name, most in _MOST.items():
        column = batch.column(name)
        if not all_zero(column):
            lowest, highest = extremes(column)
            if lowest < 0 or highest > most:
                raise BadRecord(f"column {name!r} goes from {lowest} to {highest}: 0 to {most}")
    if len(batch.column("headers").values):
        named = batch.column("headers").flatten()
        if named.null_count or named.field("name").null_count:
            raise BadRecord("column 'headers' holds a header without a name")
    if batch.get_total_buffer_size() > RECORD_BYTES_MAX:
        _check_record_bytes(batch)


_NEVER_NULL = [i for i, field in enumerate(SCHEMA) if not field.nullable]
_SMALL_BYTES = 256 * 1024
_MOST = {"sequence": SEQUENCE_MAX, "flags": FLAGS_MAX}


def _check_record_bytes(batch: pa.RecordBatch) -> None:
    own = byte_lengths(*(batch.column(name) for name in ("key", "data", "trace")))
    sizes = pc.add(own, _header_bytes(batch.column("headers")))
    row = pc.index(pc.greater(sizes, RECORD_BYTES_MAX), True).as_py()
    if row >= 0:
        raise record_too_large(f"row {row} of the batch is a record", sizes[row].as_py())


def _header_bytes(headers: pa.Array) -> pa.Array:
    """How many bytes the names and values of each record's headers have."""
    pairs = headers.flatten()
    lengths = pc.add(
        pc.binary_length(pairs.field("name")).cast(pa.int64()),
        pc.fill_null(pc.binary_length(pairs.field("value")), 0),
    )
    before = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    edges = pc.subtract(headers.offsets, headers.offsets[0])
    return pc.subtract(before.take(edges[1:]), before.take(edges[:-1]))
