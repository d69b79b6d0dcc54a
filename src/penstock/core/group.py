"""Who may read which shard: ``step(group, event) -> (group, reply)``, and nothing else decides it.

A shard is in one of five states::

                 new
               1 │
         ┌───────┴───────┐
         ▼               ▼           3                 5, stop
      waiting ────2───▶ free ───────────────▶ held ───────────────▶ moving
                        ▲ ▲ ▲                 │  ▲                  │  │
                        │ │ └───4, let go─────┘  └────────6─────────┘  │
                        │ └────────────────────9, let go───────────────┘
                      7 │
                        └── done ◀────8──── free, held, moving

The edges, by number as in LogHub's picture, with those that leaving, fencing and stopping add:

    1 waiting   new -> waiting       order is on, and an ancestor is not done
    1 free      new -> free          it may be read
    1 done      new -> done          closed and empty, but an ancestor is not done
    2           waiting -> free      all ancestors are done, or order was switched off
    3           free -> held         given to a member, under a new epoch
    4 gone      held -> free         the owner was evicted, left, or is back as a newer one
    5           held -> moving       it should be another's: promised to the next owner
    6 released  moving -> held       the owner has let go: the next owns it, under a new epoch
    6 kept      moving -> held       the next owner is gone, or not needed: it stays, same epoch
    7           done -> free         the checkpoint was moved back by force
    8 free      free -> done         closed, and read to its end
    8 held      held -> done         closed, and read to its end
    8 moving    moving -> done       closed, and read to its end
    9 gone      moving -> free       the owner is gone, as in 4
    let go      held -> free         the owner let go of what it could have kept
    let go      moving -> free       the owner has let go, and nobody is next
    stop        held -> moving       promised to nobody, until it is resumed
    next        moving -> moving     promised to somebody else
    fence       free -> free         the epoch rises: a checkpoint was moved by force
    fence       held -> held         the epoch rises, the owner stays
    fence       moving -> moving     the epoch rises, the owner stays
    fence       waiting -> waiting   the epoch rises: a checkpoint was moved by force
    fence       done -> done         the epoch rises: a checkpoint was moved by force
    forget      done -> gone         no descendant waits for it any more
    drop        waiting -> gone      its stream is gone
    drop        free -> gone         its stream is gone
    drop        held -> gone         its stream is gone
    drop        moving -> gone       its stream is gone
    drop        done -> gone         its stream is gone

`step` is total and deterministic: an event that is unknown, late or repeated changes nothing. Each
change raises the group's version by one. A shard's epoch rises with each grant, and one that was
released is never granted again: giving a shard back to the one who let go is a new epoch too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, assert_never

from penstock.core.assign import Allocator, Candidate, balanced, dealt
from penstock.core.errors import BadAllocation
from penstock.core.events import (
    Configure,
    Delete,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Refused,
    Release,
    Reply,
    Resume,
    Settled,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from penstock.core.model import ShardId

State = Literal["waiting", "free", "held", "moving", "done"]

MEMBERS_MAX = 10_000
GROUP_SHARDS_MAX = 20_000


class Member(NamedTuple):
    incarnation: int
    """Of two of one name, the higher one is the newer."""
    streams: frozenset[str]
    capacity: float = 1.0
    timeout_s: float = 10.0
    """The one it knows of: a shorter one holds for it when it has seen it."""


class Standing(NamedTuple):
    """How a shard stands in its group."""

    state: State
    epoch: int = 0
    """Counts its grants, and whatever else fences who works on it."""
    owner: str | None = None
    """While held or moving."""
    next: str | None = None
    """While moving; nobody if it was stopped, or if there are more shards than may be held."""
    granted: int = 0
    """The group's version when the owner got this epoch."""
    parents: tuple[int, ...] = ()
    stopped: bool = False
    """Given to nobody."""


class Move(NamedTuple):
    """One edge that a shard went along."""

    shard: ShardId
    edge: str
    before: State | Literal["new"]
    after: State | Literal["gone"]


