"""The grants of one membership: work under each begins, ends, and is released.

Consumers and replicas share this loop, and with it two races:

- **A grant may end before work under it has begun**, for as long as its start could not be stored.
  So each grant is kept under its shard and its token. A grant that ends unbegun is released at
  once, and the end of an old grant never touches a newer grant of the same shard.
- **A member that is about to leave would be dealt again what it releases.** So nothing begins, and
  nothing that has ended is released, after `GrantKeeper.prepare_to_leave`: leaving frees all
  shards together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from headrace.core.errors import Fenced, HeadraceError, Retryable, UnknownStream
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Begin, Commit, End, Grant, Lost, Membership
from headrace.streams.start import StartPolicy

log = logging.getLogger("headrace")

RETRY_S = 0.5
"""How long after a write that failed the next one is tried."""

Facts = TypeVar("Facts")
"""What a listener learns about a shard before work begins, and wants to have when it does."""


class Prepared(NamedTuple, Generic[Facts]):
    """A granted shard on which work can begin."""

    attempts: bytes | None
    """Stored with the start; None: the start alone is stored, where it is no checkpoint yet."""
    facts: Facts


class GrantListener(Protocol[Facts]):
    """Who works under the grants of a membership. Called by the thread of the `GrantKeeper`."""

    def prepare(self, begin: Begin, at: int) -> Prepared[Facts] | None:
        """Look at a shard on which work would begin at this offset; None: no work begins under
        this grant. `UnknownStream` if its stream was deleted."""

    def store(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """Commit the starts, as `Membership.commit` does."""

    def begin(self, grant: Grant, at: int, facts: Facts) -> None:
        """The start is stored: work begins."""

    def end(self, grant: Grant, until_s: float) -> None:
        """Work under this grant shall end by then. `GrantKeeper.let_go` is called when it has."""

    def lose(self, grant: Grant, until_s: float) -> None:
        """The grant is over, nothing can be committed under it. What is still at work may take
        until then."""


class GrantKeeper(Generic[Facts]):
    """Used by one thread."""

    def __init__(
        self,
        membership: Membership,
        start: StartPolicy,
        listener: GrantListener[Facts],
        *,
        owner: str,
        handler_s_max: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``owner`` says in the log whose grants these are; ``handler_s_max`` is how long work may
        take to end."""
        self._membership = membership
        self._start = start
        self._listener = listener
        self._owner = owner
        self._handler_s_max = handler_s_max
        self._clock = clock
        self._pending: dict[_GrantKey, Begin] = {}
        """Granted, and work has not begun."""
        self._unbegun: set[_GrantKey] = set()
        """Granted, and work will never begin: each is released when its end comes."""
        self._begin_at_s = 0.0
        self._is_leaving = False

    def join(self) -> None:
        """Take a place in the group."""
        self._membership.join()

    def hear(self) -> None:
        """Ask the membership for news. `Replaced` or `UnknownGroup` if its place is lost."""
        for news in self._membership.changes():
            grant, key = news.grant, _key(news.grant)
            match news:
                case Begin():
                    self._pending[key] = news
                case End():
                    if self._forget(key):
                        self._membership.release([grant])  # work never began
                    else:
                        self._listener.end(grant, self._clock() + self._handler_s_max)
                case Lost():
                    self._forget(key)
                    self._listener.lose(grant, self._clock() + self._handler_s_max)

    @property
    def is_beginning(self) -> bool:
        """Whether there are grants under which work is still to begin."""
        return bool(self._pending) and not self._is_leaving

    def begin_pending(self) -> bool:
        """Begin work where it was granted; whether any has begun. A start that cannot be stored now
        is stored later."""
        if not self.is_beginning or self._clock() < self._begin_at_s:
            return False
        ready: dict[_GrantKey, _Ready[Facts]] = {}
        for key, begin in list(self._pending.items()):
            found = self._ready(begin)
            if found is None:
                self._leave_unbegun(key)
            else:
                ready[key] = found
        errors = self._store(ready)
        has_begun = False
        for key, (grant, at, prepared, _) in ready.items():
            error = errors.get(key)
            if isinstance(error, Retryable):
                self._begin_at_s = self._clock() + RETRY_S
                log.warning("%s %s: not begun yet: %s", grant.group, key[0], error)
            elif error is None:
                del self._pending[key]
                self._listener.begin(grant, at, prepared.facts)
                has_begun = True
            elif isinstance(error, Fenced | UnknownStream):
                self._leave_unbegun(key)
            else:
                raise error
        return has_begun

    def let_go(self, grants: Sequence[Grant], last: Sequence[Commit] = ()) -> None:
        """Work under these grants has ended: store its last commits, then release them. What is
        not stored here never will be, so a listener that must know the outcome commits before."""
        if last:
            self._membership.commit(last)
        if grants and not self._is_leaving:
            self._membership.release(grants)

    def prepare_to_leave(self) -> None:
        """From now on nothing begins, and what ends is freed by leaving."""
        self._is_leaving = True

    def leave(self) -> None:
        """Give up the place in the group, and with it all grants."""
        try:
            self._membership.leave()
        except HeadraceError as why:
            log.warning("%s has left without saying so: %s", self._owner, why)

    # Below

    def _ready(self, begin: Begin) -> _Ready[Facts] | None:
        grant = begin.grant
        try:
            at = self._start.begin(begin)
            prepared = self._listener.prepare(begin, at)
        except UnknownStream:
            return None  # the group will hear of it
        if prepared is None:
            return None
        # A start that was chosen becomes the checkpoint, so that the next owner begins there too.
        is_chosen = begin.checkpoint is None and not self._start.is_fixed
        commit = None
        if is_chosen or prepared.attempts is not None:
            commit = commit_at(grant, at, prepared.attempts)
        return _Ready(grant, at, prepared, commit)

    def _store(
        self, ready: dict[_GrantKey, _Ready[Facts]]
    ) -> dict[_GrantKey, HeadraceError | None]:
        commits = {key: one.commit for key, one in ready.items() if one.commit is not None}
        if not commits:
            return {}
        return dict(zip(commits, self._listener.store(list(commits.values())), strict=True))

    def _forget(self, key: _GrantKey) -> bool:
        """Whether the grant was known, and work under it has not begun."""
        if self._pending.pop(key, None) is not None:
            return True
        if key in self._unbegun:
            self._unbegun.remove(key)
            return True
        return False

    def _leave_unbegun(self, key: _GrantKey) -> None:
        del self._pending[key]
        self._unbegun.add(key)


def commit_at(grant: Grant, at: int, attempts: bytes | None = None) -> Commit:
    """A commit of no records: it stores where the shard stands, and what is known of attempts."""
    return Commit(
        grant=grant, done=Slice(grant.stream.name, grant.shard, at, at), attempts=attempts
    )


_GrantKey = tuple[ShardId, bytes]


class _Ready(NamedTuple, Generic[Facts]):
    """What begins when its commit is stored."""

    grant: Grant
    at: int
    prepared: Prepared[Facts]
    commit: Commit | None


def _key(grant: Grant) -> _GrantKey:
    return ShardId(grant.stream.name, grant.shard), grant.token
