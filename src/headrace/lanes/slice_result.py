"""The account of a slice: what has become of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.computations.attempts import Attempts
from headrace.core.records.row import Row
from headrace.lanes.protocol import Outcome, Report
from headrace.lanes.story import RecordOutcome


@dataclass(slots=True)
class SliceResult:
    next: int
    committed: int
    """Up to there it is stored."""
    records: int = 0
    outputs: int = 0
    failures: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    letters: list[Row] = field(default_factory=list)
    outcome: Outcome = "done"
    wait_s: float = 0.0
    reason: str = ""
    at_ms: int = 0
    """The timestamp of the last record handled."""
    ends: bool = False
    """Nothing more of the slice is handled."""
    rewind: int | None = None
    trouble: int | None = None
    """So many attempts at the record at `next` have failed; 0 for a poison pill."""
    is_call: bool = False
    """Or rather at a call that is about no record."""
    tries: dict[int, tuple[int, RecordOutcome]] = field(default_factory=dict)
    """By offset: how many attempts failed at a record, and what became of the record."""
    stored: tuple[int, int, int] = (0, 0, 0)
    """Of records, skipped ones and dead letters: how many are stored."""

    def back(self) -> None:
        """What was not stored did not come to be."""
        self.next, self.letters = self.committed, []
        self.records, self.skipped, self.dead_letters = self.stored

    def forth(self, outputs: int) -> None:
        """All of it is stored."""
        self.committed, self.letters = self.next, []
        self.stored = self.records, self.skipped, self.dead_letters
        self.outputs += outputs

    def park(self, wait_s: float, reason: str) -> None:
        """It is worked on again after so long."""
        self.outcome, self.wait_s, self.reason, self.ends = "parked", wait_s, reason, True

    def stop(self, reason: str, failed: int | None) -> None:
        """The shard stops, after so many failed attempts; 0: because it was told to; None: nothing
        can be noted about it."""
        self.outcome, self.reason, self.trouble, self.ends = "stopped", reason, failed, True

    def report(
        self,
        number: int,
        spent_s: float,
        attempts: Attempts | None,
        timers: dict[str, float],
    ) -> Report:
        return Report(
            number=number,
            next=self.committed,
            outcome=self.outcome,
            wait_s=self.wait_s,
            records=self.records,
            spent_s=spent_s,
            outputs=self.outputs,
            failures=self.failures,
            retries=self.retries,
            skipped=self.skipped,
            dead_letters=self.dead_letters,
            attempts=None if attempts is None else attempts.encoded(),
            reason=self.reason,
            at_ms=self.at_ms,
            timers=timers,
            rewind=self.rewind,
        )
