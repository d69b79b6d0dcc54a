"""The thread behind a consumer: keeps its place in the group, begins and ends shards, commits.

It goes on while the user's code runs, however long that takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from headrace.consumers.held_shard import HeldShard
from headrace.consumers.held_shards import HeldShards
from headrace.core.errors import (
    Fenced,
    HeadraceError,
    Retryable,
    UnknownStream,
    Unreachable,
)
from headrace.core.model import ShardId, Slice, StreamInfo
from headrace.core.ports import Backend, Begin, Commit, End, Grant, Lost, Membership
from headrace.process.failpoints import failpoint
from headrace.process.wakeup import Wakeup
from headrace.streams.start import StartPolicy

log = logging.getLogger("headrace")

TICK_S = 0.02
TICK_RELIEVED_S = 0.1
FINISHED_S = 1.0
RETRY_S = 0.5
"""After a commit that failed, the next one is tried so much later."""


class Keeper:
    def __init__(
        self,
        backend: Backend,
        membership: Membership,
        hands: HeldShards,
        *,
        positions: StartPolicy,
        commit_every_s: float,
        handler_s_max: float,
        commits: bool,
    ) -> None:
        self._backend = backend
        self._membership = membership
        self._hands = hands
        self._positions = positions
        self._commit_every_s = commit_every_s
        self._handler_s_max = handler_s_max
        self._commits = commits
        """Whether there is a group to commit to."""
        self._to_begin: dict[tuple[ShardId, bytes], Begin] = {}
        self._wake = Wakeup()
        self._commit_again_s = 0.0
        self._finished_at_s = 0.0
        # Re-entrant: a signal handler may commit while its thread does.
        self._committing = threading.RLock()
        self.news = Wakeup()
        """Something has changed for whoever waits for records."""
        self.is_relieved = False
        """Somebody else looks whether anything is written, and tells."""
        self._end_asked = False
        self._look_soon = False
        self._waits_long = False
        self._thread = threading.Thread(target=self._run, name="headrace-keeper", daemon=True)

    def begin(self) -> None:
        """Join, and take what is granted; from then on in the background."""
        self._membership.join()
        try:
            self._hear()
        except BaseException:
            self._membership.leave()
            raise
        self._thread.start()

    def written(self) -> None:
        """Something was written to the hub, perhaps to the group: said by who looks anyway."""
        self._look_soon = True
        if self._waits_long:
            self._wake.ring()

    def wake(self) -> None:
        """Look now: something was finished."""
        self._wake.ring()

    def end(self) -> None:
        """Let everything go and leave, in the background. It takes no lock, for signal handlers."""
        self._end_asked = True
        self._wake.ring()

    def abandon(self) -> None:
        """End; nobody will ask for records any more."""
        self._hands.abandon(time.monotonic())
        self.end()

    def left(self, timeout_s: float) -> bool:
        """Whether it has left the group by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def commit(self) -> None:
        """Store what is done, now."""
        self._store(self._hands.holdings_now(), strict=True)

    # The loop

    def _run(self) -> None:
        try:
            while not (self._hands.ending and not self._hands.holdings):
                self._rest()
                self._turn()
        except BaseException as why:
            self._hands.failure = why
            self._hands.end_all(0.0)
            if not isinstance(why, HeadraceError):
                log.exception("a consumer ends by a mistake")
        finally:
            self._leave()
            self.news.ring()

    def _rest(self) -> None:
        """A tick; longer while somebody else looks and finds nothing written, and then until it is
        said that something was."""
        self._waits_long = self.is_relieved and not self._look_soon
        if self._look_soon:
            self._waits_long = False  # said between the two
        self._look_soon = False
        self._wake.wait(TICK_RELIEVED_S if self._waits_long else TICK_S)
        self._waits_long = False

    def _turn(self) -> None:
        if self._end_asked and not self._hands.ending:
            self._hands.end_all(time.monotonic() + self._handler_s_max)
            self.news.ring()
        self._hear()
        now_s = time.monotonic()
        due = self._hands.is_due(now_s, self._commit_every_s)
        if due and now_s >= self._commit_again_s:
            self._store(self._hands.holdings_now())
        ready = self._hands.ready_to_go(now_s)
        if ready:
            self._let_go(ready, now_s)
        self._tell_finished(now_s)

    def _leave(self) -> None:
        try:
            self._membership.leave()
        except HeadraceError as why:
            log.warning("a consumer has left without saying so: %s", why)

    # What is heard

    def _hear(self) -> None:
        for turn in self._membership.changes():
            match turn:
                case Begin():
                    self._to_begin[_key(turn.grant)] = turn
                case End():
                    if self._to_begin.pop(_key(turn.grant), None) is not None:
                        self._membership.release([turn.grant])  # it never began
                    self._hands.end(turn.grant, time.monotonic() + self._handler_s_max)
                case Lost():
                    self._to_begin.pop(_key(turn.grant), None)
                    self._hands.lose(turn.grant)
            self.news.ring()
        if self._to_begin and not self._hands.ending:  # else they are freed by leaving
            self._begin_all()

    def _begin_all(self) -> None:
        """Begin what was granted; what cannot be stored now is tried again."""
        begun: list[tuple[Begin, int]] = []
        for begin in list(self._to_begin.values()):
            try:
                begun.append((begin, self._positions.begin(begin)))
            except UnknownStream:
                del self._to_begin[_key(begin.grant)]  # the group will hear of it
        for begin, at in self._pinned(begun):
            del self._to_begin[_key(begin.grant)]
            self._hands.begin(begin.grant, at)
        self.news.ring()

    def _pinned(self, begun: Sequence[tuple[Begin, int]]) -> list[tuple[Begin, int]]:
        """Where those begin that have no checkpoint becomes their checkpoint, so that who comes
        after begins there too; those that can begin now."""
        if not self._commits or self._positions.is_fixed:
            return list(begun)
        new = [(begin, at) for begin, at in begun if begin.checkpoint is None]
        commits = [
            Commit(
                grant=begin.grant, done=Slice(begin.grant.stream.name, begin.grant.shard, at, at)
            )
            for begin, at in new
        ]
        errors = self._membership.commit(commits) if commits else []
        pinned = [(begin, at) for begin, at in begun if begin.checkpoint is not None]
        for one, error in zip(new, errors, strict=True):
            if isinstance(error, Retryable):
                log.warning("%s:%d: not begun yet: %s", *_key(one[0].grant)[0], error)
            elif error is None or isinstance(error, Fenced | UnknownStream):
                pinned.append(one)
            else:
                raise error
        return pinned

    # What is done, and what is let go

    def _store(self, holdings: Sequence[HeldShard], *, strict: bool = False) -> None:
        """Commit what is done in them."""
        with self._committing:
            done = self._hands.uncommitted(holdings, time.monotonic())
            if not self._commits:
                for what in done:
                    self._hands.stored(what, time.monotonic())
            if not (done and self._commits):
                return
            failpoint("consumer.before-commit")
            commits = [Commit(grant=what.holding.grant, done=what.done) for what in done]
            errors = self._membership.commit(commits)
            failpoint("consumer.after-commit")
            now_s = time.monotonic()
            for what, error in zip(done, errors, strict=True):
                if error is None:
                    self._hands.stored(what, now_s)
                elif isinstance(error, Fenced):
                    self._hands.refused(what)
                elif isinstance(error, UnknownStream):
                    self._hands.forsake(what.holding)
        wrong = [e for e in errors if e is not None and not isinstance(e, Fenced | UnknownStream)]
        for error in wrong:
            if strict or not isinstance(error, Retryable):
                raise error
        if wrong:
            self._commit_again_s = time.monotonic() + RETRY_S
            log.warning("%d shards are not committed, tried again: %s", len(wrong), wrong[0])

    def _let_go(self, ready: Sequence[HeldShard], now_s: float) -> None:
        """Commit what is done in them, then release them."""
        failpoint("consumer.revoked")
        if now_s >= self._commit_again_s:
            self._store(ready)
        gone = [holding for holding in ready if self._hands.let_go(holding, now_s)]
        # Released one by one, a member that is about to leave would get them back.
        if not self._hands.ending:
            self._membership.release([holding.grant for holding in gone])

    def _tell_finished(self, now_s: float) -> None:
        """A closed shard that is committed to its end is told once: then it is done."""
        if now_s < self._finished_at_s:
            return
        self._finished_at_s = now_s + FINISHED_S
        with self._hands.lock:
            untold = [h for h in self._hands.holdings.values() if not h.told_finished]
        infos: dict[str, StreamInfo] = {}
        for holding in untold:
            stream, index = holding.shard
            try:
                info = infos[stream] = infos.get(stream) or self._backend.stream(stream)
                if info.id != holding.grant.stream.id or info.shards[index].open:
                    continue
                end = self._backend.bounds(info, index).end
            except (UnknownStream, Unreachable):
                continue
            if holding.marks.committed >= end:
                holding.told_finished = True
                self._membership.finished(holding.grant)


def _key(grant: Grant) -> tuple[ShardId, bytes]:
    return ShardId(grant.stream.name, grant.shard), grant.token
