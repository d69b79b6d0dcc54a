"""Batches built from lists of keys and data, without a Python object per record."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.core.errors import BadRecord
from headrace.core.records.batch import Batch
from headrace.core.records.row import RECORD_BYTES_MAX, Row
from headrace.core.records.schema import SCHEMA, TIMESTAMP, default_column

_TIMES_US = SCHEMA.field(TIMESTAMP).type


def keyed_batch(keys: Sequence[bytes | None], data: Sequence[bytes | None], now_ms: int) -> Batch:
    """Records that have a key, data and one common timestamp, and nothing else."""
    times = pa.repeat(pa.scalar(now_ms * 1000, pa.int64()), len(keys)).view(_TIMES_US)
    batch = _plain_batch(keys, data, times)
    batch.times_us = now_ms * 1000, now_ms * 1000
    return batch


def timed_batch(
    keys: Sequence[bytes | None], data: Sequence[bytes | None], times_ms: Sequence[int]
) -> Batch:
    """Records that have a key, data and a timestamp each, and nothing else."""
    if times_ms.count(times_ms[0]) == len(times_ms):
        return keyed_batch(keys, data, times_ms[0])
    times = pa.array([ms * 1000 for ms in times_ms], pa.int64()).view(_TIMES_US)
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
    return Batch.of_arrow(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
