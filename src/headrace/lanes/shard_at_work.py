"""One shard worked on by one lane for one computation, under one grant.

A slice is read, handled and committed here: everything before a failed record is kept, nothing of
its own attempt is.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial

from headrace.codec.registry import find_codec
from headrace.core.errors import (
    Damaged,
    Fenced,
    HeadraceError,
    Invalid,
    OffsetOutOfRange,
    Rewind,
)
from headrace.core.model import Flag, Record
from headrace.core.ports import Backend, Grant, ReadResult
from headrace.core.records.batch import Batch
from headrace.lanes.bound import BoundComputation
from headrace.lanes.effects import SliceEffects
from headrace.lanes.failures import Ask, Failures
from headrace.lanes.handler import Handler, Loop
from headrace.lanes.outputs import Overflow
from headrace.lanes.protocol import Report, Work
from headrace.lanes.provenance import (
    as_arrow,
    flagged,
    provenance_of,
    provenance_of_all,
    to_first_flag,
)
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.slice_result import SliceResult
from headrace.lanes.state import Budget
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

READ_BYTES = 1024 * 1024
AGAIN_S = 1.0
"""A slice that could not be read or stored is worked on again so much later."""


class ShardAtWork:
    def __init__(
        self,
        backend: Backend,
        kit: BoundComputation,
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
        self._tells_origins = tells_origins
        codec = find_codec(grant.stream.codec)
        self._decode = codec.decode, getattr(codec, "decode_many", None)
        self._ledger = SliceEffects(backend, kit, grant, replica, lane, budget)
        self._instance = Handler(
            kit.computation, self._ledger.out, self._ledger.ctx, loop, kit.policy.timeout_s
        )
        self._is_open = False
        """Its ``init`` went well."""
        self._is_closed = False

    def work(self, work: Work, hand: SliceInHand, ask: Ask) -> Report:
        """Do it, as far as it goes, and tell how far that was."""
        began_s = time.perf_counter()
        tally = SliceResult(work.start, work.start)
        trial = Failures(self._kit, self._instance, self._ledger, work, tally, ask, hand.cut)
        self._ledger.ctx.on_checkpoint = hand.cut
        self._ledger.ctx.begin(work.timers)
        try:
            self._begin(work, tally, hand, trial)
            if not tally.ends:
                together = self._kit.computation.kind == "batch"
                (self._work_together if together else self._work_through)(work, tally, hand, trial)
        except HeadraceError as why:
            self._interrupted(tally, why)
        return self._stored(work, tally, trial, time.perf_counter() - began_s)

    def close(self) -> None:
        """Its shard goes elsewhere: the user's ``close`` is called, once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._instance.close()
        except (Exception, Overflow):
            self._ledger.take_back(0)
            log.exception("close of %s failed", self._kit.computation.name)

    @property
    def is_sound(self) -> bool:
        """Whether what the instance remembers is what is stored."""
        return self._is_open and self._ledger.is_sound

    # Calls that are about no record

    def _begin(self, work: Work, tally: SliceResult, hand: SliceInHand, trial: Failures) -> None:
        self._ledger.follow_row(0, hand.cut)
        if not self._is_open:
            if not self._called(self._instance.init, tally, hand, trial):
                return
            self._is_open = True
        if work.closing:
            self.close()
            self._ledger.seal_now()
            return
        ctx = self._ledger.ctx
        for key in ctx.due():
            cancel = partial(ctx.cancel_timer, key)
            cancel()
            call = partial(self._instance.on_timer, key)
            if not self._called(call, tally, hand, trial, on_skip=cancel):
                return
        if work.step:
            trial.note_step()

    def _called(
        self,
        call: Callable[[], None],
        tally: SliceResult,
        hand: SliceInHand,
        trial: Failures,
        *,
        on_skip: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether it went well, or is left out; else the slice ends."""
        ledger, failure = self._ledger, None
        try:
            with hand.apart():
                call()
        except BaseException as error:
            failure = error
        if ledger.out.overflows:  # what is before it leaves first, then it is called again
            ledger.take_back(0)
            tally.ends = True
        elif failure is not None:
            ledger.take_back(0)
            if trial.judge_call(failure, may_skip=self._is_open):
                on_skip()
        ledger.seal_now()
        return not tally.ends

    # Record by record

    def _work_through(
        self, work: Work, tally: SliceResult, hand: SliceInHand, trial: Failures
    ) -> None:
        while tally.next < work.end and not hand.is_cut and not tally.ends:
            reading = self._read(tally.next, work.end)
            if reading.next == tally.next:
                return
            failpoint("lane.before-handler")
            for at, batch in enumerate(reading.batches):
                following = reading.batches[at + 1 :]
                behind = following[0].offsets[0] if following else reading.next
                self._handle(batch, behind, tally, hand, trial)
                if tally.ends or hand.is_cut:
                    break
            else:
                tally.next = reading.next
            failpoint("lane.after-handler")

    def _handle(
        self, batch: Batch, behind: int, tally: SliceResult, hand: SliceInHand, trial: Failures
    ) -> None:
        """All records of a batch, or as many as go well."""
        mark = partial(provenance_of, batch, tells_origins=self._tells_origins)
        begin, count, flags = 0, len(batch), flagged(batch)
        while begin < count and not hand.is_cut and not tally.ends:
            if trial.gives_up([Record(batch, begin)], begin, mark):
                begin += 1
                hand.cut()  # stored at once: what is behind it may kill this process
            elif not tally.ends:
                end = next((row + 1 for row in flags if row >= begin), count)
                end = _before(trial.attempts.offset, batch, begin, end)
                begin = self._run(batch, begin, end, tally, hand, trial)
                if begin < 0:
                    return
            tally.next = behind if begin >= count else batch.offsets[begin]
            if not tally.ends and begin and begin - 1 in flags:
                _act_on(batch, begin - 1, tally, hand)
        made = mark()
        if begin:
            tally.at_ms = made.timestamps(begin - 1)
        self._ledger.seal(made)

    def _run(
        self,
        batch: Batch,
        begin: int,
        end: int,
        tally: SliceResult,
        hand: SliceInHand,
        trial: Failures,
    ) -> int:
        """The row behind those that are done; -1 if all of the slice that is not stored was
        dropped."""
        ledger, failure = self._ledger, None
        records = hand.records(batch, begin, end)
        ledger.follow(hand)
        try:
            with hand:
                self._instance.each(records)
        except BaseException as error:
            failure = error
        row = hand.given - 1
        if ledger.out.overflows:  # also if the handler caught it
            ledger.take_back(row)
            tally.records += row - begin
            tally.ends = True
            return row
        if failure is None:
            tally.records += row + 1 - begin
            return row + 1
        if isinstance(failure, Rewind) and self._goes_back(failure, batch.offsets[row]):
            return self._rewound(batch, begin, failure.offset, tally)
        tally.records += row - begin
        ledger.take_back(row)
        tally.next = batch.offsets[row]
        mark = partial(provenance_of, batch, tells_origins=self._tells_origins)
        given_up = trial.judge(failure, [Record(batch, row)], row, mark)
        tally.records += given_up
        return row + given_up

    def _rewound(self, batch: Batch, begin: int, to: int, tally: SliceResult) -> int:
        """Nothing from that offset on is kept; the row that is next, as `_run` tells it."""
        tally.ends, tally.outcome = True, "rewound"
        if to < batch.offsets[begin]:
            # Which outputs came from where is not known any more: all of the slice is made again.
            tally.rewind = to if to < tally.committed else None
            self._ledger.drop(tally)
            return -1
        kept = bisect_left(batch.offsets, to, begin)
        self._ledger.take_back(kept)
        tally.records += kept - begin
        return kept

    # All together

    def _work_together(
        self, work: Work, tally: SliceResult, hand: SliceInHand, trial: Failures
    ) -> None:
        batches, behind = self._read_all(work)
        if not batches:
            tally.next = behind
            return
        records = [record for batch in batches for record in batch.records()]
        mark = partial(provenance_of_all, batches, tells_origins=self._tells_origins)
        failpoint("lane.before-handler")
        done = trial.gives_up(records, 0, mark)
        if not done and not tally.ends:
            done = self._run_all(batches, records, tally, hand, trial)
            tally.records += len(records) if done else 0
        failpoint("lane.after-handler")
        if done:
            tally.next = behind
            tally.at_ms = batches[-1].timestamps[-1]
            _act_on(batches[-1], len(batches[-1]) - 1, tally, hand)
        self._ledger.seal(mark())

    def _read_all(self, work: Work) -> tuple[list[Batch], int]:
        """The records of the slice, up to the first whose flags ask for something, and where to go
        on."""
        batches: list[Batch] = []
        at = work.start
        while at < work.end:
            reading = self._read(at, work.end)
            if reading.next == at:
                break
            batches += reading.batches
            at = reading.next
        return to_first_flag(batches, at)

    def _run_all(
        self,
        batches: list[Batch],
        records: list[Record],
        tally: SliceResult,
        hand: SliceInHand,
        trial: Failures,
    ) -> bool:
        """Whether they are done with."""
        ledger, failure = self._ledger, None
        given = as_arrow(batches) if self._instance.wants_arrow else records
        ledger.follow_row(0, hand.cut)
        try:
            with hand:
                self._instance.together(given)
        except BaseException as error:
            failure = error
        if ledger.out.overflows:  # what is before it leaves first
            ledger.take_back(0)
            tally.ends = True
            return False
        if failure is None:
            return True
        ledger.take_back(0)
        if isinstance(failure, Rewind) and self._goes_back(failure, records[-1].offset):
            tally.ends, tally.outcome = True, "rewound"
            tally.rewind = failure.offset if failure.offset < tally.committed else None
            return False
        mark = partial(provenance_of_all, batches, tells_origins=self._tells_origins)
        return trial.judge(failure, records, 0, mark)

    # Below

    def _read(self, start: int, end: int) -> ReadResult:
        grant = self.grant
        failpoint("lane.before-read")
        reading = self._backend.read(
            grant.stream, grant.shard, start, end, max_records=end - start, max_bytes=READ_BYTES
        )
        failpoint("lane.after-read")
        batches = [batch.decoded_by(*self._decode) for batch in reading.batches]
        return ReadResult(batches, reading.next)

    def _goes_back(self, rewind: Rewind, offset: int) -> bool:
        """Whether that can be done from this record; else it has failed."""
        first = self._backend.bounds(self.grant.stream, self.grant.shard).start
        return first <= rewind.offset <= offset

    def _interrupted(self, tally: SliceResult, why: HeadraceError) -> None:
        """Reading or storing did not work, no handler is to blame."""
        self._ledger.drop(tally)
        tally.rewind, tally.trouble = None, None
        if isinstance(why, Fenced | OffsetOutOfRange):
            # The next grant begins at the true checkpoint, and behind what was dropped meanwhile.
            tally.outcome, tally.ends = "fenced", True
            return
        log.warning("%s %s: %s", self._kit.computation.name, self._ledger.ctx.shard, why)
        if isinstance(why, Damaged):
            tally.stop(str(why), 1)  # trying again does not mend it: a person has to look
        elif isinstance(why, Invalid):
            tally.stop(str(why), None)  # it can never be stored
        else:
            tally.park(AGAIN_S, str(why))

    def _stored(self, work: Work, tally: SliceResult, trial: Failures, spent_s: float) -> Report:
        attempts = None
        if tally.outcome != "fenced":
            attempts = trial.attempts_after()
            try:
                self._ledger.store(tally, attempts, spent_s)
            except HeadraceError as why:
                self._interrupted(tally, why)
                attempts = None
        return tally.report(work.number, spent_s, attempts, dict(self._ledger.ctx.timers))


def _before(offset: int, batch: Batch, begin: int, end: int) -> int:
    """The row of a record that is known to make trouble comes first in a run of its own."""
    if batch.offsets[begin] < offset <= batch.offsets[end - 1]:
        return bisect_left(batch.offsets, offset, begin, end)
    return end


def _act_on(batch: Batch, row: int, tally: SliceResult, hand: SliceInHand) -> None:
    """COMMIT: store now. POISON_PILL: store, and stop behind it."""
    hand.cut()
    if batch.flags[row] & Flag.POISON_PILL:
        tally.stop(f"{Record(batch, row).id} has the flag POISON_PILL", 0)
