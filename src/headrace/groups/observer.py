"""What a member observes: the other members of its group, and the streams that it reads."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from headrace.core.errors import UnknownStream
from headrace.core.groups.events import Event, Evict, Join, Reply, ShardsChanged
from headrace.core.groups.group import Group
from headrace.core.groups.seat import Seat
from headrace.core.groups.silence import MemberId, SilenceWatch
from headrace.core.groups.subscription import Subscription
from headrace.core.model import ShardId, StreamInfo
from headrace.core.ports import GroupStore, Log
from headrace.groups.subscription import current_streams, facts_of, facts_of_deleted

log = logging.getLogger("headrace")

LOOK_S = 0.1
"""How often a member looks whether its neighbours' processes are dead."""

NEIGHBOURS = 3
"""How many neighbours a member looks at that often: in a large group not all at all."""


class ObservingMember(Protocol):
    """The membership that an observer belongs to."""

    def load(self) -> Group: ...
    def tried(self, event: Event, still: Callable[[], bool] | None = None) -> Reply | None: ...
    def joining(self, incarnation: int, infos: list[StreamInfo], group: Group) -> Join: ...


class Observer:
    """Observes for one seat: evicts members that are gone, tells the group of changed streams."""

    def __init__(
        self,
        records: Log,
        store: GroupStore,
        subscription: Subscription,
        member: ObservingMember,
        seat: Seat,
        heartbeat_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._store = store
        self._liveness = store.liveness
        self._subscription = subscription
        self._member = member
        self._seat = seat
        self._clock = clock
        self._watch = SilenceWatch(gap_s_max=seat.timeout_s / 2)
        self._every_s = heartbeat_s / 2
        self._neighbours_at_s = 0.0
        self._all_at_s = 0.0

    def look(self, now_s: float) -> None:
        """Look if it is time: at the neighbours often, at all members and streams less often."""
        if now_s < self._neighbours_at_s:
            return
        self._neighbours_at_s = now_s + LOOK_S
        group = self._member.load()
        if not group.exists:
            return
        if now_s < self._all_at_s:
            self._look_at_neighbours(group)
            return
        self._all_at_s = now_s + self._every_s
        self._watch_members(group)
        self._watch_streams(group)

    # Members

    def _look_at_neighbours(self, group: Group) -> None:
        own = self._seat.member
        after = [name for name in sorted(group.members) if name > own]
        before = [name for name in sorted(group.members) if name < own]
        for name in [*after, *before][:NEIGHBOURS]:
            who: MemberId = name, group.members[name].incarnation
            sign = self._liveness.sign(group.name, *who)
            if sign is not None and not sign.alive:
                self._evict(group.name, Evict(*who, "dead"))

    def _watch_members(self, group: Group) -> None:
        signs = {
            (name, member.incarnation): (
                self._liveness.sign(group.name, name, member.incarnation),
                member.timeout_s,
            )
            for name, member in group.members.items()
            if name != self._seat.member
        }
        # By the time it is now, not when the look began: the store may have been slow, and a member
        # that gave a sign meanwhile was not silent all that time.
        for evict in self._watch.look(signs, self._clock()):
            self._evict(group.name, evict)

    def _evict(self, group: str, evict: Evict) -> None:
        who: MemberId = evict.member, evict.incarnation

        def still() -> bool:
            return self._watch.still_gone(evict, self._liveness.sign(group, *who))

        if self._member.tried(evict, still) is None:
            return
        member = self._member.load().members.get(evict.member)
        if member is None or member.incarnation != evict.incarnation:
            log.warning(
                "group=%s: member %s is %s, its shards go to others",
                group, evict.member, evict.proof,
            )  # fmt: skip
            self._liveness.leave(group, *who)

    # Streams

    def _watch_streams(self, group: Group) -> None:
        member = group.members.get(self._seat.member)
        if member is None:
            return
        current = current_streams(self._subscription, self._records)
        for stream in member.streams - current.keys():
            self._is_gone(stream, group)
        new = [info for name, info in current.items() if name not in member.streams]
        if new:
            self._member.tried(self._member.joining(self._seat.incarnation, new, group))
        for name, info in current.items():
            if name in member.streams and _differs(info, group):
                self._member.tried(ShardsChanged(facts_of(self._records, self._store, info, group)))

    def _is_gone(self, stream: str, group: Group) -> None:
        if stream in group.streams:
            self._member.tried(ShardsChanged(facts_of_deleted(stream, group)))
        if stream in self._subscription.names:
            raise UnknownStream(stream)


def _differs(info: StreamInfo, group: Group) -> bool:
    """Whether the group must hear of the stream again: it does not know an open shard, or still
    knows a closed one."""
    return group.streams.get(info.name) != info.id or any(
        (ShardId(info.name, shard.index) in group.shards) != shard.open for shard in info.shards
    )
