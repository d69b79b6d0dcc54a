"""The shards that a consumer holds, the handout being worked on, and what is done of it all.

Two threads meet here: the *worker*, which is the user's thread that asks for records, and the
*keeper*, which hears what is granted and lets go of what must go.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.consumers.current_handout import CurrentHandout
from headrace.consumers.held_shard import Handout, HeldShard
from headrace.consumers.unstored import UnstoredRecords
from headrace.core.errors import BadSetting, Fenced
from headrace.core.groups.handed_out import HandedOut
from headrace.core.model import Record, ShardId, Slice
from headrace.core.ports import Commit, Grant
from headrace.process.wakeup import Wakeup

log = logging.getLogger("headrace")

_ALL = 2**31


class Uncommitted(NamedTuple):
    """What is done in a shard and not stored."""

    held: HeldShard
    done: Slice

    @property
    def commit(self) -> Commit:
        return Commit(grant=self.held.grant, done=self.done)


class HeldNews(NamedTuple):
    """What the user is to be told, in the user's own thread."""

    begun: list[ShardId]
    lost: list[ShardId]
    ending: list[HeldShard]


class HeldShards:
    """Everything here is done by calling a method, from any thread: each takes the lock itself.

    A `HeldShard` that a method returns is a name for later calls."""

    def __init__(
        self, *, auto_mark: bool, tells_ends: bool, wake_keeper: Callable[[], None]
    ) -> None:
        """``tells_ends``: the user wants to hear of a shard's end before the shard goes."""
        # Entered as a lock, never as a condition: a signal handler may interrupt its owner.
        self._lock = threading.RLock()
        self._auto_mark = auto_mark
        self._tells_ends = tells_ends
        self._wake_keeper = wake_keeper
        self._worker_wakeup = Wakeup()
        self._held: dict[ShardId, HeldShard] = {}
        self._order: deque[ShardId] = deque()
        """The shards that are held, the one that has waited longest for its turn first."""
        self._paused: set[ShardId] = set()
        self._current = CurrentHandout(auto_mark=auto_mark)
        self._untold_begun: list[ShardId] = []
        self._untold_lost: list[ShardId] = []
        self._unstored = UnstoredRecords()
        self._awaits_marks = not auto_mark
        """A shard that ends waits for marks that the user may still set."""
        self._is_ending = False
        self._failure: BaseException | None = None

    # For both

    @property
    def failure(self) -> BaseException | None:
        """Why there will be no more records, if that was a failure."""
        return self._failure

    @property
    def is_ending(self) -> bool:
        """Whether no more records shall be handed out."""
        return self._is_ending

    def granted(self) -> list[ShardId]:
        """The shards that are held, without those that shall end."""
        with self._lock:
            return sorted(held.shard for held in self._held.values() if held.ending_s is None)

    def streams(self) -> set[str]:
        """The streams of the shards that are held."""
        with self._lock:
            return {shard.stream for shard in self._held}

    # For the keeper

    @property
    def is_over(self) -> bool:
        """Whether all shards are let go, and no other will come."""
        return self._is_ending and not self._held

    def begin(self, grant: Grant, start: int) -> None:
        held = HeldShard(grant, start)
        with self._lock:
            if held.shard not in self._held:
                self._order.append(held.shard)
                self._untold_begun.append(held.shard)
            self._held[held.shard] = held
        self._worker_wakeup.ring()

    def end(self, grant: Grant, until_s: float) -> None:
        """Let the shard go by then; the user may finish the record in hand."""
        with self._lock:
            held = self._under(grant)
            if held is not None:
                self._end(held, until_s)
        self._worker_wakeup.ring()

    def end_all(self, until_s: float, failure: BaseException | None = None) -> None:
        """Let all shards go by then, and hand out nothing more."""
        with self._lock:
            if failure is not None:
                self._failure = failure
            self._is_ending = True
            for held in self._held.values():
                self._end(held, until_s)
        self._worker_wakeup.ring()

    def lose(self, grant: Grant) -> None:
        """The shard is lost, with all that is not committed."""
        with self._lock:
            held = self._under(grant)
            if held is not None:
                self._cut(held)
                self._remove(held)
        self._worker_wakeup.ring()

    def ready_to_go(self, now_s: float) -> list[HeldShard]:
        """The ending shards that can be let go: the user has finished, or there is no more time."""
        with self._lock:
            return [
                held
                for held in self._held.values()
                if held.ending_s is not None and (now_s >= held.ending_s or self._is_idle(held))
            ]

    def let_go(self, ready: Sequence[HeldShard], now_s: float) -> list[Grant]:
        """Let go of these, but not of a shard in which what is done can still be committed in time;
        the grants of those that went."""
        with self._lock:
            return [held.grant for held in ready if self._let_go(held, now_s)]

    def is_due(self, now_s: float, every_s: float) -> bool:
        """Whether something done has waited this long to be stored."""
        with self._lock:
            self._current.note_done(now_s)
            return any(held.handed_out.due(now_s, every_s) for held in self._held.values())

    def uncommitted(
        self, now_s: float, among: Sequence[HeldShard] | None = None
    ) -> list[Uncommitted]:
        """What is done and not stored, in these shards or in all."""
        with self._lock:
            self._current.note_done(now_s)
            return [
                Uncommitted(held, Slice(*held.shard, handed.committed, handed.next))
                for held in (self._held.values() if among is None else among)
                if (handed := held.handed_out).next > handed.committed
            ]

    def stored(self, what: Uncommitted, now_s: float) -> None:
        """It is committed."""
        with self._lock:
            what.held.handed_out.commit(what.done.end, now_s)
            self._unstored.stored(what.held, what.done.end)

    def refused(self, what: Uncommitted) -> None:
        """It will never be committed: the shard is another member's by now, and is let go."""
        with self._lock:
            handed_out_to = self._current.handed_out_to(what.held)
            self._drop_shard(what.held)
            self._unstored.add(what.held, what.done.start, handed_out_to)

    def drop(self, what: Uncommitted) -> None:
        """It has nowhere to be committed to, for its stream was deleted: the shard is let go."""
        with self._lock:
            self._drop_shard(what.held)

    def unfinished(self) -> list[HeldShard]:
        """The shards of which the group does not know that they are committed to a closed end."""
        with self._lock:
            return [held for held in self._held.values() if not held.is_finish_told]

    def finish(self, held: HeldShard, end: int) -> bool:
        """Whether a closed shard is committed to its end: then it is unfinished no more."""
        with self._lock:
            held.is_finish_told = held.handed_out.committed >= end
            return held.is_finish_told

    def wake_worker(self) -> None:
        self._worker_wakeup.ring()

    # For the worker

    def wait_for_change(self, timeout_s: float) -> bool:
        """Whether a shard came or went, or something was marked, before the time was over."""
        return self._worker_wakeup.wait(timeout_s)

    @property
    def handout(self) -> Handout | None:
        """What is being worked on."""
        return self._current.handout

    def settle(self, now_s: float) -> Handout | None:
        """The user asks for the next record: with automatic marks, what was handed out is done.
        What is left of the handout; None if nothing is. A failure is raised."""
        if self._failure is not None:
            raise self._failure
        current = self._current
        handout = current.handout
        if handout is None:
            return None
        with self._lock:
            current.settle(now_s)
        if handout.holding.ending_s is not None:
            self._wake_keeper()
        return current.handout

    def hand_out(
        self, find: Callable[[Sequence[HeldShard]], HeldShard | None], now_s: float, *, whole: bool
    ) -> Handout | None:
        """The next handout, of the shard that ``find`` chooses. ``find`` is given the shards that
        may be read, the one that has waited longest first. It reads under the lock, so that no
        shard goes meanwhile.

        A handout is as long as a turn, and with ``whole`` as long as the batch: so it is too where
        no other shard waits for its turn."""
        with self._lock:
            turns = self._in_turn()
            held = find(turns)
            if held is None:
                return None
            self._order.remove(held.shard)
            self._order.append(held.shard)
            records_max = _ALL if whole or len(turns) == 1 else held.turn
            return self._current.take(held, records_max, now_s)

    def hand_out_again(self, now_s: float) -> None:
        """A loop was left in the middle, and another begins: what is not done is handed out again,
        but not if marks may still come for it."""
        with self._lock:
            self._current.give_again(now_s)

    def take_news(self) -> HeldNews:
        """What the user does not know yet. `tell_ended` is called when the user has been told."""
        with self._lock:
            begun, self._untold_begun = self._untold_begun, []
            lost, self._untold_lost = self._untold_lost, []
            return HeldNews(begun, lost, self._untold_ends())

    def tell_ended(self, ending: Sequence[HeldShard]) -> None:
        """The user knows that these shards end: they may go."""
        with self._lock:
            for held in ending:
                held.is_end_told = True
        if ending:
            self._wake_keeper()

    @property
    def is_end_told(self) -> bool:
        """Whether all shards shall end, and the user knows of each."""
        with self._lock:
            return self._is_ending and not self._untold_ends()

    def abandon(self, now_s: float) -> None:
        """The user will neither ask for more nor mark anything."""
        with self._lock:
            self._current.drop(now_s)
            self._awaits_marks = False

    # For the user, from any thread

    def mark(self, record: Record, now_s: float) -> None:
        """The record is done. Nothing happens if its shard is held no more."""
        with self._lock:
            held = self._held.get(ShardId(record.stream, record.shard))
            if held is None:
                return
            if self._auto_mark:
                # A record of an earlier grant may lie beyond what was handed out under this one.
                to = min(record.offset + 1, self._current.handed_out_to(held))
                held.handed_out.done_to(to, now_s)
            else:
                held.handed_out.done(record.offset, now_s)

    def mark_handed_out(self, now_s: float) -> None:
        """With automatic marks: all that was handed out is done, the record in hand too."""
        with self._lock:
            self._current.mark_handed_out(now_s)

    def fenced(self) -> Fenced | None:
        """The records that were handed out since the last call and are another member's now, not
        committed; None if there are none."""
        with self._lock:
            return self._unstored.take()

    def pause(self, shard: ShardId) -> None:
        """Hand out no more of a shard, which stays held."""
        with self._lock:
            held = self._granted(shard)
            self._paused.add(shard)
            self._cut(held)

    def resume(self, shard: ShardId) -> None:
        with self._lock:
            self._paused.discard(shard)
        self._worker_wakeup.ring()

    def move(self, shard: ShardId, move: Callable[[Grant], None]) -> None:
        """Have ``move`` move the checkpoint of a shard, then let the shard go: its new grant begins
        there. Moved under the lock, so that the shard does not go meanwhile."""
        with self._lock:
            held = self._granted(shard)
            move(held.grant)
            self._drop_shard(held)
        self._wake_keeper()

    # Below: under the lock

    def _under(self, grant: Grant) -> HeldShard | None:
        found = self._held.get(ShardId(grant.stream.name, grant.shard))
        return found if found is not None and found.grant.token == grant.token else None

    def _granted(self, shard: ShardId) -> HeldShard:
        found = self._held.get(shard)
        if found is None or found.ending_s is not None:
            others = ", ".join(map(str, self.granted())) or "none"
            raise BadSetting(f"{shard} is not held by this consumer now: it holds {others}")
        return found

    def _in_turn(self) -> list[HeldShard]:
        return [
            held
            for shard in self._order
            if shard not in self._paused and (held := self._held[shard]).ending_s is None
        ]

    def _drop_shard(self, held: HeldShard) -> None:
        """Nothing of the shard is to be committed any more: it goes at once."""
        if self._current.is_of(held):
            self._current.drop(0.0)
        held.handed_out = HandedOut(held.handed_out.committed)
        self._end(held, 0.0)
        held.ending_s = 0.0

    def _end(self, held: HeldShard, until_s: float) -> None:
        if held.ending_s is None:
            held.ending_s = until_s
            if self._tells_ends:
                self._current.cut()  # of whatever shard: the user comes for more, and is told
            self._cut(held)

    def _cut(self, held: HeldShard) -> None:
        if self._current.is_of(held):
            self._current.cut()

    def _is_idle(self, held: HeldShard) -> bool:
        unmarked = self._awaits_marks and held.handed_out.unmarked > 0
        untold = self._tells_ends and not held.is_end_told
        return not (self._current.is_of(held) or unmarked or untold)

    def _untold_ends(self) -> list[HeldShard]:
        return [
            held
            for held in self._held.values()
            if held.ending_s is not None and not held.is_end_told
        ]

    def _let_go(self, held: HeldShard, now_s: float) -> bool:
        is_late = held.ending_s is not None and now_s >= held.ending_s
        committed = held.handed_out.committed
        if not is_late and held.handed_out.next > committed:
            return False
        handed = self._current.handed_out_to(held)
        if is_late and handed > committed:
            log.warning(
                "%s: let go, records %d to %d come again: not done, or not committed, in time",
                held.shard, committed, handed - 1,
            )  # fmt: skip
        self._remove(held)
        return True

    def _remove(self, held: HeldShard) -> None:
        handed_out_to = self._current.handed_out_to(held)
        self._unstored.add(held, held.handed_out.committed, handed_out_to)
        if self._held.get(held.shard) is held:
            del self._held[held.shard]
            self._order.remove(held.shard)
            if held.shard in self._untold_begun:
                self._untold_begun.remove(held.shard)
            elif not held.is_end_told:
                self._untold_lost.append(held.shard)
