"""Records handed out to the user of a consumer: what comes next, and waiting for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from math import inf

from headrace.consumers.held_shard import Handout, HeldShard
from headrace.consumers.held_shards import HeldShards
from headrace.consumers.keeper import Keeper
from headrace.consumers.reader import Reader
from headrace.consumers.settings import GrantCallback
from headrace.core.errors import ForkedHandle, UnknownStream
from headrace.core.ports import Lease

POLL_S_MIN = 0.0005
POLL_S_MAX = 0.004
POLL_S_IDLE = 0.02
IDLE_S = 0.5
"""How long no records must have come until the worker looks for them less often."""

REST_S = 0.5
"""How long the worker waits at most until it looks at everything again."""
TELL_S = 0.02


class HandingOut:
    """The worker's side of a consumer: used by the thread that asks for records."""

    def __init__(
        self,
        shards: HeldShards,
        keeper: Keeper,
        reader: Reader,
        lease: Lease,
        process: OwnProcess,
        *,
        named: Collection[str],
        on_grant: GrantCallback | None,
        on_revoke: GrantCallback | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``named`` are the streams that the user named: one that is gone is the user's to know."""
        self._shards = shards
        self._keeper = keeper
        self._reader = reader
        self._lease = lease
        self._process = process
        self._named = named
        self._on_grant = on_grant
        self._on_revoke = on_revoke
        self._clock = clock
        self.worker: threading.Thread | None = None
        """The thread that asked for a record last."""

    def next(self, until_s: float = inf, *, whole: bool = False) -> Handout | None:
        """What is to be handed out next; None at the end, or when the time is over."""
        self._process.check()
        self.worker = threading.current_thread()
        poll = _Poll(self._clock())
        while True:
            handout = self.current()
            if handout is not None:
                return handout
            self.tell()
            if self._shards.is_ending:
                return None
            now_s = self._clock()
            if now_s < self._lease.until_s:
                handout = self._found(now_s, whole)
                if handout is not None:
                    return handout
            if now_s >= until_s:
                return None
            self._rest(poll, min(until_s, self._reader.again_s))

    def current(self) -> Handout | None:
        """What is left of the handout being worked on, while the lease holds. By asking for the
        next record the user says that those before are done."""
        now_s = self._clock()
        handout = self._shards.settle(now_s)
        return handout if now_s < self._lease.until_s else None

    def next_whole(self, until_s: float, *, looped: bool) -> tuple[Handout | None, int, int]:
        """The next handout, all of it handed out, and the rows that were."""
        while (handout := self.next(until_s, whole=True)) is not None:
            handout.whole, handout.is_looped = True, looped
            begin, end = handout.given, handout.give_all()
            if end > begin:
                return handout, begin, end
        return None, 0, 0

    def tell(self) -> None:
        """Tell the user, in the user's own thread, what was granted and what comes to its end."""
        news = self._shards.take_news()
        try:
            if (news.lost or news.ending) and self._on_revoke is not None:
                self._on_revoke([*news.lost, *(held.shard for held in news.ending)])
            if news.begun and self._on_grant is not None:
                self._on_grant(news.begun)
        finally:
            self._shards.tell_ended(news.ending)

    def end(self) -> None:
        """The user will ask for no more: tell the user, who may still mark and commit, that all
        shards end; then drop what is in hand."""
        try:
            while self._on_revoke is not None and not self._keeper.left(0.0):
                self.tell()
                if self._shards.is_end_told:
                    return
                self._shards.wait_for_change(TELL_S)
        finally:
            self._keeper.abandon()

    # Below

    def _found(self, now_s: float, whole: bool) -> Handout | None:
        def find(turns: Sequence[HeldShard]) -> HeldShard | None:
            return self._reader.found(turns, now_s)

        seen = self._reader.seen
        try:
            handout = self._shards.hand_out(find, now_s, whole=whole)
        except UnknownStream as gone:
            if gone.name in self._named:
                raise
            handout = None
        if self._reader.seen != seen:
            self._keeper.written()
        return handout

    def _rest(self, poll: _Poll, until_s: float) -> None:
        """Wait until something may have changed."""
        keeper, reader = self._keeper, self._reader
        now_s = self._clock()
        until_s = min(until_s, now_s + REST_S)
        keeper.is_relieved = True
        try:
            while now_s < until_s:
                if self._shards.wait_for_change(min(poll.pause_s, until_s - now_s)):
                    return
                if reader.has_news():
                    keeper.written()
                    return
                now_s = self._clock()
                poll.slow_down(now_s)
        finally:
            keeper.is_relieved = False


class OwnProcess:
    """The process that made a consumer: a child that was forked from it must not use it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return os.getpid() == self._pid

    def check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"the consumer {self._name} belongs to process {self._pid}, not to its child "
                f"{os.getpid()}: open the hub again here and make a new one"
            )


class _Poll:
    """How long to wait between two looks for records: longer the longer none come."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self.pause_s = POLL_S_MIN

    def slow_down(self, now_s: float) -> None:
        is_idle = now_s - self._began_s > IDLE_S
        self.pause_s = min(self.pause_s * 1.5, POLL_S_IDLE if is_idle else POLL_S_MAX)
