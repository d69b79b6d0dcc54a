"""A member of one of our own groups: on any log, with a store and signs of life.

The pure machines (`Seat`, `step`) decide what the member may do; the membership carries it out.
Each member also observes the other members and the streams (`Observer`): no server does.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from headrace.core.errors import (
    BadSetting,
    Contended,
    Fenced,
    HeadraceError,
    Refused,
    Replaced,
    Retryable,
    UnknownGroup,
    UnknownStream,
)
from headrace.core.groups.events import (
    Denied,
    Event,
    Fence,
    ForceCheckpoint,
    Granted,
    Join,
    Leave,
    Release,
    Reply,
    ShardsChanged,
    Stop,
)
from headrace.core.groups.group import Group
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.seat import Seat, SeatChange
from headrace.core.groups.subscription import Subscription
from headrace.core.model import ShardId, StreamInfo
from headrace.core.ports import (
    Begin,
    Commit,
    End,
    Grant,
    GrantNews,
    GroupStore,
    Lease,
    Log,
    Lost,
)
from headrace.groups.commit_outcome import committed_each
from headrace.groups.coordinator import Coordinator
from headrace.groups.heartbeat import SignsOfLife
from headrace.groups.observer import Observer
from headrace.groups.stored import checkpoint_of, epoch_of, granted
from headrace.groups.subscription import facts_of, found_streams

log = logging.getLogger("headrace")

BACK_S = 0.05
"""How long a member whose lease was in doubt waits before it joins again; longer if that fails."""
BACK_S_MAX = 5.0
JOINS_MAX = 5
INCARNATIONS_KEPT = 64

_RANDOM_BITS = 20


class GroupMembership:
    """The `Membership` of our own groups."""

    def __init__(
        self,
        records: Log,
        store: GroupStore,
        subscription: Subscription,
        settings: MemberSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.lease = Lease(-inf)
        self._records = records
        self._store = store
        self._liveness = store.liveness
        self._subscription = subscription
        self._settings = settings
        self._group = settings.group
        self._coordinator = Coordinator(store, [settings.allocator])
        self._clock = clock
        self._dice = dice
        self._seat: Seat | None = None
        self._signs: SignsOfLife | None = None
        self._observer: Observer | None = None
        self._grants: dict[ShardId, tuple[int, Grant]] = {}
        """The shards whose grant was announced and not released yet, with their epochs."""
        self._infos: dict[str, StreamInfo] = {}
        self._news: list[GrantNews] = []
        self._mine: deque[int] = deque(maxlen=INCARNATIONS_KEPT)
        """The incarnations of this member, also those whose joining was never answered."""
        self._last: int | None = None
        """The last incarnation that had a seat."""
        self._version = -1
        """The version of the stored group at the last look."""
        self._heartbeat_at_s = 0.0
        self._back_at_s = 0.0
        self._back_s = BACK_S

    # The port

    def join(self) -> None:
        self._sit()

    def changes(self) -> list[GrantNews]:
        now_s = self._clock()
        if self._seat is None:
            self._come_back(now_s)
        elif self._seat.in_doubt(now_s):
            self._give_up("no sign of life was given in time")
        else:
            self._heartbeat(self._seat, now_s)
            if self._observer is not None:
                self._observer.look(now_s)
        news, self._news = self._news, []
        return news

    def release(self, grants: Sequence[Grant]) -> None:
        seat = self._seat
        if seat is None:
            return
        freed: dict[ShardId, int] = {}
        for grant in grants:
            shard, epoch = _named(grant)
            if self._grants.get(shard, (0, None))[0] == epoch:
                del self._grants[shard]
            release = seat.let_go(shard, epoch)
            if release is not None:
                freed |= release.shards
            held = seat.held.get(shard)
            if held is not None and self._grants.get(shard, (0, None))[0] != held:
                self._begin(seat, shard, held)
        if freed:
            self._heartbeat_at_s = 0.0  # the next heartbeat says the same if the release is lost
            self.tried(Release(seat.member, seat.incarnation, freed))

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        return committed_each(self._store, commits)

    def move(self, grant: Grant, to: int) -> None:
        shard, epoch = _named(grant)
        found = grant.stream.shards[shard.index]
        end = self._records.bounds(grant.stream, shard.index).end
        finished = not found.open and to == end
        event = ForceCheckpoint(shard, epoch, to, finished, found.parents)
        reply = self._coordinator.apply(self._group, event)
        if isinstance(reply, Denied):
            raise Fenced(self._group, *shard)
        self._heartbeat_at_s = 0.0

    def fence(self, grant: Grant) -> None:
        self._coordinator.apply(self._group, Fence(*_named(grant)))
        self._heartbeat_at_s = 0.0

    def stop(self, grant: Grant) -> None:
        self._coordinator.apply(self._group, Stop(*_named(grant)))
        self._heartbeat_at_s = 0.0

    def finished(self, grant: Grant) -> None:
        shard, epoch = _named(grant)
        group = self._coordinator.load(self._group)
        facts = facts_of(self._records, self._store, self._records.stream(shard.stream), group)
        told = [
            fact._replace(finished_at=epoch) if fact.index == shard.index else fact
            for fact in facts.shards
        ]
        self.tried(ShardsChanged(replace(facts, shards=tuple(told))))

    def leave(self) -> None:
        seat, self._seat = self._seat, None
        if seat is None:
            return
        if not seat.over:
            self.tried(Leave(seat.member, seat.incarnation))
        self._stand_up(seat)

    # Taking a seat, giving it up, coming back

    def _sit(self) -> None:
        for _ in range(JOINS_MAX):
            seat = self._joined()
            if seat is not None:
                break
        else:
            raise Contended(self._group, JOINS_MAX)
        self._seat = seat
        heartbeat_s = self._settings.heartbeat_s
        self._observer = Observer(
            self._records, self._store, self._subscription, self, seat, heartbeat_s
        )
        self._signs = SignsOfLife(
            self._liveness, self._group, seat, self.lease, heartbeat_s, self._clock
        )
        log.info("group=%s member=%s: joined, %d shards", self._group, seat.member, len(seat.held))
        for shard, epoch in list(seat.held.items()):
            self._begin(seat, shard, epoch)

    def _joined(self) -> Seat | None:
        """A seat; None if another member of this name was a moment quicker."""
        settings = self._settings
        group = self._coordinator.load(self._group)
        if not group.exists and not settings.create:
            raise UnknownGroup(self._group)
        number = (group.version + 1) << _RANDOM_BITS
        incarnation = number | int(self._dice() * (1 << _RANDOM_BITS))
        self._mine.append(incarnation)
        found = found_streams(self._subscription, self._records)
        signed_s = self._clock()
        self._liveness.beat(self._group, settings.name, incarnation, 0)

        def still() -> bool:
            """Others watch this member from the write on: its last sign comes right before it."""
            nonlocal signed_s
            self._check_replaced()
            signed_s = self._clock()
            self._liveness.beat(self._group, settings.name, incarnation, 0)
            return True

        try:
            event = self.joining(incarnation, list(found.values()), group)
            reply = self._coordinator.apply(self._group, event, still)
        except BaseException:
            self._liveness.leave(self._group, settings.name, incarnation)
            raise
        if isinstance(reply, Granted):
            self._warn_of(reply)
            self._last = incarnation
            return Seat(settings.name, incarnation, reply, signed_s)
        self._liveness.leave(self._group, settings.name, incarnation)
        if isinstance(reply, Denied) and reply.why == "fenced":
            return None
        raise _refusal(reply)

    def _check_replaced(self) -> None:
        """Refuse to come back if another process joined under this name meanwhile.

        A member that joins for the first time takes over the name instead."""
        there = self._coordinator.load(self._group).members.get(self._settings.name)
        if there is None or self._last is None or there.incarnation in self._mine:
            return
        if there.incarnation > self._last:
            raise Replaced(self._group, self._settings.name)

    def _warn_of(self, reply: Granted) -> None:
        if reply.timeout_s != self._settings.session_s:
            log.warning(
                "group=%s: has a session of %g s and keeps it; %g s were asked for",
                self._group, reply.timeout_s, self._settings.session_s,
            )  # fmt: skip
        if self.load().order != self._settings.order:
            log.warning(
                "group=%s: has order=%s and keeps it; %s was asked for",
                self._group, self.load().order, self._settings.order,
            )  # fmt: skip
        if reply.fault:
            log.error("group=%s: not dealt anew: %s", self._group, reply.fault)

    def _give_up(self, why: str) -> None:
        seat, self._seat = self._seat, None
        assert seat is not None
        log.warning("group=%s member=%s: stops and comes back: %s", self._group, seat.member, why)
        self._lose(seat)
        self._back_at_s = self._clock() + self._back_s

    def _lose(self, seat: Seat) -> None:
        seat.over = True
        self.lease.until_s = -inf
        self._stand_up(seat)
        self._news += [Lost(grant) for _, grant in self._grants.values()]
        self._grants.clear()

    def _stand_up(self, seat: Seat) -> None:
        self._observer = None
        if self._signs is not None:
            self._signs.stop()
            self._signs = None
        self._liveness.leave(self._group, seat.member, seat.incarnation)

    def _come_back(self, now_s: float) -> None:
        if now_s < self._back_at_s:
            return
        try:
            self._sit()
        except Retryable as why:
            self._back_s = min(self._back_s * 2, BACK_S_MAX)
            self._back_at_s = now_s + self._back_s
            log.warning("group=%s: not back yet: %s", self._group, why)
        else:
            self._back_s = BACK_S

    # Heartbeats

    def _heartbeat(self, seat: Seat, now_s: float) -> None:
        """Send a heartbeat when it is due, or when the group has changed."""
        version = self._coordinator.version(self._group)
        if version == self._version and now_s < self._heartbeat_at_s:
            return
        self._version = version
        jitter = 0.9 + 0.2 * self._dice()
        assert self._signs is not None
        self._heartbeat_at_s = now_s + self._signs.heartbeat_s * jitter
        self._signs.sign()  # a shorter session, if the reply tells of one, begins now
        heartbeat = seat.heartbeat()
        assert heartbeat is not None, "one heartbeat at a time"
        reply = self.tried(heartbeat)
        if reply is None:
            seat.unanswered(heartbeat.beat)
            return
        seen = seat.seen
        changes = seat.answered(heartbeat.beat, reply)
        if seat.seen != seen:
            # A shard may have been granted and taken back before this member heard of it. The group
            # gives it to others only after a heartbeat that knows of it and does not hold it.
            self._heartbeat_at_s = 0.0
        if seat.over:
            self._over(seat, reply)
            return
        self.lease.until_s = seat.lease_s
        for change in changes:
            self._change(seat, change)

    def _over(self, seat: Seat, reply: Reply) -> None:
        group = self._coordinator.load(self._group)
        newer = group.members.get(seat.member)
        if not group.exists:
            self._seat = None
            self._lose(seat)
            raise UnknownGroup(self._group, deleted=True)
        if newer is not None and newer.incarnation > seat.incarnation:
            self._seat = None
            self._lose(seat)
            raise Replaced(self._group, seat.member)
        self._give_up(reply.text if isinstance(reply, Denied) else "it was evicted")

    def _change(self, seat: Seat, change: SeatChange) -> None:
        if change.begin:
            self._begin(seat, change.shard, change.epoch)
            return
        epoch, grant = self._grants.get(change.shard, (0, None))
        if grant is not None and epoch == change.epoch:
            self._news.append(End(grant))
        else:
            seat.let_go(change.shard, change.epoch)  # work on it never began

    def _begin(self, seat: Seat, shard: ShardId, epoch: int) -> None:
        info = self._info(shard, seat.streams.get(shard.stream))
        if info is None:
            return  # the stream was deleted or made anew: the group will hear of it
        grant = granted(self._group, info, shard.index, epoch)
        checkpoint = checkpoint_of(self._store, self._group, info.id, shard.index)
        self._grants[shard] = epoch, grant
        self._news.append(Begin(grant, None if checkpoint is None else checkpoint.next))

    def _info(self, shard: ShardId, stream_id: int | None) -> StreamInfo | None:
        """The stream with this id and this shard, read once; None if it is another one by now."""
        info = self._infos.get(shard.stream)
        if info is None or info.id != stream_id or shard.index >= len(info.shards):
            try:
                info = self._infos[shard.stream] = self._records.stream(shard.stream)
            except UnknownStream:
                return None
        return info if info.id == stream_id and shard.index < len(info.shards) else None

    # For the observer

    def load(self) -> Group:
        return self._coordinator.load(self._group)

    def joining(self, incarnation: int, infos: Sequence[StreamInfo], group: Group) -> Join:
        settings = self._settings
        return Join(
            settings.name,
            incarnation,
            tuple(facts_of(self._records, self._store, info, group) for info in infos),
            settings.allocator,
            capacity=settings.capacity,
            order=settings.order,
            timeout_s=settings.session_s,
        )

    def tried(self, event: Event, still: Callable[[], bool] | None = None) -> Reply | None:
        """The reply; None if the store gave none: the next heartbeat or look tries again."""
        try:
            return self._coordinator.apply(self._group, event, still)
        except Retryable as why:
            log.warning("group=%s: %s: %s", self._group, type(event).__name__, why)
            return None


def _named(grant: Grant) -> tuple[ShardId, int]:
    return ShardId(grant.stream.name, grant.shard), epoch_of(grant)


def _refusal(reply: Reply) -> HeadraceError:
    assert isinstance(reply, Denied), reply
    if reply.why in ("allocator", "allocation"):
        return BadSetting(f"{reply.text}: all members of a group use the same allocator")
    return Refused(reply.text)
