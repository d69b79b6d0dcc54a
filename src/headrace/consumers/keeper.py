"""The thread behind a consumer: keeps its place in the group, begins and ends shards, commits.

The thread goes on while the user's code runs, however long that takes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from headrace.consumers.held_shard import HeldShard
from headrace.consumers.held_shards import HeldShards
from headrace.core.errors import Fenced, HeadraceError, Retryable, UnknownStream, Unreachable
from headrace.core.model import StreamInfo
from headrace.core.ports import Begin, Commit, Grant, Log, Membership
from headrace.groups.grants import RETRY_S, GrantKeeper, Prepared
from headrace.process.failpoints import failpoint
from headrace.process.wakeup import Wakeup
from headrace.streams.start import StartPolicy

log = logging.getLogger("headrace")

TICK_S = 0.02
TICK_RELIEVED_S = 0.1
FINISHED_S = 1.0
"""How often the keeper looks whether shards are closed, and committed to their ends."""


class Keeper:
    """The thread of one consumer. Its public methods may be called by any thread."""

    def __init__(
        self,
        records: Log,
        membership: Membership,
        shards: HeldShards,
        *,
        wakeup: Wakeup,
        start: StartPolicy,
        commit_every_s: float,
        handler_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wakeup`` is rung when ``shards`` may have something to be let go."""
        self._records = records
        self._membership = membership
        self._shards = shards
        self._wakeup = wakeup
        self._commit_every_s = commit_every_s
        self._handler_s_max = handler_s_max
        self._clock = clock
        self._grants: GrantKeeper[None] = GrantKeeper(
            membership,
            start,
            _HeldGrants(membership, shards),
            owner="a consumer",
            handler_s_max=handler_s_max,
            clock=clock,
        )
        self._commit_at_s = 0.0
        """When a commit is tried again after one that failed."""
        self._finished_at_s = 0.0
        # Re-entrant: a signal handler may commit while its thread does.
        self._committing = threading.RLock()
        self.is_relieved = False
        """The worker waits for records: it looks whether anything was written, and says so."""
        self._end_asked = False
        self._look_soon = False
        self._waits_long = False
        self._thread = threading.Thread(target=self._run, name="headrace-keeper", daemon=True)

    def start(self) -> None:
        """Join the group and begin what is granted; the thread does the rest."""
        self._grants.join()
        try:
            self._hear()
        except BaseException:
            self._membership.leave()
            raise
        self._thread.start()

    def written(self) -> None:
        """Something was written to the hub, perhaps to the group. The worker says so, who looks
        anyway."""
        self._look_soon = True
        if self._waits_long:
            self._wakeup.ring()

    def wake(self) -> None:
        """Look now: something is done."""
        self._wakeup.ring()

    def end(self) -> None:
        """Let all shards go and leave, in the background. A signal handler may call this, for it
        takes no lock."""
        self._end_asked = True
        self._wakeup.ring()

    def abandon(self) -> None:
        """End; the user will not ask for records any more."""
        self._shards.abandon(self._clock())
        self.end()

    def left(self, timeout_s: float) -> bool:
        """Whether the consumer has left the group by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def commit(self) -> None:
        """Commit what is done, now, and raise what goes wrong."""
        failed = self._store()
        if failed:
            raise failed[0]

    # The loop

    def _run(self) -> None:
        try:
            while not self._shards.is_over:
                self._rest()
                self._turn()
        except BaseException as why:
            self._shards.end_all(0.0, failure=why)
            if not isinstance(why, HeadraceError):
                log.exception("a consumer ends by a mistake")
        finally:
            self._grants.leave()
            self._shards.wake_worker()

    def _rest(self) -> None:
        """Wait for a tick. While the worker looks and finds nothing written, wait longer, but only
        until the worker says that something was."""
        self._waits_long = self.is_relieved and not self._look_soon
        if self._look_soon:
            self._waits_long = False  # it was said between the two
        self._look_soon = False
        self._wakeup.wait(TICK_RELIEVED_S if self._waits_long else TICK_S)
        self._waits_long = False

    def _turn(self) -> None:
        if self._end_asked and not self._shards.is_ending:
            self._grants.prepare_to_leave()
            self._shards.end_all(self._clock() + self._handler_s_max)
        self._hear()
        now_s = self._clock()
        if self._shards.is_due(now_s, self._commit_every_s):
            self._store_unless_it_failed(now_s)
        ready = self._shards.ready_to_go(now_s)
        if ready:
            failpoint("consumer.revoked")
            self._store_unless_it_failed(now_s, ready)
            self._grants.let_go(self._shards.let_go(ready, now_s))
        self._tell_finished(now_s)

    def _hear(self) -> None:
        self._grants.hear()
        self._grants.begin_pending()

    # What is done

    def _store_unless_it_failed(
        self, now_s: float, among: Sequence[HeldShard] | None = None
    ) -> None:
        """Commit what is done. What cannot be committed now is committed later."""
        if now_s < self._commit_at_s:
            return
        failed = self._store(among)
        for error in failed:
            if not isinstance(error, Retryable):
                raise error
        if failed:
            self._commit_at_s = self._clock() + RETRY_S
            log.warning("%d shards are not committed, tried again: %s", len(failed), failed[0])

    def _store(self, among: Sequence[HeldShard] | None = None) -> list[HeadraceError]:
        """Commit what is done in these shards, or in all; what went wrong."""
        with self._committing:
            done = self._shards.uncommitted(self._clock(), among)
            if not done:
                return []
            failpoint("consumer.before-commit")
            errors = self._membership.commit([what.commit for what in done])
            failpoint("consumer.after-commit")
            now_s = self._clock()
            failed: list[HeadraceError] = []
            for what, error in zip(done, errors, strict=True):
                if error is None:
                    self._shards.stored(what, now_s)
                elif isinstance(error, Fenced):
                    self._shards.refused(what)
                elif isinstance(error, UnknownStream):
                    self._shards.drop(what)
                else:
                    failed.append(error)
            return failed

    def _tell_finished(self, now_s: float) -> None:
        """Tell the group once that a closed shard is committed to its end: the shard is done."""
        if now_s < self._finished_at_s:
            return
        self._finished_at_s = now_s + FINISHED_S
        infos: dict[str, StreamInfo] = {}
        for held in self._shards.unfinished():
            stream, index = held.shard
            try:
                info = infos[stream] = infos.get(stream) or self._records.stream(stream)
                if info.id != held.grant.stream.id or info.shards[index].open:
                    continue
                end = self._records.bounds(info, index).end
            except (UnknownStream, Unreachable):
                continue
            if self._shards.finish(held, end):
                self._membership.finished(held.grant)


class _HeldGrants:
    """The `GrantListener` of a consumer: granted shards become held shards."""

    def __init__(self, membership: Membership, shards: HeldShards) -> None:
        self._membership = membership
        self._shards = shards

    def prepare(self, begin: Begin, at: int) -> Prepared[None]:
        return Prepared(attempts=None, facts=None)

    def store(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        return self._membership.commit(commits)

    def begin(self, grant: Grant, at: int, facts: None) -> None:
        self._shards.begin(grant, at)

    def end(self, grant: Grant, until_s: float) -> None:
        self._shards.end(grant, until_s)

    def lose(self, grant: Grant, until_s: float) -> None:
        self._shards.lose(grant)
