"""One shard worked on by one lane for one computation, under one grant.

A slice is read, handled and committed here, and what fails is dealt with: everything before a
failed record is kept, nothing of its own attempt is.
"""

from __future__ import annotations

import logging
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.codec.registry import find_codec
from penstock.core.attempts import NO_RECORD, REASON_CHARS_MAX, Attempts
from penstock.core.batch import Batch, Row
from penstock.core.errors import (
    BadOutput,
    BadRecord,
    Damaged,
    Fenced,
    Invalid,
    NoRetry,
    OffsetOutOfRange,
    PenstockError,
    Rewind,
)
from penstock.core.model import Flag, Record, ShardId, Slice
from penstock.core.ports import Append, Backend, Commit, Grant
from penstock.failpoints import failpoint
from penstock.run import story as stories
from penstock.run.committing import commit_once
from penstock.run.context import Context
from penstock.run.hand import Hand
from penstock.run.instance import Instance, Loop
from penstock.run.kit import Kit
from penstock.run.letters import letter
from penstock.run.outputs import MOST_BYTES, ORIGIN, Mark, Outputs, Overflow
from penstock.run.protocol import Failed, Outcome, Report, Verdict, Work
from penstock.run.rows import now_ms
from penstock.run.state import Budget, State
from penstock.run.tracing import spans

log = logging.getLogger("penstock")

READ_BYTES = 1024 * 1024
COMMIT_WAIT_S = 1.0
"""After a commit that could not be stored, the slice is worked on again so much later."""

_ACTING = Flag.COMMIT | Flag.POISON_PILL

Ask = Callable[[Failed], Verdict]


@dataclass(slots=True)
class _Tally:
    """What has become of the slice so far."""

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
    ends: bool = False
    rewind: int | None = None
    trouble: int | None = None
    """So many attempts at the record at `next` have failed; 0 for a poison pill."""
    is_call: bool = False
    """Or rather at a call that is about no record."""
    stored: tuple[int, int, int] = (0, 0, 0)
    """Of records, skipped ones and dead letters: how many are stored."""

    def back(self) -> None:
        """What was not stored did not come to be."""
        self.next, self.letters = self.committed, []
        self.records, self.skipped, self.dead_letters = self.stored

    def forth(self) -> None:
        """All of it is stored."""
        self.committed, self.letters = self.next, []
        self.stored = self.records, self.skipped, self.dead_letters


