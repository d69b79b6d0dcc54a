"""One member's side of a group: what it may work on, and when it must doubt that.

It sends one heartbeat at a time, and only the answer to it changes what is held. What was let go
under an epoch is never taken up again under it. A member whose lease is in doubt, or which is told
that it is fenced, is over: its process comes back as a new incarnation, with a new `Seat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from headrace.core.groups.events import Denied, Granted, Heartbeat, Release, Reply
from headrace.core.model import ShardId

LEASE_SHARE = 0.9
"""Of the session: clocks that run at different speeds must agree that a lease was over before its
member is called silent."""


class SeatChange(NamedTuple):
    """What to do about a shard: begin under an epoch, or end what is done under one."""

    shard: ShardId
    epoch: int
    begin: bool


class Seat:
    """The place of one incarnation in its group. Times are the member's own, monotonic."""

    def __init__(self, member: str, incarnation: int, joined: Granted, now_s: float) -> None:
        self.member = member
        self.incarnation = incarnation
        self.seen = joined.version
        self.timeout_s = joined.timeout_s
        self.streams = joined.streams
        """Ids by name, as of the last answer."""
        self.over = False
        self.held: dict[ShardId, int] = dict(joined.shards)
        self.leaving: dict[ShardId, int] = {}
        """Being let go: still worked on, so still reported."""
        self._beat = 0
        self._waiting_for: int | None = None
        self._let_go: dict[ShardId, int] = {}
        """Highest epoch let go of, by shard: dead."""
        self._sign_s = now_s

    @property
    def beat(self) -> int:
        return self._beat

    def heartbeat(self) -> Heartbeat | None:
        """The next heartbeat, unless one is on its way."""
        if self._waiting_for is not None:
            return None
        self._beat += 1
        self._waiting_for = self._beat
        return Heartbeat(
            self.member,
            self.incarnation,
            self._beat,
            self.seen,
            {**self.leaving, **self.held},
        )

    def unanswered(self, beat: int) -> None:
        """The answer to that heartbeat will not come, or not be heeded if it does."""
        if self._waiting_for == beat:
            self._waiting_for = None

    def answered(self, beat: int, reply: Reply) -> list[SeatChange]:
        """What changes by the answer to a heartbeat: nothing if it is not the one waited for."""
        if self._waiting_for != beat:
            return []
        self._waiting_for = None
        match reply:
            case Denied():
                self.over = True
                return []
            case Granted() if reply.version >= self.seen:
                self.seen = reply.version
                self.timeout_s = reply.timeout_s
                self.streams = reply.streams
                return self._changes(reply.shards)
            case _:
                return []

    def let_go(self, shard: ShardId, epoch: int) -> Release | None:
        """Nothing is worked on there any more; what to tell the group, if it did not know. If the
        shard is held after this, under a newer epoch, work on it may begin now: never before."""
        assert self.leaving.get(shard, epoch) >= epoch, f"{shard}: let go of the older epoch first"
        self._let_go[shard] = dead = max(epoch, self._let_go.get(shard, 0))
        if self.leaving.get(shard) == epoch:
            del self.leaving[shard]
        elif self.held.get(shard) == epoch:
            del self.held[shard]
        else:
            return None
        return Release(self.member, self.incarnation, {shard: dead})

    def signed(self, now_s: float) -> None:
        """A sign of life was given that began at that time."""
        self._sign_s = max(now_s, self._sign_s)

    @property
    def lease_s(self) -> float:
        """Until when nobody can have called this member gone."""
        return -inf if self.over else self._sign_s + self.timeout_s * LEASE_SHARE

    def in_doubt(self, now_s: float) -> bool:
        """Whether somebody may have called this member gone: then it must not act any more."""
        return now_s >= self.lease_s

    def _changes(self, granted: Mapping[ShardId, int]) -> list[SeatChange]:
        changes = []
        for shard, epoch in list(self.held.items()):
            if granted.get(shard) != epoch:
                del self.held[shard]
                if shard in self.leaving:
                    # It was waiting for the work under an older epoch to end.
                    self._let_go[shard] = epoch
                else:
                    self.leaving[shard] = epoch
                    changes.append(SeatChange(shard, epoch, begin=False))
        for shard, epoch in granted.items():
            fresh = epoch > max(self._let_go.get(shard, 0), self.leaving.get(shard, 0))
            if fresh and shard not in self.held:
                self.held[shard] = epoch
                if shard not in self.leaving:
                    changes.append(SeatChange(shard, epoch, begin=True))
        return changes
