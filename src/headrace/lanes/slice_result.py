"""What has become of a slice so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.core.computations.attempts import Attempts
from headrace.core.records.row import Row
from headrace.lanes.protocol import Outcome, Report
from headrace.lanes.story import RecordOutcome


@dataclass(slots=True)
class SliceResult:
    next: int
    """Every record before this offset is done."""
    committed: int
    """Every record before this offset is done and stored."""
    records: int = 0
    outputs: int = 0
    failures: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    dead_letter_rows: list[Row] = field(default_factory=list)
    """The dead letters that are not stored yet."""
    outcome: Outcome = "done"
    wait_s: float = 0.0
    reason: str = ""
    at_ms: int = 0
    """The timestamp of the last record handled."""
    is_over: bool = False
    """No further record of the slice is handled."""
    rewind: int | None = None
    """The offset that the checkpoint is to be moved back to."""
    trouble: int | None = None
    """How many attempts at the record at `next` have failed; 0 for a poison pill; None if nothing
    is to be noted about that record."""
    is_call: bool = False
    """The trouble is with a call without a record, not with the record at `next`."""
    tries: dict[int, tuple[int, RecordOutcome]] = field(default_factory=dict)
    """By offset: how many attempts failed at a record, and what became of the record."""
    stored: tuple[int, int, int] = (0, 0, 0)
    """How many records, skipped records and dead letters are stored."""

    def drop(self) -> None:
        """Forget what is not stored."""
        self.next, self.dead_letter_rows = self.committed, []
        self.records, self.skipped, self.dead_letters = self.stored

    def note_commit(self, outputs: int) -> None:
        """Everything so far is stored, with this many outputs."""
        self.committed, self.dead_letter_rows = self.next, []
        self.stored = self.records, self.skipped, self.dead_letters
        self.outputs += outputs

    def park(self, wait_s: float, reason: str) -> None:
        """Have the slice worked on again after a while."""
        self.outcome, self.wait_s, self.reason, self.is_over = "parked", wait_s, reason, True

    def stop(self, reason: str, failed: int | None) -> None:
        """Have the shard stopped after ``failed`` failed attempts: 0 if the record asked for it,
        None if nothing can be noted about the record."""
        self.outcome, self.reason, self.trouble, self.is_over = "stopped", reason, failed, True

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
