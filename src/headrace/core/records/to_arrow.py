"""Records as Arrow columns: made of rows, or of one list for each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.core.model import Header
from headrace.core.records.row import Row
from headrace.core.records.schema import HEADERS, HEADERS_TYPE, SCHEMA, TIMESTAMP, default_column

_TIMES_MS = pa.timestamp("ms", "UTC")


class Listed(Protocol):
    """Records as one list for each column of `SCHEMA`; the timestamps are in milliseconds."""

    def __len__(self) -> int: ...

    def column(self, index: int, /) -> list[Any] | None:
        """The values of a column; None if all records have its default."""


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
