"""What becomes of a record that has failed: what its policy says, and two guards."""

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
    """How many failures are still skipped that would otherwise stop a shard."""
    _letters: deque[int] = field(default_factory=deque)
    """The counts of handled records at which the last dead letters came."""
    _records: int = 0

    def handled(self, records: int) -> None:
        """Count records that were handled, with whatever result."""
        self._records += records

    def _forget_before(self, count: int) -> None:
        while self._letters and self._letters[0] <= count:
            self._letters.popleft()

    def failed(self, failed: int, retries: bool, handled: int = 0) -> Verdict:
        """What to do after ``failed`` attempts at a record have failed. ``retries`` tells whether
        another attempt could help; ``handled`` is how many records before this one were handled
        and are not counted yet."""
        policy = self.policy
        if retries and policy.tries_again(failed):
            return Verdict("retry", policy.wait_s(failed))
        if policy.then == "skip":
            return Verdict("skip")
        why = ""
        if policy.then == "dead-letter":
            at = self._records + handled
            self._forget_before(at - FLOOD_RECORDS)
            if len(self._letters) < policy.dead_letters_max:
                self._letters.append(at)
                return Verdict("dead-letter")
            why = (
                f"{len(self._letters)} of the last {FLOOD_RECORDS} records went to the dead "
                "letters, so this one stops the shard"
            )
            self._letters.clear()
        if self.skips_left > 0:
            self.skips_left -= 1
            return Verdict("skip", why=f"--skip-first-failures, {self.skips_left} left")
        return Verdict("stop", why=why)
