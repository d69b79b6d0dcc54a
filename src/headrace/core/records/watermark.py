"""Nuxeo's watermark: one integer that holds a point in time, a sequence inside it, and whether all
work before it is done."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import BadRecord

SEQUENCE_MAX = 0xFFFF
_TIMESTAMP_MS_MAX = 2**46 - 1


class Watermark(NamedTuple):
    """``value = timestamp_ms << 17 | sequence << 1 | completed``. Watermarks sort like values."""

    timestamp_ms: int
    sequence: int = 0
    completed: bool = False

    @property
    def value(self) -> int:
        if (
            not 0 <= self.timestamp_ms <= _TIMESTAMP_MS_MAX
            or not 0 <= self.sequence <= SEQUENCE_MAX
        ):
            raise BadRecord(f"{self} has no watermark value: 46 bits of time, 16 bits of sequence")
        return self.timestamp_ms << 17 | self.sequence << 1 | self.completed

    @classmethod
    def of(cls, value: int) -> Watermark:
        if not 0 <= value < 2**63:
            raise BadRecord(f"{value} is no watermark: it must lie between 0 and 2**63")
        return cls(value >> 17, value >> 1 & SEQUENCE_MAX, bool(value & 1))
