"""What becomes of a record that has failed: the policy's word, and two guards beside it."""

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
    """Of one computation in one replica."""

    policy: Policy
    skips_left: int = 0
    """So many failures are skipped that would have stopped a shard."""
    _letters: deque[int] = field(default_factory=deque)
    """At which count of records the last dead letters were."""
    _records: int = 0

    def handled(self, records: int) -> None:
        """So many records were handled, however that ended."""
        self._records += records

    def _forget_before(self, count: int) -> None:
        while self._letters and self._letters[0] <= count:
            self._letters.popleft()

    def failed(self, failed: int, retries: bool, handled: int = 0) -> Verdict:
        """After so many failed attempts at a record; ``retries``: another one could help. So many
        records before it were handled and are not counted yet."""
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