class Post:
    def __init__(
        self,
        backend: Backend,
        kit: Kit,
        grant: Grant,
        *,
        replica: str,
        lane: int,
        loop: Loop,
        budget: Budget,
        tells_origins: bool,
    ) -> None:
        self.grant = grant
        self._backend = backend
        self._kit = kit
        self._replica = replica
        self._lane = lane
        self._tells_origins = tells_origins
        codec = find_codec(grant.stream.codec)
        self._decode = codec.decode, getattr(codec, "decode_many", None)
        self._state = State(backend, grant, budget)
        self._out = Outputs(kit.computation.name, kit.targets)
        self._ctx = Context(
            computation=kit.computation.name,
            shard=ShardId(grant.stream.name, grant.shard),
            replica=replica,
            lane=lane,
            options=kit.options,
            state=self._state,
        )
        self._instance = Instance(kit.computation, self._out, self._ctx, loop, kit.policy.timeout_s)
        self._attempts = Attempts()
        self._mark_in_hand: Callable[[], Mark] = lambda: Mark(lambda _: now_ms())
        """How to seal what was made from the batch in hand."""
        self._is_new = True
        self._is_closed = False

    def work(self, work: Work, hand: Hand, ask: Ask) -> Report:
        """Do it, as far as it goes, and tell how far that was."""
        began_s = time.perf_counter()
        tally = _Tally(work.start, work.start)
        self._attempts = Attempts.decoded(work.attempts) if work.attempts else Attempts()
        self._ctx.on_checkpoint = hand.cut
        self._ctx.begin(work.timers)
        try:
            self._begin(work, tally, hand, ask)
            if not tally.ends:
                if self._kit.computation.kind == "batch":
                    self._work_together(work, tally, hand, ask)
                else:
                    self._work_through(work, tally, hand, ask)
        except Damaged as why:
            # Trying again does not mend it: a person has to look.
            self._drop(tally)
            tally.outcome, tally.reason, tally.trouble = "stopped", str(why), 1
        except (Fenced, OffsetOutOfRange):
            # The next grant begins at the true checkpoint, and behind what was dropped meanwhile.
            tally.outcome = "fenced"
        except PenstockError as why:
            # Reading or storing did not work, no handler is to blame: it is tried again.
            log.warning("%s %s: %s", self._kit.computation.name, self._ctx.shard, why)
            self._drop(tally)
            tally.outcome, tally.wait_s, tally.reason = "parked", COMMIT_WAIT_S, str(why)
            tally.rewind, tally.trouble = None, None
        spent_s = time.perf_counter() - began_s
        return self._stored(work, tally, spent_s)

    def close(self) -> None:
        """Its shard goes elsewhere: the user's ``close`` is called, once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._instance.close()
        except (Exception, Overflow):
            self._take_back(0)
            log.exception("close of %s failed", self._kit.computation.name)

    @property
    def is_sound(self) -> bool:
        """Whether what the instance remembers is what is stored."""
        return not self._is_new

    # Working

    def _begin(self, work: Work, tally: _Tally, hand: Hand, ask: Ask) -> None:
        self._follow(hand, None)
        if self._is_new:
            if not self._tried(self._instance.init, tally, ask):
                return
            self._is_new = False
        if work.closing:
            self.close()
            self._seal(Mark(lambda _: now_ms()))
            return
        for key in self._ctx.due():
            cancel = partial(self._ctx.cancel_timer, key)
            cancel()
            if not self._tried(partial(self._instance.on_timer, key), tally, ask, cancel):
                return
        if work.step:
            noted = self._noted(self._attempts, work)
            if noted != self._attempts:
                self._store(tally, noted)
                self._attempts = noted

    def _tried(
        self,
        call: Callable[[], None],
        tally: _Tally,
        ask: Ask,
        on_skip: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether a call that is about no record went well, or is left out; else the slice ends."""
        failure: BaseException | None = None
        try:
            call()
        except BaseException as error:
            failure = error
        if self._out.overflows:  # what is before it leaves first, then it is called again
            self._take_back(0)
            tally.ends = True
        elif failure is not None:
            self._take_back(0)
            self._judged(tally, failure, ask, [])
            if not tally.ends:
                on_skip()
        self._seal(Mark(lambda _: now_ms()))
        return not tally.ends

    def _work_through(self, work: Work, tally: _Tally, hand: Hand, ask: Ask) -> None:
        """Record by record."""
        while tally.next < work.end and not hand.is_cut and not tally.ends:
            failpoint("lane.before-read")
            reading = self._read(tally.next, work.end)
            failpoint("lane.after-read")
            if reading.next == tally.next:
                return
            failpoint("lane.before-handler")
            for at, batch in enumerate(reading.batches):
                following = reading.batches[at + 1 :]
                behind = following[0].offsets[0] if following else reading.next
                self._handle(self._decoded(batch), behind, tally, hand, ask)
                if tally.ends or hand.is_cut:
                    break
            failpoint("lane.after-handler")

    def _handle(self, batch: Batch, behind: int, tally: _Tally, hand: Hand, ask: Ask) -> None:
        """All records of a batch, or as many as go well."""
        self._mark_in_hand = partial(self._mark, batch)
        begin, count = 0, len(batch)
        flagged = _flagged(batch)
        while begin < count and not hand.is_cut and not tally.ends:
            troubled = self._attempts if self._attempts.offset == batch.offsets[begin] else None
            if troubled is not None and self._gives_up(troubled, batch, begin, tally, ask):
                begin += 1
            elif not tally.ends:
                end = next((row + 1 for row in flagged if row >= begin), count)
                end = self._before_trouble(batch, begin, end)
                begin = self._run(batch, begin, end, tally, hand, ask)
                if begin < 0:
                    return
            tally.next = behind if begin >= count else batch.offsets[begin]
            if not tally.ends and begin and begin - 1 in flagged:
                self._act_on(batch, begin - 1, tally, hand)
        mark = self._mark(batch)
        if begin:
            tally.at_ms = mark.timestamps(begin - 1)
        self._seal(mark)

    def _before_trouble(self, batch: Batch, begin: int, end: int) -> int:
        """The row of the record that is known to make trouble comes first in a run of its own."""
        at = self._attempts.offset
        if batch.offsets[begin] < at <= batch.offsets[end - 1]:
            return bisect_left(batch.offsets, at, begin, end)
        return end

    def _run(self, batch: Batch, begin: int, end: int, tally: _Tally, hand: Hand, ask: Ask) -> int:
        """The row behind those that are done; -1 if all of the slice that is not stored was
        dropped."""
        records = hand.records(batch, begin, end)
        self._follow(hand, hand.row)
        try:
            with hand:
                self._instance.each(records)
        except BaseException as error:
            row = hand.given - 1
            if self._out.overflows:
                return self._overflown(row, begin, tally)
            if isinstance(error, Rewind) and self._goes_back(error, batch.offsets[row]):
                return self._rewound(batch, begin, error.offset, tally)
            tally.records += row - begin
            self._take_back(row)
            tally.next = batch.offsets[row]
            given_up = self._judged(tally, error, ask, [Record(batch, row)], row)
            tally.records += given_up
            return row + given_up
        done = hand.given
        if self._out.overflows:  # the handler caught everything
            return self._overflown(done - 1, begin, tally)
        tally.records += done - begin
        return done

    def _overflown(self, row: int, begin: int, tally: _Tally) -> int:
        """What is before this row leaves first."""
        self._take_back(row)
        tally.records += row - begin
        tally.ends = True
        return row

    def _work_together(self, work: Work, tally: _Tally, hand: Hand, ask: Ask) -> None:
        """All records of the slice in one call."""
        batches: list[Batch] = []
        at = work.start
        while at < work.end:
            failpoint("lane.before-read")
            reading = self._read(at, work.end)
            failpoint("lane.after-read")
            if reading.next == at:
                break
            batches += map(self._decoded, reading.batches)
            at = reading.next
        if not batches:
            return
        batches, at = _to_first_flag(batches, at)
        records = [record for batch in batches for record in batch.records()]
        troubled = self._attempts if self._attempts.offset == work.start else None
        last = batches[-1]
        mark = Mark(lambda _: last.timestamps[-1], origins=self._origins(last))
        self._mark_in_hand = lambda: mark
        failpoint("lane.before-handler")
        done = troubled is not None and self._gives_up_all(troubled, records, tally, ask)
        if not done and not tally.ends:
            try:
                given = _arrow(batches) if self._instance.wants_arrow else records
                with hand:
                    self._instance.together(given)
                done = not self._out.overflows
            except BaseException as error:
                if self._out.overflows:
                    pass  # see below
                elif isinstance(error, Rewind) and self._goes_back(error, records[-1].offset):
                    self._take_back(0)
                    tally.ends, tally.outcome = True, "rewound"
                    tally.rewind = error.offset if error.offset < work.start else None
                else:
                    self._take_back(0)
                    done = bool(self._judged(tally, error, ask, records))
            if self._out.overflows:  # what is before it leaves first
                self._take_back(0)
                tally.ends = True
            tally.records += len(records) if done else 0
        failpoint("lane.after-handler")
        if done:
            tally.next = at
            tally.at_ms = last.timestamps[-1]
            self._act_on(last, len(last) - 1, tally, hand)
        self._seal(self._mark_in_hand())

    # Failures

    def _gives_up(
        self, attempts: Attempts, batch: Batch, row: int, tally: _Tally, ask: Ask
    ) -> bool:
        """Whether the record is not tried again, after what is known of it."""
        return self._gives_up_all(attempts, [Record(batch, row)], tally, ask, row)

    def _gives_up_all(
        self,
        attempts: Attempts,
        records: Sequence[Record],
        tally: _Tally,
        ask: Ask,
        row: int = 0,
    ) -> bool:
        policy = self._kit.policy
        self._follow_row(row)
        self._attempts = attempts._replace(offset=-1)  # judged once
        deadly = attempts.named and attempts.deaths >= policy.deaths
        if deadly:
            reason = f"it killed its process {attempts.deaths} times"
        elif attempts.failed and not policy.tries_again(attempts.failed):
            reason = attempts.reason
        else:
            self._attempts = attempts
            if attempts.failed:
                tally.retries += 1
                self._instance.on_retry(_one_or_all(self._kit, records), attempts.reason)
            return False
        failed = max(attempts.failed, attempts.deaths)
        self._attempts = attempts
        done = self._decided(tally, failed, False, reason, "", ask, records, row)
        if done:
            tally.records += len(records)
        return bool(done)

    def _judged(
        self,
        tally: _Tally,
        error: BaseException,
        ask: Ask,
        records: Sequence[Record],
        row: int = 0,
    ) -> int:
        """How many rows are done with after this failure: one if it is skipped, else none."""
        if not isinstance(error, Exception | SystemExit | GeneratorExit) and not _cancelled(error):
            raise error
        tally.failures += 1
        hopeless = (NoRetry, BadOutput, Rewind, *self._kit.policy.no_retry)
        reason = _reason(error)
        stack = "".join(traceback.format_exception(error))
        same = self._attempts.offset == (tally.next if records else NO_RECORD)
        failed = (self._attempts.failed if same else 0) + 1
        return self._decided(
            tally, failed, not isinstance(error, hopeless), reason, stack, ask, records, row
        )

    def _decided(
        self,
        tally: _Tally,
        failed: int,
        retries: bool,
        reason: str,
        stack: str,
        ask: Ask,
        records: Sequence[Record],
        row: int,
    ) -> int:
        name, where = self._kit.computation.name, self._where(records, tally)
        verdict = ask(Failed(self._number, failed, retries, tally.records))
        if self._is_new and verdict.action in ("skip", "dead-letter"):
            verdict = Verdict("stop", why="there is no going on without init")
        if verdict.action == "retry":
            log.warning("%s: %s failed, attempt %d: %s", name, where, failed, reason)
            tally.outcome, tally.wait_s, tally.ends = "parked", verdict.wait_s, True
            tally.reason, tally.trouble, tally.is_call = reason, failed, not records
            return 0
        log.error(
            "%s: %s failed for good, attempt %d: %s",
            name,
            where,
            failed,
            reason,
        )
        if records:
            self._instance.on_failure(_one_or_all(self._kit, records), reason)
        if verdict.action == "dead-letter" and records:
            try:
                self._add_letters(tally, records, reason, failed, stack)
            except BadRecord as why:
                verdict = Verdict("stop", why=f"its dead letter cannot be stored: {why}")
        if verdict.action == "stop":
            self._take_back(row)
            tally.outcome, tally.ends, tally.trouble = "stopped", True, failed
            tally.is_call = not records
            tally.reason = f"{verdict.why}: {reason}" if verdict.why else reason
            return 0
        what = "skipped" if verdict.action == "skip" or not records else "dead-lettered"
        log.error("%s: %s is %s%s", name, where, what, f": {verdict.why}" if verdict.why else "")
        if verdict.action == "skip":
            tally.skipped += len(records)
        tally.reason = reason
        return 1

    def _add_letters(
        self, tally: _Tally, records: Sequence[Record], reason: str, failed: int, stack: str
    ) -> None:
        name = self._kit.computation.name
        for record in records:
            made = letter(record, name, reason, failed, stack)
            nbytes = sum(row.nbytes for row in (*tally.letters, made))
            if self._out.nbytes + nbytes > MOST_BYTES and record.offset > tally.committed:
                tally.next = record.offset
                self._seal(self._mark_in_hand())
                self._store(tally, None)
            tally.letters.append(made)
            tally.dead_letters += 1

    def _goes_back(self, rewind: Rewind, offset: int) -> bool:
        """Whether that can be done from this record; else it has failed."""
        first = self._backend.bounds(self.grant.stream, self.grant.shard).start
        return first <= rewind.offset <= offset

    def _rewound(self, batch: Batch, begin: int, to: int, tally: _Tally) -> int:
        """Nothing from that offset on is kept; the row that is next, as `_run` tells it."""
        tally.ends, tally.outcome = True, "rewound"
        if to < batch.offsets[begin]:
            # Which outputs came from where is not known any more: all of the slice is made again.
            tally.rewind = to if to < tally.committed else None
            self._drop(tally)
            return -1
        kept = next(row for row in range(begin, len(batch)) if batch.offsets[row] >= to)
        self._take_back(kept)
        tally.records += kept - begin
        return kept

    def _act_on(self, batch: Batch, row: int, tally: _Tally, hand: Hand) -> None:
        """COMMIT: store now. POISON_PILL: store, and stop behind it."""
        hand.cut()
        if batch.flags[row] & Flag.POISON_PILL:
            tally.outcome, tally.ends, tally.trouble = "stopped", True, 0
            tally.reason = f"{Record(batch, row).id} has the flag POISON_PILL"

    # Storing

    def _stored(self, work: Work, tally: _Tally, spent_s: float) -> Report:
        attempts = None
        if tally.outcome != "fenced":
            attempts = self._attempts_after(work, tally)
            try:
                self._store(tally, attempts, spent_s)
            except Fenced:
                tally.outcome = "fenced"
            except PenstockError as why:
                name = self._kit.computation.name
                log.warning("%s %s: not stored: %s", name, self._ctx.shard, why)
                tally.outcome, tally.wait_s, tally.reason = "parked", COMMIT_WAIT_S, str(why)
                if isinstance(why, Invalid):  # it never will be: a person has to look
                    tally.outcome = "stopped"
                tally.rewind, attempts = None, None
                self._is_new = True
        if tally.outcome == "fenced":
            self._drop(tally)
        return Report(
            number=work.number,
            next=tally.committed,
            outcome=tally.outcome,
            wait_s=tally.wait_s,
            records=tally.records,
            spent_s=spent_s,
            outputs=tally.outputs,
            failures=tally.failures,
            retries=tally.retries,
            skipped=tally.skipped,
            dead_letters=tally.dead_letters,
            attempts=None if attempts is None else attempts.encoded(),
            reason=tally.reason,
            at_ms=tally.at_ms,
            timers=dict(self._ctx.timers),
            rewind=tally.rewind,
        )

    def _noted(self, attempts: Attempts, work: Work) -> Attempts:
        """What is to be stored before that step is taken."""
        if work.step == 1:
            return attempts.named_next(work.start, self._kit.policy.deaths)
        return attempts.stepped(work.start, self._kit.policy.deaths)

    def _attempts_after(self, work: Work, tally: _Tally) -> Attempts | None:
        """What is to be known of the next record; None: what is stored is true."""
        before = Attempts.decoded(work.attempts) if work.attempts else Attempts(working=True)
        if tally.trouble is not None:
            code = self._kit.code if tally.trouble else ""
            offset = NO_RECORD if tally.is_call else tally.next
            after = before.failed_again(offset, now_ms(), code, tally.reason)
            stopped = tally.outcome == "stopped"
            return after._replace(failed=tally.trouble, working=True, stopped=stopped)
        if work.step and tally.next > work.start:
            return self._attempts.stepped(tally.next, self._kit.policy.deaths)
        troubled = before.failed or before.deaths or before.named
        passed = troubled and (tally.next > before.offset or before.offset == NO_RECORD)
        return Attempts(tally.next, working=True) if passed else None

    def _store(self, tally: _Tally, attempts: Attempts | None, spent_s: float = 0.0) -> None:
        """One commit of all there is; nothing, if there is nothing."""
        outputs, state = self._out.appends(), self._state.changes()
        letters = self._letters(tally)
        done = Slice(self.grant.stream.name, self.grant.shard, tally.committed, tally.next)
        if not (len(done) or outputs or state or letters or attempts is not None):
            return
        story = stories.Story(
            done.start,
            done.end,
            int.from_bytes(self.grant.token, "big"),
            self._replica,
            self._lane,
            now_ms(),
            round(spent_s * 1000, 3),
            attempts.failed if attempts is not None else 0,
            tally.skipped,
            tally.dead_letters,
        )
        commit = Commit(
            grant=self.grant,
            done=done,
            outputs=outputs,
            state=state,
            dead_letters=letters,
            attempts=None if attempts is None else attempts.encoded(),
            story=stories.encoded(story),
        )
        failpoint("lane.before-commit")
        count = self._out.count
        try:
            commit_once(self._backend, commit)
        except PenstockError:
            self._drop(tally)
            raise
        failpoint("lane.after-commit")
        tally.forth()
        tally.outputs += count
        self._out.clear()
        self._state.committed()
        self._ctx.committed()

    def _letters(self, tally: _Tally) -> list[Append]:
        target = self._kit.dead_letters
        if not tally.letters:
            return []
        assert target is not None, "made when the computation was started"
        return [Append(target.info, 0, Batch(rows=tally.letters))]

    def _drop(self, tally: _Tally) -> None:
        """Nothing of what is not stored came to be."""
        tally.back()
        self._out.clear()
        self._state.drop()
        self._ctx.drop()
        self._is_new = True

    # Small things

    def _follow(self, hand: Hand, row: Callable[[], int] | None) -> None:
        self._number, self._hand = hand.number, hand
        told = row or (lambda: 0)
        left, last = (told, 0) if row is None else hand.rows_left
        self._out.follow(left, last, hand.cut)
        self._state.follow(told, hand.cut)
        self._ctx.follow(told)

    def _follow_row(self, row: int) -> None:
        """What comes now belongs to this row."""
        cut = self._hand.cut
        self._out.follow(lambda: 0, row, cut)
        self._state.follow(lambda: row, cut)
        self._ctx.follow(lambda: row)

    def _take_back(self, row: int) -> None:
        self._out.take_back(row)
        self._state.take_back(row)
        self._ctx.take_back(row)

    def _seal(self, mark: Mark) -> None:
        self._out.seal(mark)
        self._state.seal()
        self._ctx.seal()

    def _mark(self, batch: Batch) -> Mark:
        time_ms = _only_time(batch)
        return Mark(
            batch.timestamps.__getitem__ if time_ms is None else lambda _: time_ms,
            None if batch.has_no_sequences else batch.sequences.__getitem__,
            None if batch.has_no_traces else spans(batch.traces),
            self._origins(batch),
            time_ms,
        )

    def _origins(self, batch: Batch) -> Callable[[int], bytes] | None:
        if not self._tells_origins:
            return None

        def of(row: int) -> bytes:
            record = Record(batch, row)
            told = dict(record.headers).get(ORIGIN)
            return str(record.id).encode() if told is None else told

        return of

    def _read(self, start: int, end: int) -> Any:
        grant = self.grant
        return self._backend.read(
            grant.stream, grant.shard, start, end, max_records=end - start, max_bytes=READ_BYTES
        )

    def _decoded(self, batch: Batch) -> Batch:
        return batch.decoded_by(*self._decode)

    def _where(self, records: Sequence[Record], tally: _Tally) -> str:
        if not records:
            return f"{self._ctx.shard} (no record)"
        first = records[0].id
        if len(records) == 1:
            return str(first)
        return str(Slice(first.stream, first.shard, first.offset, records[-1].offset + 1))


