"""What a replica counts for each of its computations; `ops` shows it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.lanes.protocol import Report

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

    def add(self, report: Report, now_ms: int) -> None:
        """Count what a slice came to."""
        if report.outcome == "fenced":
            self.not_stored += 1
            return
        self.processed += report.records
        self.outputs += report.outputs
        self.failures += report.failures
        self.retries += report.retries
        self.skipped += report.skipped
        self.dead_letters += report.dead_letters
        self.slices += 1
        self.busy_s += report.spent_s
        if report.at_ms:
            self.behind_s.append(max(now_ms - report.at_ms, 0) / 1000)
        if report.reason:
            self.last_failure = report.reason
        if report.failures and self.first_failure_ms is None:
            self.first_failure_ms = now_ms

    def latency_s(self, share: float) -> float | None:
        """The time from timestamp to commit that this share of the last slices kept to."""
        found = sorted(self.behind_s)
        return found[min(int(len(found) * share), len(found) - 1)] if found else None
