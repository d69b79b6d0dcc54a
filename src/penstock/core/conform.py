"""A user's Arrow batch brought into our schema: missing columns get their default, types are
widened or refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.batch import (
    FLAGS_MAX,
    HEADERS_TYPE,
    RECORD_BYTES_MAX,
    SCHEMA,
)
from penstock.core.errors import BadRecord
from penstock.core.quantities import TIMESTAMP_MS_MAX, shown_size

_IGNORED = {"offset"}
"""A batch that was read may be appended elsewhere as it is."""


def conformed(batch: pa.RecordBatch | pa.Table, now_ms: int) -> pa.RecordBatch:
    """The batch in `SCHEMA`, every value in range, or `BadRecord`."""
    if isinstance(batch, pa.Table):
        batch = batch.combine_chunks()
        parts = batch.to_batches()
        batch = parts[0] if parts else pa.RecordBatch.from_pylist([], schema=batch.schema)
    if not isinstance(batch, pa.RecordBatch):
        raise BadRecord(
            f"append_arrow takes a pyarrow RecordBatch or Table, not {type(batch).__name__}"
        )
    unknown = set(batch.schema.names) - set(SCHEMA.names) - _IGNORED
    if unknown or "data" not in batch.schema.names:
        raise BadRecord(
            f"columns {batch.schema.names}: 'data' is needed, {SCHEMA.names} are known"
            + (f", {sorted(unknown)} are not" if unknown else "")
        )
    try:
        batch.validate(full=True)
        columns = [_column(batch, field, now_ms) for field in SCHEMA]
        taken = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    except (pa.ArrowException, ValueError) as why:
        raise BadRecord(f"a batch that does not fit: {why}") from None
    _check_ranges(taken)
    return taken


def _column(batch: pa.RecordBatch, field: pa.Field, now_ms: int) -> pa.Array:
    at = batch.schema.get_field_index(field.name)
    if at < 0:
        return _default(field, batch.num_rows, now_ms)
    column = batch.column(at)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type != field.type:
        column = column.cast(field.type)
    if column.null_count and not field.nullable:
        if field.type == HEADERS_TYPE:
            present = column.to_pylist()
            column = pa.array([pairs or [] for pairs in present], HEADERS_TYPE)
        else:
            column = column.fill_null(_default(field, 1, now_ms)[0])
    if field.name == "timestamp":
        column = _whole_ms(column)
    return column


def _default(field: pa.Field, count: int, now_ms: int) -> pa.Array:
    if field.nullable:
        return pa.nulls(count, field.type)
    if field.name == "timestamp":
        return pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), count).cast(field.type)
    return pa.repeat(pa.scalar([] if field.type == HEADERS_TYPE else 0, field.type), count)


def _whole_ms(column: pa.Array) -> pa.Array:
    us = column.cast(pa.int64())
    whole = pc.multiply(pc.divide(us, 1000), 1000)
    return whole.cast(column.type)


def _check_ranges(batch: pa.RecordBatch) -> None:
    if not batch.num_rows:
        return
    limits = {"timestamp": TIMESTAMP_MS_MAX * 1000, "sequence": 2**31 - 1, "flags": FLAGS_MAX}
    for name, most in limits.items():
        column = batch.column(name)
        found = pc.min_max(column.cast(pa.int64()) if name == "timestamp" else column)
        if found["min"].as_py() < 0 or found["max"].as_py() > most:
            raise BadRecord(
                f"column {name!r} goes from {found['min']} to {found['max']}: 0 to {most}"
            )
    headers = batch.column("headers").flatten()
    if len(headers) and (headers.null_count or headers.field("name").null_count):
        raise BadRecord("column 'headers' holds a header without a name")
    if batch.nbytes > RECORD_BYTES_MAX:
        _check_record_bytes(batch)


def _check_record_bytes(batch: pa.RecordBatch) -> None:
    lengths = [
        pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "data", "trace")
    ]
    longest = pc.max(pc.add(pc.add(*lengths[:2]), lengths[2])).as_py()
    if longest > RECORD_BYTES_MAX:
        raise BadRecord(
            f"a record of {shown_size(longest)}: the most is {shown_size(RECORD_BYTES_MAX)}"
        )
