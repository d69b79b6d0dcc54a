"""One run of one slice: its records are read, handled and committed.

Everything before a failed record is kept; of the failed record's own attempt nothing is.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from headrace.core.errors import (
    Damaged,
    Fenced,
    HeadraceError,
    Invalid,
    OffsetOutOfRange,
    Rewind,
)
from headrace.core.model import Flag, Record
from headrace.core.records.batch import Batch
from headrace.lanes.control_flags import flagged, to_first_flag
from headrace.lanes.failures import AskVerdict, Failures
from headrace.lanes.protocol import Report, Work
from headrace.lanes.provenance import provenance_of, provenance_of_all
from headrace.lanes.shard_at_work import ShardAtWork
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.slice_result import SliceResult
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

AGAIN_S = 1.0
"""How long a slice rests that could not be read or stored."""


class SliceRun:
    def __init__(
        self, shard: ShardAtWork, work: Work, slice_in_hand: SliceInHand, ask: AskVerdict
    ) -> None:
        self._shard = shard
        self._work = work
        self._slice_in_hand = slice_in_hand
        self._handler = shard.handler
        self._effects = shard.effects
        self._result = SliceResult(work.start, work.start)
        self._failures = Failures(
            shard.bound,
            shard.handler,
            shard.effects,
            work,
            self._result,
            ask,
            slice_in_hand.cut,
        )

    def run(self) -> Report:
        """Handle and commit the records, as far as that goes; the report says how far."""
        began_s = time.perf_counter()
        self._effects.ctx.on_checkpoint = self._slice_in_hand.cut
        self._effects.ctx.begin(self._work.timers)
        try:
            self._begin()
            if not self._result.is_over:
                if self._shard.bound.computation.kind == "batch":
                    self._run_together()
                else:
                    self._run_one_by_one()
        except HeadraceError as why:
            self._interrupt(why)
        return self._store(time.perf_counter() - began_s)

    # Calls without a record

    def _begin(self) -> None:
        shard, ctx = self._shard, self._effects.ctx
        self._effects.follow_row(0, self._slice_in_hand.cut)
        if not shard.is_open:
            if not self._call(self._handler.init):
                return
            shard.is_open = True
        if self._work.closing:
            shard.close()
            self._effects.seal_now()
            return
        for key in ctx.due():
            cancel = partial(ctx.cancel_timer, key)
            cancel()
            if not self._call(partial(self._handler.on_timer, key), on_skip=cancel):
                return
        if self._work.step:
            self._failures.note_step()

    def _call(
        self, call: Callable[[], None], *, on_skip: Callable[[], None] = lambda: None
    ) -> bool:
        """Whether the call went well, or is skipped; if not, the slice is over."""
        effects, failure = self._effects, None
        try:
            with self._slice_in_hand.apart():
                call()
        except BaseException as error:
            failure = error
        if effects.out.overflows:  # the effects before it are stored first, then it is called again
            effects.take_back(0)
            self._result.is_over = True
        elif failure is not None:
            effects.take_back(0)
            if self._failures.judge_call(failure, may_skip=self._shard.is_open):
                on_skip()
        effects.seal_now()
        return not self._result.is_over

    # Record by record

    def _run_one_by_one(self) -> None:
        work, result, slice_in_hand = self._work, self._result, self._slice_in_hand
        while result.next < work.end and not slice_in_hand.is_cut and not result.is_over:
            read = self._shard.read(result.next, work.end)
            if read.next == result.next:
                return
            failpoint("lane.before-handler")
            for at, batch in enumerate(read.batches):
                following = read.batches[at + 1 :]
                behind = following[0].offsets[0] if following else read.next
                self._handle(batch, behind)
                if result.is_over or slice_in_hand.is_cut:
                    break
            else:
                result.next = read.next
            failpoint("lane.after-handler")

    def _handle(self, batch: Batch, behind: int) -> None:
        """Handle all records of a batch, or those before the first failure that ends the slice."""
        result, slice_in_hand, failures = self._result, self._slice_in_hand, self._failures
        provenance = partial(provenance_of, batch, tells_origins=self._shard.tells_origins)
        begin, count, flags = 0, len(batch), flagged(batch)
        while begin < count and not slice_in_hand.is_cut and not result.is_over:
            if failures.gives_up([Record(batch, begin)], begin, provenance):
                begin += 1
                slice_in_hand.cut()  # stored at once: what is behind it may kill this process
            elif not result.is_over:
                end = next((row + 1 for row in flags if row >= begin), count)
                end = _before(failures.attempts.offset, batch, begin, end)
                row = self._handle_rows(batch, begin, end)
                if row is None:
                    return
                begin = row
            result.next = behind if begin >= count else batch.offsets[begin]
            if not result.is_over and begin and begin - 1 in flags:
                self._act_on_flags(batch, begin - 1)
        made = provenance()
        if begin:
            result.at_ms = made.timestamps(begin - 1)
        self._effects.seal(made)

    def _handle_rows(self, batch: Batch, begin: int, end: int) -> int | None:
        """The row behind those that are done; None if all effects that were not stored are
        dropped."""
        effects, result, failure = self._effects, self._result, None
        records = self._slice_in_hand.records(batch, begin, end)
        effects.follow(self._slice_in_hand)
        try:
            with self._slice_in_hand:
                self._handler.each(records)
        except BaseException as error:
            failure = error
        row = self._slice_in_hand.rows.given - 1
        if effects.out.overflows:  # also if the handler caught the error
            effects.take_back(row)
            result.records += row - begin
            result.is_over = True
            return row
        if failure is None:
            result.records += row + 1 - begin
            return row + 1
        if isinstance(failure, Rewind) and self._shard.can_go_back(
            failure.offset, batch.offsets[row]
        ):
            return self._rewind(batch, begin, failure.offset)
        result.records += row - begin
        effects.take_back(row)
        result.next = batch.offsets[row]
        provenance = partial(provenance_of, batch, tells_origins=self._shard.tells_origins)
        given_up = self._failures.judge(failure, [Record(batch, row)], row, provenance)
        result.records += given_up
        return row + given_up

    def _rewind(self, batch: Batch, begin: int, to: int) -> int | None:
        """Drop all effects from the offset ``to`` on; the next row, as `_handle_rows` tells it."""
        effects, result = self._effects, self._result
        result.is_over, result.outcome = True, "rewound"
        if to < batch.offsets[begin]:
            # Which record earlier outputs came from is forgotten: the whole slice is made again.
            result.rewind = to if to < result.committed else None
            effects.drop(result)
            return None
        kept = bisect_left(batch.offsets, to, begin)
        effects.take_back(kept)
        result.records += kept - begin
        return kept

    # All records together

    def _run_together(self) -> None:
        result = self._result
        batches, behind = self._read_all()
        if not batches:
            result.next = behind
            return
        records = [record for batch in batches for record in batch.records()]
        provenance = partial(provenance_of_all, batches, tells_origins=self._shard.tells_origins)
        failpoint("lane.before-handler")
        done = self._failures.gives_up(records, 0, provenance)
        if not done and not result.is_over:
            done = self._handle_all(batches, records)
            result.records += len(records) if done else 0
        failpoint("lane.after-handler")
        if done:
            result.next = behind
            result.at_ms = batches[-1].timestamps[-1]
            self._act_on_flags(batches[-1], len(batches[-1]) - 1)
        self._effects.seal(provenance())

    def _read_all(self) -> tuple[list[Batch], int]:
        """The records of the slice, up to the first one whose flags steer the lane, and the offset
        at which reading goes on."""
        batches: list[Batch] = []
        at = self._work.start
        while at < self._work.end:
            read = self._shard.read(at, self._work.end)
            if read.next == at:
                break
            batches += read.batches
            at = read.next
        return to_first_flag(batches, at)

    def _handle_all(self, batches: list[Batch], records: list[Record]) -> bool:
        """Whether the records are done with."""
        effects, result, failure = self._effects, self._result, None
        given = _as_arrow(batches) if self._handler.wants_arrow else records
        effects.follow_row(0, self._slice_in_hand.cut)
        try:
            with self._slice_in_hand:
                self._handler.together(given)
        except BaseException as error:
            failure = error
        if effects.out.overflows:  # the effects before it are stored first
            effects.take_back(0)
            result.is_over = True
            return False
        if failure is None:
            return True
        effects.take_back(0)
        if isinstance(failure, Rewind) and self._shard.can_go_back(
            failure.offset, records[-1].offset
        ):
            result.is_over, result.outcome = True, "rewound"
            result.rewind = failure.offset if failure.offset < result.committed else None
            return False
        provenance = partial(provenance_of_all, batches, tells_origins=self._shard.tells_origins)
        return self._failures.judge(failure, records, 0, provenance)

    # Below

    def _act_on_flags(self, batch: Batch, row: int) -> None:
        """Store now; after a POISON_PILL, stop the shard behind it, too."""
        self._slice_in_hand.cut()
        if batch.flags[row] & Flag.POISON_PILL:
            self._result.stop(f"{Record(batch, row).id} has the flag POISON_PILL", 0)

    def _interrupt(self, why: HeadraceError) -> None:
        """Reading or storing did not work. The handler is not to blame."""
        result = self._result
        self._effects.drop(result)
        result.rewind, result.trouble = None, None
        if isinstance(why, Fenced | OffsetOutOfRange):
            # The next grant begins at the true checkpoint, and behind what was trimmed meanwhile.
            result.outcome, result.is_over = "fenced", True
            return
        computation, shard = self._shard.bound.computation.name, self._effects.ctx.shard
        log.warning("%s %s: %s", computation, shard, why)
        if isinstance(why, Damaged):
            result.stop(str(why), 1)  # trying again does not mend it: a person has to look
        elif isinstance(why, Invalid):
            result.stop(str(why), None)  # it can never be stored
        else:
            result.park(AGAIN_S, str(why))

    def _store(self, spent_s: float) -> Report:
        """Commit what is not committed yet."""
        result, attempts = self._result, None
        if result.outcome != "fenced":
            attempts = self._failures.attempts_after()
            try:
                self._effects.store(result, attempts, spent_s)
            except HeadraceError as why:
                self._interrupt(why)
                attempts = None
        timers = dict(self._effects.ctx.timers)
        return result.report(self._work.number, spent_s, attempts, timers)


def _before(offset: int, batch: Batch, begin: int, end: int) -> int:
    """Where a run of rows ends so that the record at ``offset``, which is known to make trouble,
    begins a run of its own."""
    if batch.offsets[begin] < offset <= batch.offsets[end - 1]:
        return bisect_left(batch.offsets, offset, begin, end)
    return end


def _as_arrow(batches: Sequence[Batch]) -> pa.RecordBatch:
    """All batches as one Arrow batch."""
    if len(batches) == 1:
        return batches[0].arrow
    table = pa.Table.from_batches([batch.arrow for batch in batches]).combine_chunks()
    return table.to_batches()[0]
