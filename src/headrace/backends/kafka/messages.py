"""Records as Kafka's messages: key, value, timestamp and headers are Kafka's own fields.

Kafka has no field for a record's sequence, flags and trace. They go into one more header at the
end, which is left out if all three are empty. A record whose own last header has the name of ours
gets ours as well, so that a reader never mistakes one for the other.
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
"""Set where the timestamp is 0. The client takes 0 for "now", so 1 is sent."""


class Outgoing(NamedTuple):
    """The fields of a message as the client's ``produce`` takes them."""

    value: bytes | None
    key: bytes | None
    headers: list[Header] | None
    timestamp: int


def outgoing(batch: Batch) -> Iterator[Outgoing]:
    return map(_outgoing, batch.rows)


def is_plain(batch: Batch) -> bool:
    """Whether all records consist of a key, data and a timestamp only."""
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
        bits = (_TRACED if row.trace is not None else 0) | (0 if row.timestamp else _AT_ZERO)
        packed = _EXTRA.pack(_VERSION, bits, row.sequence, row.flags) + (row.trace or b"")
        headers.append((EXTRA, packed))
    return Outgoing(row.data, row.key, headers or None, row.timestamp or 1)


class Extra(NamedTuple):
    """The fields of a record that Kafka has no field for."""

    sequence: int = 0
    flags: int = 0
    trace: bytes | None = None
    at_zero: bool = False


NO_EXTRA = Extra()


def split_headers(headers: Sequence[Header]) -> tuple[tuple[Header, ...], Extra]:
    """The record's own headers among those of its message, and what our header at the end holds."""
    extra = _extra(headers[-1]) if headers else None
    return (tuple(headers), NO_EXTRA) if extra is None else (tuple(headers[:-1]), extra)


def _extra(header: Header) -> Extra | None:
    name, packed = header
    if name != EXTRA or packed is None or len(packed) < _EXTRA.size or packed[0] != _VERSION:
        return None
    _, bits, sequence, flags = _EXTRA.unpack_from(packed)
    if sequence > SEQUENCE_MAX or flags > FLAGS_MAX or bits > _TRACED | _AT_ZERO:
        return None  # not written by Headrace: no record has such fields
    trace = packed[_EXTRA.size :] if bits & _TRACED else None
    return Extra(sequence, flags, trace, bool(bits & _AT_ZERO))
