"""The invariants of groups, by name, checked after every step.

T is about what is written, E about what processes do, L (in `simulation`) about a group at rest.

E4, that only uncommitted records are repeated, has no check of its own: by E2 each epoch begins at
the checkpoint of its grant and has no gap, and by T4 checkpoints do not go back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from headrace.core import store_keys
from headrace.core.groups.allocators import Allocator
from headrace.core.groups.events import (
    Configure,
    Delete,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Join,
    Leave,
    Resume,
    Settled,
    Stop,
    Swept,
)
from headrace.core.groups.group import Group, ShardStanding
from headrace.core.groups.group_bytes import decoded, encoded
from headrace.core.groups.machine import step
from headrace.core.groups.silence import MemberId
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Grant
from tests.harness.simulator.net import AskedEvent, Net
from tests.harness.simulator.replica import SimReplica
from tests.harness.simulator.store import GROUP, SimStore
from tests.harness.simulator.swarm import DRIFT_MAX
from tests.harness.simulator.worker import SimWorker
from tests.harness.simulator.world import World

GROUP_BYTES_MAX = 512 * 1024
HANDLER_S_MAX = 0.3
"""A handler that takes no longer than this cannot outlive the lease checked before it."""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, shard: ShardId | None, why: str) -> None:
        super().__init__(f"{invariant}: {shard or 'group'}: {why}")
        self.invariant = invariant
        self.shard = shard


@dataclass(slots=True)
class _Tenure:
    """One epoch of a shard: its owner, where it began, how far it got and how it ended."""

    owner: MemberId
    start: int
    """The checkpoint at the grant."""
    next: int = -1
    """The offset that the next effect must have; -1 before the first effect."""
    ended_at: int | None = None
    """The version of the group when the epoch was superseded."""
    ended_s: float = 0.0
    ended_by: str = ""
    doer: MemberId | None = None


@dataclass(slots=True)
class _ShardHistory:
    epoch: int = 0
    tenures: dict[int, _Tenure] = field(default_factory=dict)
    done_once: set[int] = field(default_factory=set)
    """Offsets that had an effect."""
    outputs: int = -1


class Checks:
    """Is told of every write, commit, effect and eviction, and raises `Violation`."""

    def __init__(self, world: World, store: SimStore, net: Net) -> None:
        self.world = world
        self.store = store
        self.net = net
        self.replicas: list[SimReplica] = []
        self.group = Group(GROUP)
        self.edges: set[tuple[str, str, str]] = set()
        self.last_change_of_owner_s = 0.0
        self.hand_overs = 0
        self.newest: dict[str, int] = {}
        """The highest incarnation that was ever a member, by name."""
        self.looked: dict[Evict, float] = {}
        """How long a member had surely been silent when its observer last found it silent. Each
        eviction counts by itself: the finding of another observer does not excuse it."""
        self.applied: list[Event] = []
        """What administrators asked for and was written."""
        self.shards: dict[ShardId, _ShardHistory] = {}
        self.ordered: set[ShardId] = set()
        """Shards that entered while order was on, and whose ancestors were not reopened since."""
        store.watching.append(self)

    # Writes to the store

    def wrote(
        self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None], why: Any
    ) -> None:
        value = puts.get(store_keys.group_key(GROUP))
        if value is None:
            return
        assert isinstance(why, AskedEvent)
        before, event = self.group, why.event
        after = decoded(value, Allocator)
        if store_keys.group_key(GROUP) not in checks or after.version != before.version + 1:
            self._fail("T1", None, f"version {before.version} became {after.version} unchecked")
        self._check_codec(after, value)
        self._check_members(after)
        self._check_step(before, after, why)
        if isinstance(event, Fence | Stop | ForceCheckpoint):
            self.applied.append(event)
        left = before.members.keys() - after.members.keys()
        if isinstance(event, Evict) and event.member in left:
            self._check_eviction(before, event)
        changed = [s for s in _union(before, after) if before.shards.get(s) != after.shards.get(s)]
        if isinstance(event, ForceCheckpoint):
            self._forced(before, after, event)
        self._begin_anew(before, after)
        for shard in changed:
            self._check_shard(shard, before, after, event)
        self._orders(before, after, event)
        for shard in changed:
            self._check_order(shard, after)
        self._remember(before, after, event)
        self.group = after

    def _check_members(self, after: Group) -> None:
        for name, member in after.members.items():
            if member.incarnation < self.newest.get(name, 0):
                self._fail("I1", None, f"an older incarnation of {name} is back")
            self.newest[name] = member.incarnation

    def acknowledged(self, event: Fence | Stop | ForceCheckpoint, reply: Any) -> None:
        """An administrator was told that the event was stored."""
        if isinstance(reply, Settled) and event not in self.applied:
            self._fail("A1", event.shard, f"{event} was said to be stored")

    def _check_codec(self, group: Group, value: bytes) -> None:
        if encoded(group) != value or len(value) > GROUP_BYTES_MAX:
            self._fail("T10", None, f"{len(value)} bytes do not come back")

    def _check_step(self, before: Group, after: Group, asked: AskedEvent) -> None:
        event: Any = asked.event
        if isinstance(event, Swept) or (not before.exists and before.streams):
            return
        known = before.members.get(getattr(event, "member", ""))
        knows = replace(before, allocator=asked.knows(before.allocator))
        once, reply = step(knows, event)
        again, reply_again = step(knows, event)
        if (once, reply) != (again, reply_again) or once != after:
            self._fail("T9", None, f"{event} leads to {once} or {again}, stored is {after}")
        for move in once.moves:
            self.edges.add((move.edge, move.before, move.after))
            if move.edge == "6 kept" and isinstance(event, Evict):
                self.world.counts["sometimes: transfer cancelled, next owner gone"] += 1
        if isinstance(event, Join) and known is not None:
            self.world.counts["sometimes: newer incarnation takes over"] += 1
        if not after.members and before.members:
            self.world.counts["sometimes: no member is left"] += 1

    def _check_shard(self, shard: ShardId, before: Group, after: Group, event: Any) -> None:
        old = before.shards.get(shard) or ShardStanding("waiting")
        new = after.shards.get(shard)
        mine = self.shards.setdefault(shard, _ShardHistory())
        if new is None:
            self._superseded(shard, old, before, after, event)
            return
        rise = new.epoch - mine.epoch
        granted = new.owner is not None and (
            self._owner(before, old) != self._owner(after, new) or new.granted != old.granted
        )
        if rise < 0 or (granted and rise < 1):
            self._fail("T2", shard, f"epoch {mine.epoch} became {new.epoch}, owner {new.owner}")
        most = 1 + isinstance(event, ForceCheckpoint | Resume)
        same = before.streams.get(shard.stream) == after.streams.get(shard.stream)
        if shard in before.shards and same and rise > most:
            self._fail("T2", shard, f"epoch {mine.epoch} rose to {new.epoch}")
        if granted and new.stopped and not isinstance(event, Fence | ForceCheckpoint):
            self._fail("S1", shard, f"granted to {new.owner} though it is stopped")
        if new.owner is not None and new.owner not in after.members:
            self._fail("T3", shard, f"owner {new.owner} is no member")
        if (new.state in ("held", "moving")) != (new.owner is not None):
            self._fail("T3", shard, f"{new.state} with owner {new.owner}")
        if rise or new.owner != old.owner:
            self._superseded(shard, old, before, after, event)
        mine.epoch = new.epoch
        if granted:
            self._granted(shard, new, after, event)

    def _granted(self, shard: ShardId, new: ShardStanding, after: Group, event: Any) -> None:
        assert new.owner is not None
        mine = self.shards[shard]
        start = event.next if isinstance(event, ForceCheckpoint) and event.shard == shard else None
        if start is None:
            start = self.store.checkpoint(shard).next
        info = self.store.streams.get(shard.stream)
        there = info is not None and info.id == after.streams[shard.stream]
        owner = new.owner, after.members[new.owner].incarnation
        last = mine.tenures.get(max(mine.tenures)) if mine.tenures else None
        if there and last is not None and last.ended_by == "released" and last.next > start:
            self._fail("E6", shard, f"released at {start}, but {last.owner} had got to {last.next}")
        mine.tenures[new.epoch] = _Tenure(owner, start)
        if last is not None and last.owner != owner:
            self.hand_overs += 1
        self.last_change_of_owner_s = self.world.now_s
        self.world.note(
            shard, "granted to", f"{owner[0]}#{owner[1]:x}", "epoch", new.epoch, "from", start,
            "by", type(event).__name__, "version", after.version,
        )  # fmt: skip

    def _superseded(
        self, shard: ShardId, old: ShardStanding, before: Group, after: Group, event: Any
    ) -> None:
        tenure = self.shards[shard].tenures.get(old.epoch)
        if tenure is None or tenure.ended_at is not None or old.owner is None:
            return
        tenure.ended_at = after.version
        tenure.ended_s = self.world.now_s
        tenure.ended_by = self._cause(shard, old, before, after, event)
        self.world.note(
            shard, "epoch", old.epoch, "ended:", tenure.ended_by, "by", type(event).__name__,
            "version", after.version,
        )  # fmt: skip
        if tenure.ended_by == "released" and self._worked_on(shard, tenure.owner):
            self._fail("T6", shard, f"{tenure.owner} still works under epoch {old.epoch}")

    def _worked_on(self, shard: ShardId, by: MemberId) -> bool:
        workers = [replica.workers.get(shard) for replica in self.replicas]
        return any(w and w.working and (w.member, w.incarnation) == by for w in workers)

    @staticmethod
    def _cause(shard: ShardId, old: ShardStanding, before: Group, after: Group, event: Any) -> str:
        assert old.owner is not None
        same = after.members.get(old.owner)
        if same is None or same.incarnation != before.members[old.owner].incarnation:
            return event.proof if isinstance(event, Evict) else "left or replaced"
        named = getattr(event, "shard", None) == shard
        if named and isinstance(event, Fence | ForceCheckpoint | Resume):
            return "fenced"
        other = before.streams[shard.stream] != after.streams.get(shard.stream)
        if other or shard not in after.shards or after.shards[shard].state == "done":
            return "done or dropped"
        return "released"

    def _forced(self, before: Group, after: Group, event: ForceCheckpoint) -> None:
        mine = self.shards.setdefault(event.shard, _ShardHistory())
        mine.outputs = -1
        for tenure in mine.tenures.values():
            tenure.next = -1
        self.world.note(event.shard, "checkpoint forced to", event.next)
        was = before.shards.get(event.shard)
        now = after.shards.get(event.shard)
        if now is not None and was is not None and now.epoch <= was.epoch:
            self._fail("T4", event.shard, "moved by force without raising the epoch")
        self.ordered -= {s for s in self.ordered if event.shard in self._ancestors(s)}

    def _begin_anew(self, before: Group, after: Group) -> None:
        """Reset offsets, keep epochs: the name stands for another stream, or another group."""
        for shard, mine in list(self.shards.items()):
            same = before.streams.get(shard.stream) == after.streams.get(shard.stream)
            if not same or not after.exists:
                for tenure in mine.tenures.values():
                    tenure.next = -1
                self.shards[shard] = _ShardHistory(mine.epoch, mine.tenures)

    # Order

    def _orders(self, before: Group, after: Group, event: Any) -> None:
        if isinstance(event, Configure) and event.order is False:
            self.ordered.clear()
        replaced = {n for n, i in before.streams.items() if after.streams.get(n) != i}
        self.ordered = {s for s in self.ordered if s.stream not in replaced}
        for shard in after.shards.keys() - self.ordered:
            new = shard not in before.shards or shard.stream in replaced
            if new and after.order and not isinstance(event, ForceCheckpoint):
                self.ordered.add(shard)
        self.ordered &= after.shards.keys()

    def _check_order(self, shard: ShardId, after: Group) -> None:
        new = after.shards.get(shard)
        if new is None or new.owner is None or shard not in self.ordered:
            return
        info = self.store.streams.get(shard.stream)
        if info is None or info.id != after.streams[shard.stream]:
            return  # the group does not know yet that this is another stream, with other ancestors
        for ancestor in self._ancestors(shard):
            if not self.store.is_read(ancestor):
                self._fail("T7", shard, f"owned by {new.owner} before {ancestor} was read")

    def _ancestors(self, shard: ShardId) -> set[ShardId]:
        info = self.store.streams.get(shard.stream)
        if info is None or shard.index >= len(info.shards):
            return set()
        found: set[int] = set()
        ahead = [shard.index]
        while ahead:
            for parent in info.shards[ahead.pop()].parents:
                if parent not in found:
                    found.add(parent)
                    ahead.append(parent)
        return {ShardId(shard.stream, index) for index in found}

    def _remember(self, before: Group, after: Group, event: Any) -> None:
        if isinstance(event, Join | Leave | Evict | Delete | Configure):
            self.world.note(None, f"version {after.version}:", _told(event))

    # Commits

    def committed(
        self, who: SimWorker, shard: ShardId, grant: Grant, done: Slice, was: int
    ) -> None:
        standing = self.group.shards.get(shard)
        mine = self.shards[shard]
        owner = None if standing is None else self._owner(self.group, standing)
        if (
            standing is None
            or owner != (who.member, who.incarnation)
            or who.epoch != standing.epoch
        ):
            self._fail("T5", shard, f"checkpoint {done.end} by {who.member} under {who.epoch}")
        stored = self.store.checkpoint(shard).next
        if stored != done.end or not was <= stored <= self.store.end_of(shard):
            self._fail("T4", shard, f"checkpoint {was} became {stored} by {done}")
        lost = [offset for offset in range(was, done.end) if offset not in mine.done_once]
        if lost:
            self._fail("E3", shard, f"checkpoint {done.end} passes {lost[:5]} without an effect")
        if done.start != was or (mine.outputs not in (-1, done.start)):
            self._fail("E7", shard, f"outputs {done.start}..{done.end} after {was}, {mine.outputs}")
        mine.outputs = done.end
        info = self.store.streams[shard.stream]
        if done.end == self.store.end_of(shard) and not info.shards[shard.index].open:
            self.world.counts["sometimes: checkpoint exactly at a closed end"] += 1
        self.world.note(shard, "checkpoint", done.end, "by", who.member, "epoch", who.epoch)

    # What processes do

    def began(self, worker: SimWorker) -> None:
        tenure = self.shards[worker.shard].tenures.get(worker.epoch)
        if tenure is None or tenure.owner != (worker.member, worker.incarnation):
            self._fail("E1", worker.shard, f"{worker.member} begins under epoch {worker.epoch}")

    def effect(self, worker: SimWorker, offset: int) -> None:
        shard, epoch = worker.shard, worker.epoch
        mine = self.shards[shard]
        tenure = mine.tenures[epoch]
        self.world.note(shard, "effect", offset, "by", worker.member, "epoch", epoch)
        doer = worker.member, worker.incarnation
        if tenure.owner != doer or tenure.doer not in (None, doer):
            self._fail("E1", shard, f"{doer} works under epoch {epoch} of {tenure.owner}")
        tenure.doer = doer
        if tenure.ended_at is None:
            expected = tenure.start if tenure.next < 0 else tenure.next
            if offset != expected:
                self._fail("E2", shard, f"offset {offset} under epoch {epoch}, not {expected}")
            tenure.next = offset + 1
            mine.done_once.add(offset)
            self._check_parents_first(shard)
        else:
            self._check_zombie(worker, tenure, offset)

    def _check_zombie(self, worker: SimWorker, tenure: _Tenure, offset: int) -> None:
        """Check an effect under a superseded epoch: the worker must not have known that it was
        over."""
        assert tenure.ended_at is not None
        self.world.counts["zombie effects"] += 1
        excused = worker.node.pauses != worker.checked_pauses or worker.node.slowness > 1
        handler_s = self.world.now_s - worker.checked_s
        if tenure.ended_by == "released":
            self._fail("E6", worker.shard, f"offset {offset} after {tenure.owner} had let go")
        if tenure.ended_by in ("silent", "dead"):
            if tenure.ended_s <= worker.checked_s or (not excused and handler_s < HANDLER_S_MAX):
                self._fail("E5", worker.shard, f"offset {offset} by an evicted, unpaused process")
        elif worker.checked_seen >= tenure.ended_at:
            self._fail("E5", worker.shard, f"offset {offset} though it knew of the fencing")

    def _check_parents_first(self, shard: ShardId) -> None:
        if shard in self.ordered:
            for ancestor in self._ancestors(shard):
                if not self.store.is_read(ancestor):
                    self._fail("E8", shard, f"effect before {ancestor} was read")

    def evicting(self, evict: Evict, watched_s: float) -> None:
        """An observer that had watched for ``watched_s`` is about to write an eviction."""
        who = evict.member, evict.incarnation
        member = self.group.members.get(evict.member)
        if member is not None and member.incarnation > evict.incarnation:
            self.world.counts["sometimes: eviction races a return"] += 1
        silent_s = self.world.now_s - self.net.signed_at_s.get(who, 0.0)
        self.looked[evict] = inf if not self.net.lives(who) else min(silent_s, watched_s)

    def _check_eviction(self, before: Group, evict: Evict) -> None:
        silent_s = self.looked[evict]
        member = before.members[evict.member]
        needed_s = inf if evict.proof == "dead" else member.timeout_s * (1 - 2 * DRIFT_MAX)
        if silent_s < needed_s:
            self._fail("T8", None, f"{evict}: silent for {silent_s:.1f} s, as far as was watched")

    @staticmethod
    def _owner(group: Group, standing: ShardStanding) -> MemberId | None:
        if standing.owner is None or standing.owner not in group.members:
            return None
        return standing.owner, group.members[standing.owner].incarnation

    def _fail(self, invariant: str, shard: ShardId | None, why: str) -> None:
        self.world.note(shard, "VIOLATION", invariant, why)
        raise Violation(invariant, shard, why)


def _union(before: Group, after: Group) -> Iterable[ShardId]:
    return sorted(before.shards.keys() | after.shards.keys())


def _told(event: Any) -> str:
    who = f" {event.member}#{event.incarnation:x}" if hasattr(event, "member") else ""
    return f"{type(event).__name__}{who} {getattr(event, 'proof', '')}"
