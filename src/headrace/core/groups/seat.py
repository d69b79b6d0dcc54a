"""One member's side of a group: which shards it may work on, and when it must doubt that.

A member sends one heartbeat at a time, and only the answer to it changes what the member holds. A
shard that was let go under an epoch is never taken up again under that epoch. A member is over when
its lease is in doubt, or when it is told that it is fenced. Its process then comes back as a new
incarnation, with a new `Seat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from headrace.core.groups.events import Denied, Granted, Heartbeat, Release, Reply
from headrace.core.model import ShardId

LEASE_SHARE = 0.9
"""How much of a session a lease lasts. Less than all of it: clocks run at different speeds, and a
lease must be over before an observer calls its member silent."""


class SeatChange(NamedTuple):
    """What a member must do about a shard: begin to work on it under an epoch, or end that work."""

    shard: ShardId
    epoch: int
    begin: bool


class Seat:
    """The seat of one incarnation in its group. Times are of the member's own monotonic clock."""

    def __init__(self, member: str, incarnation: int, joined: Granted, now_s: float) -> None:
        self.member = member
        self.incarnation = incarnation
        self.seen = joined.version
        self.timeout_s = joined.timeout_s
        self.streams = joined.streams
        """The ids of the streams by name, as in the last answer."""
        self.over = False
        self.held: dict[ShardId, int] = dict(joined.shards)
        self.leaving: dict[ShardId, int] = {}
        """The shards that are being let go. They are still worked on, so heartbeats still report
        them."""
        self._beat = 0
        self._waiting_for: int | None = None
        self._let_go: dict[ShardId, int] = {}
        """The highest epoch let go of, by shard. It is never taken up again."""
        self._sign_s = now_s

    @property
    def beat(self) -> int:
        return self._beat

    def heartbeat(self) -> Heartbeat | None:
        """The next heartbeat; None while the answer to one is awaited."""
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
        """The answer to that heartbeat is no longer awaited; it is ignored if it comes."""
        if self._waiting_for == beat:
            self._waiting_for = None

    def answered(self, beat: int, reply: Reply) -> list[SeatChange]:
        """What the answer to a heartbeat changes; nothing if that answer is not awaited."""
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
        """Work on the shard under this epoch has ended; returns what to tell the group, if the
        group does not know yet. If the shard is then held under a newer epoch, work under that
        epoch may begin now, and never earlier."""
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
        """The member has given a sign of life, which it began to give at ``now_s``."""
        self._sign_s = max(now_s, self._sign_s)

    @property
    def lease_s(self) -> float:
        """Until when no observer can have called this member gone."""
        return -inf if self.over else self._sign_s + self.timeout_s * LEASE_SHARE

    def in_doubt(self, now_s: float) -> bool:
        """Whether an observer may have called this member gone. Then it must not act any more."""
        return now_s >= self.lease_s

    def _changes(self, granted: Mapping[ShardId, int]) -> list[SeatChange]:
        changes = []
        for shard, epoch in list(self.held.items()):
            if granted.get(shard) != epoch:
                del self.held[shard]
                if shard in self.leaving:
                    # Work under it had not begun: work under an older epoch has not ended yet.
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
