"""What becomes of a record that has failed: tried again, skipped, a dead letter, or the end of its
shard."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence

from headrace.core.computations.attempts import NO_RECORD, REASON_CHARS_MAX, Attempts
from headrace.core.errors import BadOutput, BadRecord, NoRetry, Rewind
from headrace.core.model import Record, Slice
from headrace.lanes.bound import BoundComputation
from headrace.lanes.dead_letter import dead_letter
from headrace.lanes.effects import SliceEffects
from headrace.lanes.handler import Handler
from headrace.lanes.outputs import MOST_BYTES, Provenance
from headrace.lanes.protocol import Failed, Judged, Work
from headrace.lanes.slice_result import SliceResult
from headrace.process.clock import now_ms

log = logging.getLogger("headrace")

Ask = Callable[[Failed], Judged]


class Failures:
    """Of the failures in one slice."""

    def __init__(
        self,
        kit: BoundComputation,
        instance: Handler,
        ledger: SliceEffects,
        work: Work,
        tally: SliceResult,
        ask: Ask,
        cut: Callable[[], None],
    ) -> None:
        self._kit = kit
        self._name = kit.computation.name
        self._policy = kit.policy
        self._instance = instance
        self._ledger = ledger
        self._work = work
        self._tally = tally
        self._ask = ask
        self._cut = cut
        self._before = Attempts.decoded(work.attempts) if work.attempts else Attempts(working=True)
        self.attempts = self._before
        """What is stored about a record of this shard that makes trouble."""

    # Before it is handled

    def gives_up(self, records: Sequence[Record], row: int, mark: Callable[[], Provenance]) -> bool:
        """Whether they are not tried again, after what is known of the first of them: then they
        are done with, or the slice ends."""
        known = self.attempts
        if known.offset != records[0].offset:
            return False
        self._ledger.follow_row(row, self._cut)
        if known.named and known.deaths >= self._policy.deaths:
            reason = f"it killed its process {known.deaths} times"
        elif known.failed and not self._policy.tries_again(known.failed):
            reason = known.reason
        else:
            failed = max(known.failed, known.deaths if known.named else 0)
            if failed:
                self._tally.tries[known.offset] = failed, "done"
            if known.failed:
                self._tally.retries += 1
                self._instance.on_retry(self._told(records), known.reason)
            return False
        failed = max(known.failed, known.deaths)
        given_up = self._decided(failed, False, reason, "", records, row, mark)
        self._tally.records += len(records) if given_up else 0
        return given_up

    def note_step(self) -> None:
        """Store where the step begins, before it is taken."""
        work, deaths_max = self._work, self._policy.deaths
        named = self.attempts.named_next if work.step == 1 else self.attempts.stepped
        noted = named(work.start, deaths_max)
        if noted != self.attempts:
            self._ledger.store(self._tally, noted)
            self.attempts = noted

    # After it has failed

    def judge(
        self,
        error: BaseException,
        records: Sequence[Record],
        row: int,
        mark: Callable[[], Provenance],
        *,
        may_skip: bool = True,
    ) -> bool:
        """Whether they are done with after this failure; else the slice ends."""
        self._tally.failures += 1
        hopeless = (NoRetry, BadOutput, Rewind, *self._policy.no_retry)
        stack = "".join(traceback.format_exception(error))
        same = self.attempts.offset == (self._tally.next if records else NO_RECORD)
        failed = (self.attempts.failed if same else 0) + 1
        retries = not isinstance(error, hopeless)
        return self._decided(
            failed, retries, _reason(error), stack, records, row, mark, may_skip=may_skip
        )

    def judge_call(self, error: BaseException, *, may_skip: bool) -> bool:
        """The same for a call that is about no record."""
        return self.judge(error, [], 0, lambda: Provenance(lambda _: now_ms()), may_skip=may_skip)

    def _decided(
        self,
        failed: int,
        retries: bool,
        reason: str,
        stack: str,
        records: Sequence[Record],
        row: int,
        mark: Callable[[], Provenance],
        *,
        may_skip: bool = True,
    ) -> bool:
        tally, name, where = self._tally, self._name, self._where(records)
        verdict = self._ask(Failed(self._work.number, failed, retries, tally.records))
        if verdict.action in ("skip", "dead-letter") and not may_skip:
            verdict = Judged("stop", why="there is no going on without init")
        tally.is_call = not records
        if verdict.action == "retry":
            log.warning("%s: %s failed, attempt %d: %s", name, where, failed, reason)
            tally.park(verdict.wait_s, reason)
            tally.trouble = failed
            return False
        log.error("%s: %s failed for good, attempt %d: %s", name, where, failed, reason)
        if records:
            self._instance.on_failure(self._told(records), reason)
        if verdict.action == "dead-letter" and records:
            try:
                self._add_letters(records, reason, failed, stack, mark)
            except BadRecord as why:
                verdict = Judged("stop", why=f"its dead letter cannot be stored: {why}")
        if verdict.action == "stop":
            self._ledger.take_back(row)
            tally.stop(f"{verdict.why}: {reason}" if verdict.why else reason, failed)
            return False
        what = "skipped" if verdict.action == "skip" or not records else "dead-lettered"
        log.error("%s: %s is %s%s", name, where, what, f": {verdict.why}" if verdict.why else "")
        if verdict.action == "skip":
            tally.skipped += len(records)
            tally.tries |= {record.offset: (failed, "skipped") for record in records}
        tally.reason = reason
        return True

    def _add_letters(
        self,
        records: Sequence[Record],
        reason: str,
        failed: int,
        stack: str,
        mark: Callable[[], Provenance],
    ) -> None:
        tally, ledger = self._tally, self._ledger
        for record in records:
            made = dead_letter(record, self._name, reason, failed, stack)
            nbytes = sum(row.nbytes for row in (*tally.letters, made))
            if ledger.out.nbytes + nbytes > MOST_BYTES and record.offset > tally.committed:
                tally.next = record.offset
                ledger.seal(mark())
                ledger.store(tally, None)
            tally.letters.append(made)
            tally.dead_letters += 1
            tally.tries[record.offset] = failed, "dead-letter"

    # At the end

    def attempts_after(self) -> Attempts | None:
        """What is to be known of the next record; None: what is stored is true."""
        before, tally = self._before, self._tally
        if tally.trouble is not None:
            code = self._kit.code if tally.trouble else ""
            offset = NO_RECORD if tally.is_call else tally.next
            after = before.failed_again(offset, now_ms(), code, tally.reason)
            stopped = tally.outcome == "stopped"
            return after._replace(failed=tally.trouble, working=True, stopped=stopped)
        if self._work.step and tally.next > self._work.start:
            return self.attempts.stepped(tally.next, self._policy.deaths)
        troubled = before.failed or before.deaths or before.named
        passed = troubled and (tally.next > before.offset or before.offset == NO_RECORD)
        return Attempts(tally.next, working=True) if passed else None

    # Below

    def _told(self, records: Sequence[Record]) -> Record | Sequence[Record]:
        return records if self._kit.computation.kind == "batch" else records[0]

    def _where(self, records: Sequence[Record]) -> str:
        if not records:
            return f"{self._ledger.ctx.shard} (no record)"
        first = records[0].id
        if len(records) == 1:
            return str(first)
        return str(Slice(first.stream, first.shard, first.offset, records[-1].offset + 1))


def _reason(error: BaseException) -> str:
    if isinstance(error, Rewind):
        return f"Rewind({error.offset}): it goes back to a record that is there, and only so"
    text = " ".join(_text(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as why:  # it cannot even say what is wrong
        text = f"its message cannot be told: {type(why).__name__}"
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