@dataclass(frozen=True)
class Group:
    name: str
    version: int = 0
    exists: bool = False
    """A deleted group leaves this behind, so that its version and epochs go on if it comes back."""
    born: int = 0
    """The version when it was created, or created anew."""
    order: bool = False
    """A shard waits until all its ancestors are done."""
    timeout_s: float = 10.0
    """How long a member may be silent."""
    configured: int = 0
    """The version when the timeout was changed."""
    allocator: Allocator = balanced
    members: Mapping[str, Member] = field(default_factory=dict)
    streams: Mapping[str, int] = field(default_factory=dict)
    """Ids by name; of a deleted group, those that are still to be swept."""
    shards: Mapping[ShardId, Standing] = field(default_factory=dict)
    floor: int = 0
    """No shard that is new, or was forgotten, begins with a lower epoch."""
    forgotten: int = 0
    """How many done shards are only counted any more."""
    pending: bool = False
    """Not dealt: by somebody who does not know the allocator, or because of the fault."""
    fault: str = ""
    moves: tuple[Move, ...] = field(default=(), compare=False, repr=False)
    """What the last step did; not stored."""

    @cached_property
    def by_owner(self) -> Mapping[str, Mapping[ShardId, Standing]]:
        """What each member owns: held and moving."""
        owned: dict[str, dict[ShardId, Standing]] = {}
        for shard, standing in self.shards.items():
            if standing.owner is not None:
                owned.setdefault(standing.owner, {})[shard] = standing
        return owned

    def owned(self, member: str) -> Mapping[ShardId, Standing]:
        return self.by_owner.get(member, {})


def step(group: Group, event: Event) -> tuple[Group, Reply]:
    """The group after the event, and the answer to whoever sent it."""
    if not group.exists and not isinstance(event, Join | Swept):
        return group, Refused("no group", f"there is no group {group.name!r}")
    match event:
        case Heartbeat():
            return _heartbeat(group, event)
        case Join():
            return _join(group, event)
        case Release():
            return _release(group, event)
        case Leave() | Evict():
            return _gone(group, event)
        case ShardsChanged():
            return _shards_changed(group, event)
        case Fence():
            return _fence(group, event)
        case Stop():
            return _stop(group, event)
        case Resume():
            return _resume(group, event)
        case ForceCheckpoint():
            return _force(group, event)
        case Configure():
            return _configure(group, event)
        case Delete():
            return _delete(group)
        case Swept():
            return _swept(group, event)
        case _:
            assert_never(event)


# One function per event: what it asks for, in terms of a draft


def _heartbeat(group: Group, event: Heartbeat) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, _fenced(group, event.member)
    let_go = [
        shard
        for shard, standing in group.owned(event.member).items()
        if standing.granted <= event.seen and event.held.get(shard) != standing.epoch
    ]
    member = group.members[event.member]
    learnt = member.timeout_s != group.timeout_s and group.configured <= event.seen
    if let_go or learnt or (group.pending and group.allocator.deal is not None):
        draft = _Draft(group)
        draft.let_go(let_go)
        if learnt:
            draft.members[event.member] = member._replace(timeout_s=group.timeout_s)
        group = draft.finished()
    return group, _granted(group, event.member, event.beat)


def _join(group: Group, event: Join) -> tuple[Group, Reply]:
    known = group.members.get(event.member)
    if known is not None and event.incarnation <= known.incarnation:
        if event.incarnation < known.incarnation:
            return group, _fenced(group, event.member)
        return group, _granted(group, event.member)
    others = len(group.members) - (known is not None)
    if others and event.allocator != group.allocator:
        return group, _disagrees(group, event.allocator)
    if others >= MEMBERS_MAX:
        return group, Refused("full", f"group {group.name!r} has {others} members already")
    if not group.exists and group.streams:
        return group, Refused("no group", f"group {group.name!r} is being deleted")
    entered = replace(group, exists=True, allocator=event.allocator)
    if not group.exists:
        entered = replace(
            entered, born=group.version + 1, order=event.order, timeout_s=event.timeout_s
        )
    draft = _Draft(entered)
    draft.without(event.member)
    names = frozenset(facts.stream for facts in event.streams)
    draft.members[event.member] = Member(
        event.incarnation, names, event.capacity, entered.timeout_s
    )
    for facts in event.streams:
        draft.take_in(facts)
    if len(draft.shards) > GROUP_SHARDS_MAX:
        return group, _too_many(group, len(draft.shards))
    after = draft.finished()
    if after.fault:
        return group, Refused("allocation", after.fault)
    return after, _granted(after, event.member)


