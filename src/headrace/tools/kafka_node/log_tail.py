"""The log of Kafka: what is written, and how much of it is shown."""

from __future__ import annotations

TAIL_LINES = 6

QUIET = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
"""Java options: log warnings and errors only."""


def tail(text: str) -> str:
    """The last lines of a text, joined into one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:])
