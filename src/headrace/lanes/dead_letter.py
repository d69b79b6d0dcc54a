"""A dead letter: a record that was given up, unchanged but for headers that say why."""

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
    """The dead letter of a record: key, data, headers, flags and trace are kept. The stack is left
    out where it does not fit."""
    why: list[tuple[str, bytes | None]] = [
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
        [*record.headers, *why, (STACK, _bytes(stack[-STACK_CHARS_MAX:], STACK_CHARS_MAX))],
        record.trace,
    )
    try:
        return row.checked()
    except BadRecord:
        return row._replace(headers=[*record.headers, *why]).checked()


def _bytes(text: str, chars_max: int) -> bytes:
    return text[:chars_max].encode("utf-8", "backslashreplace")
