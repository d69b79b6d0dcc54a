"""What a consumer has in its hands: its shards, the piece being worked on, and what is done.

Two threads meet here: the one that works on records, and the keeper that hears what is granted and
must be let go. No I/O happens in here.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.consumers.held_shard import Handout, HeldShard
from headrace.core.errors import Fenced
from headrace.core.groups.handed_out import HandedOut
from headrace.core.model import Bounds, Record, ShardId, Slice
from headrace.core.ports import Grant

log = logging.getLogger("headrace")


UNSTORED_TOLD = 100
"""So many shards with records that were not stored are remembered until somebody commits."""


class Uncommitted(NamedTuple):
    """What is done in a shard and not stored."""

    holding: HeldShard
    done: Slice


class HeldShards:
    def __init__(self, *, auto_mark: bool, tells_ends: bool) -> None:
        # Entered as a lock, never as a condition: a signal handler may interrupt its owner.
        self.lock = threading.RLock()
        self.holdings: dict[ShardId, HeldShard] = {}
        self.paused: set[ShardId] = set()
        self.piece: Handout | None = None
        """What is being worked on."""
        self.begun: list[ShardId] = []
        """Granted, and the user does not know yet."""
        self.lost: list[ShardId] = []
        """Lost, and the user does not know yet."""
        self.failure: BaseException | None = None
        """Why there will be no more records."""
        self.ending = False
        """No more records shall be handed out."""
        self.awaits_marks = not auto_mark
        """What ends waits for marks that others may still give."""
        self._auto_mark = auto_mark
        self._tells_ends = tells_ends
        self._order: deque[ShardId] = deque()
        self._unstored: dict[HeldShard, Bounds] = {}
        """What was handed out and could not be committed any more."""

    # The keeper's side

    def begin(self, grant: Grant, start: int) -> None:
        holding = HeldShard(grant, start)
        with self.lock:
            if holding.shard not in self.holdings:
                self._order.append(holding.shard)
                self.begun.append(holding.shard)
            self.holdings[holding.shard] = holding

    def end(self, grant: Grant, until_s: float) -> None:
        """Let it go by then; what is being worked on may be finished."""
        with self.lock:
            holding = self._under(grant)
            if holding is not None:
                self._end(holding, until_s)

    def end_all(self, until_s: float) -> None:
        with self.lock:
            self.ending = True
            for holding in self.holdings.values():
                self._end(holding, until_s)

    def lose(self, grant: Grant) -> None:
        """It is lost, with all that is not committed."""
        with self.lock:
            holding = self._under(grant)
            if holding is None:
                return
            self._cut(holding)
            self._remove(holding)

    def ready_to_go(self, now_s: float) -> list[HeldShard]:
        """What can be let go now: nobody works on it, or it cannot be waited for any longer."""
        with self.lock:
            return [
                holding
                for holding in self.holdings.values()
                if holding.ending_s is not None
                and (now_s >= holding.ending_s or self._is_idle(holding))
            ]

    def let_go(self, holding: HeldShard, now_s: float) -> bool:
        """Whether it is let go: not while what is done can still be committed in time."""
        with self.lock:
            late = holding.ending_s is not None and now_s >= holding.ending_s
            if not late and holding.marks.next > holding.marks.committed:
                return False
            handed = self._handed(holding)
            if late and handed > holding.marks.committed:
                log.warning(
                    "%s: let go, records %d to %d come again: not done, or not committed, in time",
                    holding.shard, holding.marks.committed, handed - 1,
                )  # fmt: skip
            self._remove(holding)
            return True

    def holdings_now(self) -> list[HeldShard]:
        with self.lock:
            return list(self.holdings.values())

    def uncommitted(self, holdings: Sequence[HeldShard], now_s: float) -> list[Uncommitted]:
        """What is done in these and not stored."""
        with self.lock:
            self._note(now_s)
            return [
                Uncommitted(
                    holding,
                    Slice(*holding.shard, holding.marks.committed, holding.marks.next),
                )
                for holding in holdings
                if holding.marks.next > holding.marks.committed
            ]

    def is_due(self, now_s: float, every_s: float) -> bool:
        """Whether something done has waited so long to be stored."""
        with self.lock:
            self._note(now_s)
            return any(h.marks.due(now_s, every_s) for h in self.holdings.values())

    def stored(self, what: Uncommitted, now_s: float) -> None:
        end = what.done.end
        with self.lock:
            what.holding.marks.commit(end, now_s)
            left = self._unstored.pop(what.holding, None)
            if left is not None and end < left.end:
                self._unstored[what.holding] = Bounds(end, left.end)

    def fenced(self) -> Fenced | None:
        """What was handed out since the last question and is another's now, not committed."""
        with self.lock:
            lost, self._unstored = self._unstored, {}
        for holding, (start, end) in lost.items():
            others = f", and some of {len(lost) - 1} other shards" if len(lost) > 1 else ""
            outcome = (
                f"records {start} to {end - 1}{others} were not committed and come again; "
                "all else that is done is stored"
            )
            return Fenced(holding.grant.group, *holding.shard, outcome)
        return None

    def refused(self, what: Uncommitted) -> None:
        """It will never be stored: the shard is another's, and is let go."""
        with self.lock:
            handed = self._handed(what.holding)
            self.forsake(what.holding)
            self._unstored[what.holding] = Bounds(what.done.start, handed)

    # The worker's side

    def settle(self, now_s: float, took_s: float) -> None:
        """The next record was asked for: with automatic marks, what was handed out is done."""
        piece = self.piece
        if piece is None:
            return
        self._note(now_s, piece.given)
        if piece.given >= piece.end:
            piece.holding.took(piece.given - piece.begin, took_s)
            self.piece = None
        elif piece.is_cut:
            self.drop(now_s)

    def abandon(self, now_s: float) -> None:
        """Nobody will ask for more, or mark anything."""
        with self.lock:
            self.drop(now_s)
            self.awaits_marks = False

    def start_again(self, now_s: float) -> None:
        """A loop was left in the middle, and another begins: what is not done is handed out again,
        but not if marks may still come for it."""
        with self.lock:
            piece = self.piece
            if piece is None or not piece.is_looped:
                return
            self.drop(now_s)
            if self._auto_mark:
                not_done = max(piece.holding.marks.next, piece.offset(piece.begin))
                piece.holding.marks.take_back(not_done)
                piece.holding.go_on_at(not_done)

    def drop(self, now_s: float) -> None:
        """Nothing is worked on any more; what was not handed out never will be."""
        self._note(now_s)
        piece, self.piece = self.piece, None
        if piece is not None:
            piece.cut()
            rest = piece.offset(piece.given)
            piece.holding.marks.take_back(rest)
            piece.holding.go_on_at(rest)

    def in_turn(self) -> list[HeldShard]:
        """The shards that may be read, the one that has waited longest first."""
        return [
            holding
            for shard in self._order
            if shard not in self.paused and (holding := self.holdings[shard]).ending_s is None
        ]

    def take(self, holding: HeldShard, records_max: int) -> Handout:
        """Hand out what was read ahead."""
        self._order.remove(holding.shard)
        self._order.append(holding.shard)
        self.piece = piece = holding.piece(records_max)
        marks = holding.marks
        first = piece.offset(piece.begin)
        if marks.given < first:
            marks.done(marks.give(first)[0], 0.0)  # there is nothing between
        if self._auto_mark:
            marks.give(piece.next)
        else:
            for row in range(piece.begin, piece.end):
                marks.give(piece.offset(row + 1))
        return piece

    def mark(self, record: Record, now_s: float) -> None:
        """The record is done; of a shard that is held no more, nothing."""
        with self.lock:
            holding = self.holdings.get(ShardId(record.stream, record.shard))
            if holding is None:
                return
            if self._auto_mark:
                # Of an earlier grant, it may lie beyond what was handed out under this one.
                to = min(record.offset + 1, self._handed(holding))
                holding.marks.done_to(to, now_s)
            else:
                holding.marks.done(record.offset, now_s)

    def pause(self, holding: HeldShard) -> None:
        with self.lock:
            self.paused.add(holding.shard)
            self._cut(holding)

    def forsake(self, holding: HeldShard) -> None:
        """Nothing of it is to be committed any more: it goes at once."""
        with self.lock:
            if self.piece is not None and self.piece.holding is holding:
                self.drop(0.0)
            holding.marks = HandedOut(holding.marks.committed)
            self._end(holding, 0.0)
            holding.ending_s = 0.0

    def mark_given(self, now_s: float) -> None:
        """With automatic marks: all that was handed out is done, the last of it too."""
        with self.lock:
            if self._auto_mark and self.piece is not None:
                self._note(now_s, self.piece.given)

    def ends_to_tell(self) -> list[HeldShard]:
        with self.lock:
            return [h for h in self.holdings.values() if h.ending_s is not None and not h.told_end]

    # Below

    def _under(self, grant: Grant) -> HeldShard | None:
        found = self.holdings.get(ShardId(grant.stream.name, grant.shard))
        return found if found is not None and found.grant.token == grant.token else None

    def _end(self, holding: HeldShard, until_s: float) -> None:
        if holding.ending_s is None:
            holding.ending_s = until_s
            if self._tells_ends and self.piece is not None:
                self.piece.cut()  # of whatever shard: its user is to be told, and comes for more
            self._cut(holding)

    def _cut(self, holding: HeldShard) -> None:
        if self.piece is not None and self.piece.holding is holding:
            self.piece.cut()

    def _handed(self, holding: HeldShard) -> int:
        """The offset behind what was handed out."""
        piece = self.piece
        if piece is not None and piece.holding is holding:
            return piece.offset(piece.given)
        return holding.marks.given

    def _is_idle(self, holding: HeldShard) -> bool:
        working = self.piece is not None and self.piece.holding is holding
        unmarked = self.awaits_marks and holding.marks.unmarked > 0
        untold = self._tells_ends and not holding.told_end
        return not (working or unmarked or untold)

    def _remove(self, holding: HeldShard) -> None:
        handed = self._handed(holding)
        if handed > holding.marks.committed:
            self._unstored[holding] = Bounds(holding.marks.committed, handed)
            if len(self._unstored) > UNSTORED_TOLD:  # nobody asks
                del self._unstored[next(iter(self._unstored))]
        if self.holdings.get(holding.shard) is holding:
            del self.holdings[holding.shard]
            self._order.remove(holding.shard)
            if holding.shard in self.begun:
                self.begun.remove(holding.shard)
            elif not holding.told_end:
                self.lost.append(holding.shard)

    def _note(self, now_s: float, done: int | None = None) -> None:
        """What the piece in hand tells about what is done: the rows before this one, or, while
        nothing more was asked for, those before the one in hand."""
        piece = self.piece
        if piece is None or not self._auto_mark:
            return
        done = piece.done if done is None else done
        if done > piece.begin:
            piece.holding.marks.done_to(piece.offset(done), now_s)