def _release(group: Group, event: Release) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, _fenced(group, event.member)
    owned = group.owned(event.member)
    draft = _Draft(group)
    draft.let_go([s for s, epoch in event.shards.items() if s in owned and owned[s].epoch == epoch])
    after = draft.finished()
    return after, _granted(after, event.member)


def _gone(group: Group, event: Leave | Evict) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, Settled(group.version)
    draft = _Draft(group)
    draft.without(event.member)
    return _settled(draft)


def _shards_changed(group: Group, event: ShardsChanged) -> tuple[Group, Reply]:
    draft = _Draft(group)
    draft.take_in(event.stream)
    if len(draft.shards) > GROUP_SHARDS_MAX:
        return group, _too_many(group, len(draft.shards))
    return _settled(draft)


def _fence(group: Group, event: Fence) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is None or standing.epoch != event.epoch or standing.owner is None:
        return group, _late(event.shard)
    draft = _Draft(group)
    draft.fence(event.shard)
    return _settled(draft)


def _stop(group: Group, event: Stop) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is None or standing.epoch != event.epoch:
        return group, _late(event.shard)
    draft = _Draft(group)
    draft.shards[event.shard] = standing._replace(stopped=True, next=None)
    if standing.state == "held":
        draft.go(event.shard, "stop", "moving")
    elif standing.next is not None:
        draft.go(event.shard, "next", "moving")
    return _settled(draft)


def _resume(group: Group, event: Resume) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is None or standing.epoch != event.epoch:
        return group, _late(event.shard)
    draft = _Draft(group)
    if standing.stopped:
        draft.shards[event.shard] = standing._replace(stopped=False)
        if standing.owner is not None:
            # A stop that comes late a second time must not find the epoch it speaks of.
            draft.fence(event.shard)
    return _settled(draft)


def _force(group: Group, event: ForceCheckpoint) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is not None and standing.epoch != event.epoch:
        return group, _late(event.shard)
    draft = _Draft(group)
    if standing is None:
        if event.finished or event.shard.stream not in group.streams:
            return group, Settled(group.version)
        draft.shards[event.shard] = Standing("done", group.floor, parents=event.parents)
    draft.fence(event.shard)
    if event.finished:
        draft.done(event.shard)
    elif draft.shards[event.shard].state == "done":
        draft.go(event.shard, "7", "free")
    return _settled(draft)


def _configure(group: Group, event: Configure) -> tuple[Group, Reply]:
    changed = group
    if event.order is not None:
        changed = replace(changed, order=event.order)
    if event.timeout_s not in (None, group.timeout_s):
        changed = replace(changed, timeout_s=event.timeout_s, configured=group.version + 1)
    if event.allocator is not None:
        changed = replace(changed, allocator=event.allocator)
    draft = _Draft(changed, group)
    after = draft.finished()
    if event.allocator is not None and after.fault:
        return group, Refused("allocation", after.fault)
    return after, Settled(after.version)


def _delete(group: Group) -> tuple[Group, Reply]:
    highest = max((standing.epoch for standing in group.shards.values()), default=0)
    after = Group(
        group.name,
        version=group.version + 1,
        streams=group.streams,
        floor=max(group.floor, highest),
    )
    return after, Settled(after.version)


def _swept(group: Group, event: Swept) -> tuple[Group, Reply]:
    if group.exists or group.version != event.version:
        return group, Settled(group.version)
    after = replace(group, version=group.version + 1, streams={}, moves=())
    return after, Settled(after.version)


# The draft: a group being changed


