"""Records as Kafka's messages: key, value, timestamp and headers are Kafka's own fields.

What Kafka has no field for (sequence, flags, trace) goes into one more header at the end, and only
when there is any. A record whose own last header has that name gets one too, so that reading never
mistakes the one for the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.core.model import Header
from headrace.core.records.batch import Batch
from headrace.core.records.row import FLAGS_MAX, SEQUENCE_MAX, Row

EXTRA = "headrace"
_EXTRA = struct.Struct(">BBIH")
_VERSION = 1
_TRACED = 1
_AT_ZERO = 2
"""The client takes a timestamp of 0 for "now": the first millisecond of 1970 is written as 1."""


class Outgoing(NamedTuple):
    """What the client's ``produce`` takes."""

    value: bytes | None
    key: bytes | None
    headers: list[Header] | None
    timestamp: int


def outgoing(batch: Batch) -> Iterator[Outgoing]:
    return map(_outgoing, batch.rows)


def is_plain(batch: Batch) -> bool:
    """Whether each record is a key, data and a timestamp, and has nothing else to say."""
    return (
        not batch.is_rows
        and batch.has_no_headers
        and batch.has_no_flags
        and batch.has_no_sequences
        and batch.has_no_traces
        and batch.times_ms[0] > 0
    )


def _outgoing(row: Row) -> Outgoing:
    headers = list(row.headers)
    if (
        row.sequence
        or row.flags
        or row.trace is not None
        or not row.timestamp
        or (headers and headers[-1][0] == EXTRA)
    ):
        marks = (_TRACED if row.trace is not None else 0) | (0 if row.timestamp else _AT_ZERO)
        packed = _EXTRA.pack(_VERSION, marks, row.sequence, row.flags) + (row.trace or b"")
        headers.append((EXTRA, packed))
    return Outgoing(row.data, row.key, headers or None, row.timestamp or 1)


class Extra(NamedTuple):
    sequence: int = 0
    flags: int = 0
    trace: bytes | None = None
    at_zero: bool = False


NO_EXTRA = Extra()


def split_headers(headers: Sequence[Header]) -> tuple[tuple[Header, ...], Extra]:
    """A message's headers as the record's own, and what the last one holds of its other fields."""
    extra = _extra(headers[-1]) if headers else None
    return (tuple(headers), NO_EXTRA) if extra is None else (tuple(headers[:-1]), extra)


def _extra(header: Header) -> Extra | None:
    name, packed = header
    if name != EXTRA or packed is None or len(packed) < _EXTRA.size or packed[0] != _VERSION:
        return None
    _, marks, sequence, flags = _EXTRA.unpack_from(packed)
    if sequence > SEQUENCE_MAX or flags > FLAGS_MAX or marks > _TRACED | _AT_ZERO:
        return None  # somebody else's: as a record it could not be
    trace = packed[_EXTRA.size :] if marks & _TRACED else None
    return Extra(sequence, flags, trace, bool(marks & _AT_ZERO))
