"""What a replica counts for each of its computations; `ops` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SAMPLES = 2_000


@dataclass(slots=True)
class Counters:
    """Written by the dispatcher, under its lock."""

    processed: int = 0
    outputs: int = 0
    failures: int = 0
    """Attempts that failed."""
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    stopped: int = 0
    """Shards that were stopped because of a failure."""
    slices: int = 0
    busy_s: float = 0.0
    lanes_lost: int = 0
    not_stored: int = 0
    """Slices whose commit was refused or could not be stored: they are worked on again."""
    behind_s: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """From a record's timestamp to its commit, of the last record of the last slices."""
    last_failure: str = ""
    first_failure_ms: int | None = None

    def latency_s(self, share: float) -> float | None:
        """So long it took for this share of the last slices, from timestamp to commit."""
        found = sorted(self.behind_s)
        return found[min(int(len(found) * share), len(found) - 1)] if found else None