class _Draft:
    """A copy of a group's shards and members to be changed edge by edge, then finished."""

    def __init__(self, group: Group, before: Group | None = None) -> None:
        self.group = group
        self.before = before or group
        """What it is compared with at the end."""
        self.version = group.version + 1
        self.shards = dict(group.shards)
        self.members = dict(group.members)
        self.streams = dict(group.streams)
        self.hints: dict[ShardId, str] = {}
        """Who should rather get a free shard: the same name under its old incarnation."""
        self.floor = group.floor
        self.moves: list[Move] = []

    def go(self, shard: ShardId, edge: str, after: State) -> None:
        before = self.shards[shard]
        self.shards[shard] = before._replace(state=after)
        self.moves.append(Move(shard, edge, before.state, after))

    def without(self, member: str) -> None:
        """Take a member away: what it owned becomes free, what it was promised stays."""
        if member not in self.members:
            return
        del self.members[member]
        for shard, standing in self.group.shards.items():
            if standing.owner == member:
                self.go(shard, "4 gone" if standing.state == "held" else "9 gone", "free")
                self._disown(shard)
                self.hints[shard] = member
            elif standing.next == member:
                self.go(shard, "6 kept", "held")
                self.shards[shard] = self.shards[shard]._replace(next=None)

    def let_go(self, shards: Iterable[ShardId]) -> None:
        """The owner works on them no more."""
        for shard in shards:
            standing = self.shards[shard]
            if standing.state == "moving" and standing.next is not None:
                self.go(shard, "6 released", "held")
                self._grant(shard, standing.next)
            else:
                self.go(shard, "let go", "free")
                self._disown(shard)

    def fence(self, shard: ShardId) -> None:
        standing = self.shards[shard]
        self.go(shard, "fence", standing.state)
        granted = self.version if standing.owner is not None else 0
        self.shards[shard] = self.shards[shard]._replace(epoch=standing.epoch + 1, granted=granted)

    def done(self, shard: ShardId) -> None:
        state = self.shards[shard].state
        if state in ("free", "held", "moving"):
            self.go(shard, f"8 {state}", "done")
            self._disown(shard)

    def take_in(self, facts: StreamFacts) -> None:
        """New shards enter, finished ones are done, those of a stream that is gone are dropped."""
        known = self.streams.get(facts.stream)
        if known is not None and facts.id < known:
            return
        if known is not None and (facts.id > known or not facts.shards):
            self._drop(shard for shard in list(self.shards) if shard.stream == facts.stream)
        if not facts.shards:
            self.streams.pop(facts.stream, None)
            return
        self.streams[facts.stream] = facts.id
        entering = []
        current = facts.seen >= self.group.born
        for fact in facts.shards:
            shard = ShardId(facts.stream, fact.index)
            standing = self.shards.get(shard)
            finished = current and fact.finished_at is not None
            if standing is None:
                state: State = "done" if finished else "free"
                self.shards[shard] = Standing(state, self.floor, parents=fact.parents)
                entering.append(shard)
            elif finished and fact.finished_at == standing.epoch:
                self.done(shard)
        self._enter(entering)

    def finished(self) -> Group:
        """The group after the changes: waiters freed, the done forgotten, the rest dealt out."""
        self._free_waiters()
        self._forget_done()
        fault = self._deal()
        after = replace(
            self.group,
            version=self.version,
            members=self.members,
            streams=self.streams,
            shards=self.shards,
            floor=self.floor,
            forgotten=self.group.forgotten + sum(m.edge == "forget" for m in self.moves),
            pending=fault is not None,
            fault=fault or "",
            moves=tuple(self.moves),
        )
        unchanged = replace(after, version=self.before.version) == self.before
        return self.before if unchanged else after

    def _enter(self, entering: Iterable[ShardId]) -> None:
        """Judge shards that are new; all are there already, for one may descend from another."""
        for shard in entering:
            standing = self.shards[shard]
            waits = self._waits(shard)
            if standing.state == "done" and not waits:
                del self.shards[shard]
                continue
            if standing.state == "free" and waits and self.group.order:
                standing = self.shards[shard] = standing._replace(state="waiting")
            self.moves.append(Move(shard, f"1 {standing.state}", "new", standing.state))

    def _waits(self, shard: ShardId) -> bool:
        """Whether any ancestor is still to be read. What the group does not know was read."""
        ahead = [shard]
        met = {shard}
        while ahead:
            for index in self.shards[ahead.pop()].parents:
                parent = ShardId(shard.stream, index)
                if parent in met or parent not in self.shards:
                    continue
                if self.shards[parent].state != "done":
                    return True
                met.add(parent)
                ahead.append(parent)
        return False

    def _free_waiters(self) -> None:
        for shard, standing in list(self.shards.items()):
            if standing.state == "waiting" and not (self.group.order and self._waits(shard)):
                self.go(shard, "2", "free")

    def _forget_done(self) -> None:
        """Keep what a waiting shard descends from, and what descends from a shard still to be
        read: so the ancestry of all that waits, or will, stays whole."""
        if all(standing.state != "done" for standing in self.shards.values()):
            return
        needed: set[ShardId] = set()
        ahead = [shard for shard, s in self.shards.items() if s.state == "waiting"]
        while ahead:
            shard = ahead.pop()
            for index in self.shards[shard].parents:
                parent = ShardId(shard.stream, index)
                if parent in self.shards and parent not in needed:
                    needed.add(parent)
                    ahead.append(parent)
        for shard, standing in list(self.shards.items()):
            if standing.state == "done" and shard not in needed and not self._waits(shard):
                self._remove(shard, "forget")

    def _drop(self, shards: Iterable[ShardId]) -> None:
        for shard in shards:
            self._remove(shard, "drop")

    def _remove(self, shard: ShardId, edge: str) -> None:
        standing = self.shards.pop(shard)
        self.moves.append(Move(shard, edge, standing.state, "gone"))
        self.floor = max(self.floor, standing.epoch)

    def _deal(self) -> str | None:
        """Carry out what the allocator says; the fault if it cannot be: then nothing moves."""
        if not self.members:
            return None
        if self.group.allocator.deal is None:
            return ""
        shards = [
            shard
            for shard, s in self.shards.items()
            if s.state in ("free", "held", "moving") and not s.stopped
        ]
        current = dict(self.hints)
        for shard in shards:
            standing = self.shards[shard]
            if standing.owner is not None:
                owner = standing.next if standing.state == "moving" else standing.owner
                if owner is not None:
                    current[shard] = owner
        candidates = [Candidate(n, m.streams, m.capacity) for n, m in self.members.items()]
        try:
            target = dealt(self.group.allocator, candidates, shards, current)
        except BadAllocation as error:
            return str(error)
        for shard in shards:
            self._aim(shard, target.get(shard))
        return None

    def _aim(self, shard: ShardId, target: str | None) -> None:
        standing = self.shards[shard]
        match standing.state:
            case "free" if target is not None:
                self.go(shard, "3", "held")
                self._grant(shard, target)
            case "held" if target != standing.owner:
                self.go(shard, "5", "moving")
                self.shards[shard] = self.shards[shard]._replace(next=target)
            case "moving" if target == standing.owner:
                self.go(shard, "6 kept", "held")
                self.shards[shard] = self.shards[shard]._replace(next=None)
            case "moving" if target != standing.next:
                self.go(shard, "next", "moving")
                self.shards[shard] = self.shards[shard]._replace(next=target)
            case _:
                pass

    def _grant(self, shard: ShardId, member: str) -> None:
        standing = self.shards[shard]
        self.shards[shard] = standing._replace(
            owner=member, next=None, epoch=standing.epoch + 1, granted=self.version
        )

    def _disown(self, shard: ShardId) -> None:
        self.shards[shard] = self.shards[shard]._replace(owner=None, next=None, granted=0)


