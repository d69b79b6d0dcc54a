"""What becomes of a record that has failed: it is tried again, skipped, made a dead letter, or it
stops its shard."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence

from headrace.core.computations.attempts import NO_RECORD, REASON_CHARS_MAX, Attempts
from headrace.core.computations.verdict import Verdict
from headrace.core.errors import BadOutput, BadRecord, NoRetry, Rewind
from headrace.core.model import Record, Slice
from headrace.lanes.bound import BoundComputation
from headrace.lanes.dead_letter import dead_letter
from headrace.lanes.effects import SliceEffects
from headrace.lanes.handler import Handler
from headrace.lanes.outputs import OUTPUT_BYTES_MAX
from headrace.lanes.protocol import Failed, Work
from headrace.lanes.provenance import Provenance
from headrace.lanes.slice_result import SliceResult
from headrace.process.clock import now_ms

log = logging.getLogger("headrace")

AskVerdict = Callable[[Failed], Verdict]
MakeProvenance = Callable[[], Provenance]


class Failures:
    """The failures in one run of one slice."""

    def __init__(
        self,
        bound: BoundComputation,
        handler: Handler,
        effects: SliceEffects,
        work: Work,
        result: SliceResult,
        ask: AskVerdict,
        cut: Callable[[], None],
    ) -> None:
        self._bound = bound
        self._name = bound.computation.name
        self._policy = bound.policy
        self._handler = handler
        self._effects = effects
        self._work = work
        self._result = result
        self._ask = ask
        self._cut = cut
        self._before = Attempts.decoded(work.attempts) if work.attempts else Attempts(working=True)
        self.attempts = self._before
        """What is stored about a record of this shard that makes trouble."""

    # Before a record is handled

    def gives_up(self, records: Sequence[Record], row: int, provenance: MakeProvenance) -> bool:
        """Whether the records are given up without another attempt, after what is stored about the
        first of them. Given up, they are done with, unless that stops the shard: then the slice is
        over."""
        known = self.attempts
        if known.offset != records[0].offset:
            return False
        self._effects.follow_row(row, self._cut)
        if known.named and known.deaths >= self._policy.deaths:
            reason = f"it killed its process {known.deaths} times"
        elif known.failed and not self._policy.tries_again(known.failed):
            reason = known.reason
        else:
            failed = max(known.failed, known.deaths if known.named else 0)
            if failed:
                self._result.tries[known.offset] = failed, "done"
            if known.failed:
                self._result.retries += 1
                self._handler.on_retry(self._as_handled(records), known.reason)
            return False
        failed = max(known.failed, known.deaths)
        given_up = self._decide(failed, False, reason, "", records, row, provenance)
        self._result.records += len(records) if given_up else 0
        return given_up

    def note_step(self) -> None:
        """Store where the step begins, before the step is taken."""
        work, deaths_max = self._work, self._policy.deaths
        noted_at = self.attempts.named_next if work.step == 1 else self.attempts.stepped
        noted = noted_at(work.start, deaths_max)
        if noted != self.attempts:
            self._effects.store(self._result, noted)
            self.attempts = noted

    # After a record has failed

    def judge(
        self,
        error: BaseException,
        records: Sequence[Record],
        row: int,
        provenance: MakeProvenance,
        *,
        may_skip: bool = True,
    ) -> bool:
        """Whether the records are done with after this failure; if not, the slice is over."""
        self._result.failures += 1
        hopeless = (NoRetry, BadOutput, Rewind, *self._policy.no_retry)
        stack = "".join(traceback.format_exception(error))
        same = self.attempts.offset == (self._result.next if records else NO_RECORD)
        failed = (self.attempts.failed if same else 0) + 1
        retries = not isinstance(error, hopeless)
        return self._decide(
            failed, retries, _reason(error), stack, records, row, provenance, may_skip=may_skip
        )

    def judge_call(self, error: BaseException, *, may_skip: bool) -> bool:
        """The same for a call without a record."""
        return self.judge(error, [], 0, lambda: Provenance(lambda _: now_ms()), may_skip=may_skip)

    def _decide(
        self,
        failed: int,
        retries: bool,
        reason: str,
        stack: str,
        records: Sequence[Record],
        row: int,
        provenance: MakeProvenance,
        *,
        may_skip: bool = True,
    ) -> bool:
        result, name, where = self._result, self._name, self._where(records)
        verdict = self._ask(Failed(self._work.number, failed, retries, result.records))
        if verdict.action in ("skip", "dead-letter") and not may_skip:
            verdict = Verdict("stop", why="without its init the computation cannot go on")
        result.is_call = not records
        if verdict.action == "retry":
            log.warning("%s: %s failed, attempt %d: %s", name, where, failed, reason)
            result.park(verdict.wait_s, reason)
            result.trouble = failed
            return False
        log.error("%s: %s failed for good, attempt %d: %s", name, where, failed, reason)
        if records:
            self._handler.on_failure(self._as_handled(records), reason)
        if verdict.action == "dead-letter" and records:
            try:
                self._add_dead_letters(records, reason, failed, stack, provenance)
            except BadRecord as why:
                verdict = Verdict("stop", why=f"its dead letter cannot be stored: {why}")
        if verdict.action == "stop":
            self._effects.take_back(row)
            result.stop(f"{verdict.why}: {reason}" if verdict.why else reason, failed)
            return False
        what = "skipped" if verdict.action == "skip" or not records else "dead-lettered"
        log.error("%s: %s is %s%s", name, where, what, f": {verdict.why}" if verdict.why else "")
        if verdict.action == "skip":
            result.skipped += len(records)
            result.tries |= {record.offset: (failed, "skipped") for record in records}
        result.reason = reason
        return True

    def _add_dead_letters(
        self,
        records: Sequence[Record],
        reason: str,
        failed: int,
        stack: str,
        provenance: MakeProvenance,
    ) -> None:
        """Add a dead letter for each record. What is before a record is stored first, where the
        dead letter does not fit into one commit with it."""
        result, effects = self._result, self._effects
        for record in records:
            made = dead_letter(record, self._name, reason, failed, stack)
            nbytes = sum(row.nbytes for row in (*result.dead_letter_rows, made))
            is_full = effects.out.nbytes + nbytes > OUTPUT_BYTES_MAX
            if is_full and record.offset > result.committed:
                result.next = record.offset
                effects.seal(provenance())
                effects.store(result, None)
            result.dead_letter_rows.append(made)
            result.dead_letters += 1
            result.tries[record.offset] = failed, "dead-letter"

    # At the end of the run

    def attempts_after(self) -> Attempts | None:
        """What is to be stored about the next record; None: what is stored is true."""
        before, result = self._before, self._result
        if result.trouble is not None:
            code = self._bound.code if result.trouble else ""
            offset = NO_RECORD if result.is_call else result.next
            after = before.failed_again(offset, now_ms(), code, result.reason)
            stopped = result.outcome == "stopped"
            return after._replace(failed=result.trouble, working=True, stopped=stopped)
        if self._work.step and result.next > self._work.start:
            return self.attempts.stepped(result.next, self._policy.deaths)
        troubled = before.failed or before.deaths or before.named
        passed = troubled and (result.next > before.offset or before.offset == NO_RECORD)
        return Attempts(result.next, working=True) if passed else None

    # Below

    def _as_handled(self, records: Sequence[Record]) -> Record | Sequence[Record]:
        """The records in the form that the user's function takes: one, or all together."""
        return records if self._bound.computation.kind == "batch" else records[0]

    def _where(self, records: Sequence[Record]) -> str:
        if not records:
            return f"{self._effects.ctx.shard} (no record)"
        first = records[0].id
        if len(records) == 1:
            return str(first)
        return str(Slice(first.stream, first.shard, first.offset, records[-1].offset + 1))


def _reason(error: BaseException) -> str:
    if isinstance(error, Rewind):
        return (
            f"Rewind({error.offset}): a handler can only go back, to a record that is still there"
        )
    text = " ".join(_text(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as why:  # the message itself raises
        text = f"its message cannot be shown: {type(why).__name__}"
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