def _to_first_flag(batches: list[Batch], behind: int) -> tuple[list[Batch], int]:
    """The batches up to the first record whose flags ask for something, and where to go on."""
    for at, batch in enumerate(batches):
        for row in _flagged(batch)[:1]:
            following = batch.offsets[row] + 1
            if row + 1 == len(batch):
                following = batches[at + 1].offsets[0] if batches[at + 1 :] else behind
            return [*batches[:at], batch.part(0, row + 1)], following
    return batches, behind


def _flagged(batch: Batch) -> list[int]:
    """The rows whose flags ask for something."""
    if batch.has_no_flags:
        return []
    return [row for row, flags in enumerate(batch.flags) if flags & _ACTING]


def _only_time(batch: Batch) -> int | None:
    """The timestamp of all records, if they have the same: told without looking at each."""
    earliest, latest = batch.times_ms
    return latest if earliest == latest else None


def _one_or_all(kit: Kit, records: Sequence[Record]) -> Record | Sequence[Record]:
    return records if kit.computation.kind == "batch" else records[0]


def _cancelled(error: BaseException) -> bool:
    return type(error).__name__ == "CancelledError"


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as why:  # it cannot even say what is wrong
        text = f"its message cannot be told: {type(why).__name__}"
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()


def _reason(error: BaseException) -> str:
    if isinstance(error, Rewind):
        return f"Rewind({error.offset}): it goes back to a record that is there, and only so"
    text = " ".join(_text(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _arrow(batches: Sequence[Batch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0].arrow
    table = pa.Table.from_batches([batch.arrow for batch in batches]).combine_chunks()
    return table.to_batches()[0]
