"""What becomes of a record that has failed: the policy decides, and two guards watch over it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.core.computations.policy import FLOOD_RECORDS, Policy

Action = Literal["retry", "skip", "dead-letter", "stop"]


class Verdict(NamedTuple):
    action: Action
    wait_s: float = 0.0
    why: str = ""


@dataclass(slots=True)
class FailureJudge:
    """Judges the failures of one computation in one replica."""

    policy: Policy
    skips_left: int = 0
    """How many failures are still skipped that would have stopped a shard."""
    _dead_letters_at: deque[int] = field(default_factory=deque)
    """The count of records at each of the last dead letters."""
    _records: int = 0
    """How many records were handled, whatever became of them."""

    def handled(self, records: int) -> None:
        """Count records that were handled, whatever became of them."""
        self._records += records

    def _forget_before(self, count: int) -> None:
        while self._dead_letters_at and self._dead_letters_at[0] <= count:
            self._dead_letters_at.popleft()

    def failed(self, failed: int, retries: bool, handled: int = 0) -> Verdict:
        """The verdict after ``failed`` failed attempts at a record. ``retries`` says whether
        another attempt could help; ``handled`` records before it are not counted yet."""
        policy = self.policy
        if retries and policy.tries_again(failed):
            return Verdict("retry", policy.wait_s(failed))
        if policy.then == "skip":
            return Verdict("skip")
        why = ""
        if policy.then == "dead-letter":
            at = self._records + handled
            self._forget_before(at - FLOOD_RECORDS)
            if len(self._dead_letters_at) < policy.dead_letters_max:
                self._dead_letters_at.append(at)
                return Verdict("dead-letter")
            why = (
                f"{len(self._dead_letters_at)} of the last {FLOOD_RECORDS} records went to the "
                "dead letters, so this one stops the shard"
            )
            self._dead_letters_at.clear()
        if self.skips_left > 0:
            self.skips_left -= 1
            return Verdict("skip", why=f"--skip-first-failures, {self.skips_left} left")
        return Verdict("stop", why=why)
