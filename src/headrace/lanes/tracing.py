"""Trace context (W3C ``traceparent``), carried from a record to the outputs made from it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)


def next_span(trace: bytes) -> bytes:
    """The same trace with a new span. A trace that is no traceparent is carried on unchanged."""
    found = _PARENT.fullmatch(trace)
    if found is None:
        return trace
    version, trace_id, _, flags, _ = found.groups()
    return b"-".join((version, trace_id, secrets.token_hex(8).encode(), flags))


def spans(traces: Sequence[bytes | None]) -> Callable[[int], bytes | None]:
    """A function from a row to the trace of its outputs: all outputs of a row share one span."""
    made: dict[int, bytes | None] = {}

    def of(row: int) -> bytes | None:
        if row not in made:
            trace = traces[row]
            made[row] = None if trace is None else next_span(trace)
        return made[row]

    return of
