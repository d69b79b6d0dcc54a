"""What a computation has made of a shard and not stored yet: outputs, state, timers; and the one
commit that stores it all."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.computations.attempts import Attempts
from headrace.core.errors import HeadraceError
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Append, Backend, Commit, Grant
from headrace.core.records.batch import Batch
from headrace.groups.commit_outcome import commit_once
from headrace.lanes import story as stories
from headrace.lanes.bound import BoundComputation
from headrace.lanes.context import Context
from headrace.lanes.outputs import Outputs, Provenance
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.slice_result import SliceResult
from headrace.lanes.state import Budget, State
from headrace.process.clock import now_ms
from headrace.process.failpoints import failpoint


class SliceEffects:
    """Each entry knows by which row of the batch in hand it was made, so that the entries of one
    attempt can be taken back."""

    def __init__(
        self,
        backend: Backend,
        kit: BoundComputation,
        grant: Grant,
        replica: str,
        lane: int,
        budget: Budget,
    ) -> None:
        self._backend = backend
        self._kit = kit
        self._grant = grant
        self._replica = replica
        self._lane = lane
        self.state = State(backend, grant, budget)
        self.out = Outputs(kit.computation.name, kit.targets)
        self.ctx = Context(
            computation=kit.computation.name,
            shard=ShardId(grant.stream.name, grant.shard),
            replica=replica,
            lane=lane,
            options=kit.options,
            state=self.state,
        )
        self.is_sound = True
        """Nothing was dropped: what the instance remembers is what is stored or entered here."""

    def follow(self, hand: SliceInHand) -> None:
        """What is entered now belongs to the record in hand."""
        left, last = hand.rows_left
        self._follow(left, last, hand.row, hand.cut)

    def follow_row(self, row: int, cut: Callable[[], None]) -> None:
        """What is entered now belongs to this row."""
        self._follow(lambda: 0, row, lambda: row, cut)

    def _follow(
        self,
        left: Callable[[], int],
        last: int,
        row: Callable[[], int],
        cut: Callable[[], None],
    ) -> None:
        self.out.follow(left, last, cut)
        self.state.follow(row, cut)
        self.ctx.follow(row)

    def take_back(self, row: int) -> None:
        """What this row of the batch in hand has made, and those behind it."""
        self.out.take_back(row)
        self.state.take_back(row)
        self.ctx.take_back(row)

    def seal(self, mark: Provenance) -> None:
        """The batch in hand is done."""
        self.out.seal(mark)
        self.state.seal()
        self.ctx.seal()

    def seal_now(self) -> None:
        """What was made from no record is done."""
        self.seal(Provenance(lambda _: now_ms()))

    def drop(self, tally: SliceResult) -> None:
        """Nothing of what is not stored came to be."""
        tally.back()
        self.out.clear()
        self.state.drop()
        self.ctx.drop()
        self.is_sound = False

    def store(self, tally: SliceResult, attempts: Attempts | None, spent_s: float = 0.0) -> None:
        """One commit of all there is; nothing, if there is nothing. What cannot be stored is
        dropped."""
        grant = self._grant
        outputs, state = self.out.appends(), self.state.changes()
        letters = self._letters(tally)
        done = Slice(grant.stream.name, grant.shard, tally.committed, tally.next)
        if not (len(done) or outputs or state or letters or attempts is not None):
            return
        commit = Commit(
            grant=grant,
            done=done,
            outputs=outputs,
            state=state,
            dead_letters=letters,
            attempts=None if attempts is None else attempts.encoded(),
            story=self._story(tally, attempts, spent_s),
        )
        failpoint("lane.before-commit")
        count = self.out.count
        try:
            commit_once(self._backend, commit)
        except HeadraceError:
            self.drop(tally)
            raise
        failpoint("lane.after-commit")
        tally.forth(count)
        self.out.clear()
        self.state.committed()
        self.ctx.committed()

    def _letters(self, tally: SliceResult) -> list[Append]:
        if not tally.letters:
            return []
        target = self._kit.dead_letters
        assert target is not None, "made when the computation was started"
        return [Append(target.info, 0, Batch.of_rows(tally.letters))]

    def _story(self, tally: SliceResult, attempts: Attempts | None, spent_s: float) -> bytes:
        return stories.encoded(
            stories.Story(
                tally.committed,
                tally.next,
                int.from_bytes(self._grant.token, "big"),
                self._replica,
                self._lane,
                now_ms(),
                round(spent_s * 1000, 3),
                attempts.failed if attempts is not None else 0,
                tally.skipped - tally.stored[1],
                len(tally.letters),
                stories.tried_runs(tally.tries, tally.committed, tally.next),
                self._kit.computation.kind == "batch",
            )
        )
