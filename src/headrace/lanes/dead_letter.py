"""A dead letter: the record as it was, with headers that tell why it was given up."""

from __future__ import annotations

from headrace.core.errors import BadRecord
from headrace.core.model import Record
from headrace.core.records.row import Row
from headrace.process.clock import now_ms

STACK_CHARS_MAX = 8_000
REASON_CHARS_MAX = 2_000

ORIGIN, COMPUTATION = "dead-letter-origin", "dead-letter-computation"
REASON, ATTEMPTS = "dead-letter-reason", "dead-letter-attempts"
STACK, AT = "dead-letter-stack", "dead-letter-at-ms"


def dead_letter(record: Record, computation: str, reason: str, attempts: int, stack: str) -> Row:
    """Key, data, headers, flags and trace are kept; without the stack where it would not fit."""
    told: list[tuple[str, bytes | None]] = [
        (ORIGIN, str(record.id).encode()),
        (COMPUTATION, computation.encode()),
        (REASON, _bytes(reason, REASON_CHARS_MAX)),
        (ATTEMPTS, str(attempts).encode()),
        (AT, str(now_ms()).encode()),
    ]
    row = Row(
        record.key_bytes,
        record.data,
        record.timestamp_ms,
        record.sequence,
        int(record.flags),
        [*record.headers, *told, (STACK, _bytes(stack[-STACK_CHARS_MAX:], STACK_CHARS_MAX))],
        record.trace,
    )
    try:
        return row.checked()
    except BadRecord:
        return row._replace(headers=[*record.headers, *told]).checked()


def _bytes(text: str, most: int) -> bytes:
    return text[:most].encode("utf-8", "backslashreplace")