# Replies


def _is_member(group: Group, name: str, incarnation: int) -> bool:
    member = group.members.get(name)
    return member is not None and member.incarnation == incarnation


def _settled(draft: _Draft) -> tuple[Group, Reply]:
    after = draft.finished()
    return after, Settled(after.version)


def _granted(group: Group, member: str, beat: int = 0) -> Granted:
    shards = {
        shard: standing.epoch
        for shard, standing in group.owned(member).items()
        if standing.state == "held"
    }
    # Nobody calls it silent before the timeout that the group knows it to know; and a longer one is
    # not its own before that.
    timeout_s = min(group.timeout_s, group.members[member].timeout_s)
    return Granted(group.version, shards, group.streams, beat, timeout_s, group.fault)


def _fenced(group: Group, member: str) -> Refused:
    return Refused("fenced", f"group {group.name!r} does not know this incarnation of {member!r}")


def _late(shard: ShardId) -> Refused:
    return Refused("late", f"{shard} has another epoch by now")


def _disagrees(group: Group, allocator: Allocator) -> Refused:
    ours = group.allocator
    return Refused(
        "allocator",
        f"group {group.name!r} is dealt by {ours.name!r} version {ours.version!r}, not by "
        f"{allocator.name!r} version {allocator.version!r}",
    )


def _too_many(group: Group, shards: int) -> Refused:
    return Refused(
        "full", f"group {group.name!r} would have {shards} shards, of at most {GROUP_SHARDS_MAX}"
    )
