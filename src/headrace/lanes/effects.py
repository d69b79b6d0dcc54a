"""What a computation has made of a shard and not stored yet: outputs, state, timers; and the one
commit that stores all of it."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.computations.attempts import Attempts
from headrace.core.errors import HeadraceError
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Append, Commit, Grant, GroupHome
from headrace.core.records.batch import Batch
from headrace.lanes import story as stories
from headrace.lanes.bound import BoundComputation
from headrace.lanes.context import Context
from headrace.lanes.outputs import Outputs
from headrace.lanes.provenance import Provenance
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.slice_result import SliceResult
from headrace.lanes.state import Budget, State
from headrace.process.clock import now_ms
from headrace.process.failpoints import failpoint


class SliceEffects:
    """Each effect remembers the row of the batch in hand that caused it, so that the effects of one
    attempt can be taken back."""

    def __init__(
        self,
        home: GroupHome,
        bound: BoundComputation,
        grant: Grant,
        replica: str,
        lane: int,
        budget: Budget,
    ) -> None:
        self._home = home
        self._bound = bound
        self._grant = grant
        self._replica = replica
        self._lane = lane
        self.state = State(home.state(grant.group, grant.stream, grant.shard), budget)
        self.out = Outputs(bound.computation.name, bound.targets)
        self.ctx = Context(
            computation=bound.computation.name,
            shard=ShardId(grant.stream.name, grant.shard),
            replica=replica,
            lane=lane,
            options=bound.options,
            state=self.state,
        )
        self.is_sound = True
        """Nothing was dropped: what the handler remembers is stored, or is among these effects."""

    def follow(self, slice_in_hand: SliceInHand) -> None:
        """New effects belong to the record in hand from now on."""
        rows = slice_in_hand.rows
        self._follow(rows.count_left, rows.end - 1, slice_in_hand.row, slice_in_hand.cut)

    def follow_row(self, row: int, cut: Callable[[], None]) -> None:
        """New effects belong to this row from now on."""
        self._follow(lambda: 0, row, lambda: row, cut)

    def _follow(
        self,
        count_left: Callable[[], int],
        last: int,
        row: Callable[[], int],
        cut: Callable[[], None],
    ) -> None:
        self.out.follow(count_left, last, cut)
        self.state.follow(row, cut)
        self.ctx.follow(row)

    def take_back(self, row: int) -> None:
        """Undo the effects of this row of the batch in hand and of the rows behind it."""
        self.out.take_back(row)
        self.state.take_back(row)
        self.ctx.take_back(row)

    def seal(self, provenance: Provenance) -> None:
        """The batch in hand is done."""
        self.out.seal(provenance)
        self.state.seal()
        self.ctx.seal()

    def seal_now(self) -> None:
        """A call without a record is done: its outputs get the time of now."""
        self.seal(Provenance(lambda _: now_ms()))

    def drop(self, result: SliceResult) -> None:
        """Forget all effects that are not stored."""
        result.drop()
        self.out.clear()
        self.state.drop()
        self.ctx.drop()
        self.is_sound = False

    def store(self, result: SliceResult, attempts: Attempts | None, spent_s: float = 0.0) -> None:
        """Store all effects with one commit, if there are any. Effects that cannot be stored are
        dropped."""
        grant = self._grant
        outputs, state = self.out.appends(), self.state.changes()
        dead_letters = self._dead_letters(result)
        done = Slice(grant.stream.name, grant.shard, result.committed, result.next)
        if not (len(done) or outputs or state or dead_letters or attempts is not None):
            return
        commit = Commit(
            grant=grant,
            done=done,
            outputs=outputs,
            state=state,
            dead_letters=dead_letters,
            attempts=None if attempts is None else attempts.encoded(),
            story=self._story(result, attempts, spent_s),
        )
        failpoint("lane.before-commit")
        count = self.out.count
        try:
            self._home.commit(commit)
        except HeadraceError:
            self.drop(result)
            raise
        failpoint("lane.after-commit")
        result.note_commit(count)
        self.out.clear()
        self.state.committed()
        self.ctx.committed()

    def _dead_letters(self, result: SliceResult) -> list[Append]:
        if not result.dead_letter_rows:
            return []
        target = self._bound.dead_letters
        assert target is not None, "made when the computation was started"
        return [Append(target.info, 0, Batch.of_rows(result.dead_letter_rows))]

    def _story(self, result: SliceResult, attempts: Attempts | None, spent_s: float) -> bytes:
        return stories.encoded(
            stories.Story(
                result.committed,
                result.next,
                self._grant.epoch_shown,
                self._replica,
                self._lane,
                now_ms(),
                round(spent_s * 1000, 3),
                attempts.failed if attempts is not None else 0,
                result.skipped - result.stored[1],
                len(result.dead_letter_rows),
                stories.tried_runs(result.tries, result.committed, result.next),
                self._bound.computation.kind == "batch",
            )
        )
