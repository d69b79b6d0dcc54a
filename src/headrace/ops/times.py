"""Times as people and programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def utc(timestamp_ms: int) -> str:
    """As in ``2026-01-31T08:00:00.000Z``."""
    text = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
