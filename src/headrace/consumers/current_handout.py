"""The handout that a consumer's user works on, and what asking for more says about it."""

from __future__ import annotations

from headrace.consumers.held_shard import Handout, HeldShard


class CurrentHandout:
    """Used by `HeldShards` under its lock."""

    def __init__(self, *, auto_mark: bool) -> None:
        self._auto_mark = auto_mark
        self._since_s = 0.0
        self.handout: Handout | None = None
        """None: the user works on nothing."""

    def take(self, held: HeldShard, records_max: int, now_s: float) -> Handout:
        """Hand out what was read ahead of a shard."""
        self._since_s = now_s
        self.handout = handout = held.next_handout(records_max)
        handed = held.handed_out
        first = handout.offset(handout.begin)
        if handed.given < first:
            handed.done(handed.give(first)[0], 0.0)  # there is nothing between
        if self._auto_mark:
            handed.give(handout.next)
        else:
            for row in range(handout.begin, handout.end):
                handed.give(handout.offset(row + 1))
        return handout

    def settle(self, now_s: float) -> None:
        """The user asks for the next record: with automatic marks, those before are done."""
        handout = self.handout
        if handout is None:
            return
        self._done_before(handout, handout.given, now_s)
        if handout.given >= handout.end:
            handout.holding.took(handout.given - handout.begin, now_s - self._since_s)
            self.handout = None
        elif handout.is_cut:
            self.drop(now_s)

    def note_done(self, now_s: float) -> None:
        """With automatic marks, all records before the one in hand are done."""
        if self.handout is not None:
            self._done_before(self.handout, self.handout.done, now_s)

    def mark_handed_out(self, now_s: float) -> None:
        """With automatic marks, the record in hand is done too."""
        if self.handout is not None:
            self._done_before(self.handout, self.handout.given, now_s)

    def drop(self, now_s: float) -> None:
        """The user works on nothing any more; what was not handed out never will be."""
        self.note_done(now_s)
        handout, self.handout = self.handout, None
        if handout is not None:
            handout.cut()
            rest = handout.offset(handout.given)
            handout.holding.handed_out.take_back(rest)
            handout.holding.go_on_at(rest)

    def give_again(self, now_s: float) -> None:
        """A loop was left in the middle, and another begins: what is not done is handed out again,
        but not if marks may still come for it."""
        handout = self.handout
        if handout is None or not handout.is_looped:
            return
        self.drop(now_s)
        if self._auto_mark:
            held = handout.holding
            not_done = max(held.handed_out.next, handout.offset(handout.begin))
            held.handed_out.take_back(not_done)
            held.go_on_at(not_done)

    def cut(self) -> None:
        """Hand out no more: the user comes for more after the record in hand."""
        if self.handout is not None:
            self.handout.cut()

    def is_of(self, held: HeldShard) -> bool:
        return self.handout is not None and self.handout.holding is held

    def handed_out_to(self, held: HeldShard) -> int:
        """The offset behind what was handed out of a shard."""
        handout = self.handout
        if handout is not None and handout.holding is held:
            return handout.offset(handout.given)
        return held.handed_out.given

    def _done_before(self, handout: Handout, row: int, now_s: float) -> None:
        if self._auto_mark and row > handout.begin:
            handout.holding.handed_out.done_to(handout.offset(row), now_s)
