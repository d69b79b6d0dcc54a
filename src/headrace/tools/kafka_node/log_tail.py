"""What Kafka says, and how much of it is shown."""

from __future__ import annotations

TAIL_LINES = 6

QUIET = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
"""For Java: only what is not as it should be."""


def tail(text: str) -> str:
    """Its last lines, in one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:])
