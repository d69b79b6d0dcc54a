"""Which member may read which shard: ``step(group, event) -> (group, reply)`` alone decides it.

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

The edges have the numbers of LogHub's picture; leaving, fencing and stopping add some:

    1 waiting   new -> waiting       order is on, and an ancestor is not done
    1 free      new -> free          the shard may be read
    1 done      new -> done          closed and empty, but an ancestor is not done
    2           waiting -> free      all ancestors are done, or order was switched off
    3           free -> held         given to a member, under a new epoch
    4 gone      held -> free         the owner was evicted, left, or a newer one joined
    5           held -> moving       another member should own it: promised to the next owner
    6 released  moving -> held       the owner has let go: the next owns it, under a new epoch
    6 kept      moving -> held       no next owner is left or needed: the owner stays, same epoch
    7           done -> free         the checkpoint was moved back by force
    7           done -> waiting      the same, while order is on and an ancestor is not done
    8 free      free -> done         closed, and read to its end
    8 held      held -> done         closed, and read to its end
    8 moving    moving -> done       closed, and read to its end
    9 gone      moving -> free       the owner is gone, as in 4
    let go      held -> free         the owner let go, though it could have kept the shard
    let go      moving -> free       the owner has let go, and there is no next owner
    stop        held -> moving       promised to no member, until it is resumed
    next        moving -> moving     promised to another member
    fence       free -> free         the epoch rises: a checkpoint was moved by force
    fence       held -> held         the epoch rises, the owner stays
    fence       moving -> moving     the epoch rises, the owner stays
    fence       waiting -> waiting   the epoch rises: a checkpoint was moved by force
    fence       done -> done         the epoch rises: a checkpoint was moved by force
    forget      done -> gone         no descendant waits for it any more
    drop        waiting -> gone      the shard is gone, with or without its stream
    drop        free -> gone         the shard is gone, with or without its stream
    drop        held -> gone         the shard is gone, with or without its stream
    drop        moving -> gone       the shard is gone, with or without its stream
    drop        done -> gone         the shard is gone, with or without its stream

`step` is total and deterministic: an event that is unknown, late or repeated changes nothing. Each
change raises the group's version by one. A shard's epoch rises with each grant. An epoch that was
released is never granted again: even the member that let go gets the shard back under a new epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Never

from headrace.core.groups.allocators import Allocator
from headrace.core.groups.draft import Draft, remembered
from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Release,
    Reply,
    Resume,
    Settled,
    ShardsChanged,
    Stop,
    Swept,
)
from headrace.core.groups.group import Group, Member
from headrace.core.model import ShardId

MEMBERS_MAX = 1_000
GROUP_SHARDS_MAX = 20_000


_OfAGroup = (
    Heartbeat
    | Release
    | Leave
    | Evict
    | ShardsChanged
    | Fence
    | Stop
    | Resume
    | ForceCheckpoint
    | Configure
    | Delete
)
"""The events that can happen only to a group that exists."""


def step(group: Group, event: Event) -> tuple[Group, Reply]:
    """The group after the event, and the answer to the sender of the event."""
    if not group.exists and isinstance(event, _OfAGroup):
        return group, Denied("no group", f"there is no group {group.name!r}")
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
            return _delete(group, event)
        case Swept():
            return _swept(group, event)
        case _:
            return group, _unknown(event)


# One function per event: what the event asks for, in terms of a draft


def _heartbeat(group: Group, event: Heartbeat) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, _fenced(group, event.member)
    let_go = [
        shard
        for shard, standing in group.owned(event.member).items()
        if standing.granted <= event.seen and shard not in event.held
    ]
    member = group.members[event.member]
    learnt = member.timeout_s != group.timeout_s and group.configured <= event.seen
    if let_go or learnt or (group.pending and group.allocator.deal is not None):
        draft = Draft(group)
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
        return _reads_more(group, event, known)
    if event.incarnation <= group.gone.get(event.member, -1):
        return group, _fenced(group, event.member)
    others = len(group.members) - (known is not None)
    if others and event.allocator != group.allocator:
        return group, _disagrees(group, event.allocator)
    if others >= MEMBERS_MAX:
        return group, Denied("full", f"group {group.name!r} has {others} members already")
    if not group.exists and group.streams:
        return group, Denied("no group", f"group {group.name!r} is being deleted")
    entered = replace(group, exists=True, allocator=event.allocator)
    if not group.exists:
        entered = replace(
            entered,
            born=group.version + 1,
            configured=group.version + 1,
            order=event.order,
            timeout_s=event.timeout_s,
        )
    draft = Draft(entered)
    draft.without(event.member)
    member = Member(event.incarnation, frozenset(), event.capacity, entered.timeout_s)
    return _reading(group, draft, event, member)


def _reads_more(group: Group, event: Join, known: Member) -> tuple[Group, Reply]:
    """A member takes on further streams. It gives up none, because the event may come late."""
    if known.streams.issuperset(facts.stream for facts in event.streams):
        return group, _granted(group, event.member)
    return _reading(group, Draft(group), event, known)


def _reading(group: Group, draft: Draft, event: Join, member: Member) -> tuple[Group, Reply]:
    """The member reads the streams of the event, besides its own."""
    streams = member.streams.union(facts.stream for facts in event.streams)
    draft.members[event.member] = member._replace(streams=streams)
    for facts in event.streams:
        draft.take_in(facts)
    after = draft.finished()
    if _is_too_full(group, after):
        return group, _too_many(after)
    if draft.fault:
        return group, Denied("allocation", draft.fault)
    return after, _granted(after, event.member)


def _release(group: Group, event: Release) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, _fenced(group, event.member)
    owned = group.owned(event.member)
    draft = Draft(group)
    draft.let_go([s for s, epoch in event.shards.items() if s in owned and owned[s].epoch == epoch])
    after = draft.finished()
    return after, _granted(after, event.member)


def _gone(group: Group, event: Leave | Evict) -> tuple[Group, Reply]:
    if not _is_member(group, event.member, event.incarnation):
        return group, Settled(group.version)
    if isinstance(event, Evict) and not _may_be_gone(group, event):
        return group, Settled(group.version)
    draft = Draft(group)
    draft.without(event.member)
    return _settled(draft)


def _shards_changed(group: Group, event: ShardsChanged) -> tuple[Group, Reply]:
    draft = Draft(group)
    draft.take_in(event.stream)
    return _settled(draft)


def _fence(group: Group, event: Fence) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is None or standing.epoch != event.epoch or standing.owner is None:
        return group, _late(event.shard)
    draft = Draft(group)
    draft.fence(event.shard)
    return _settled(draft)


def _stop(group: Group, event: Stop) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    if standing is None or standing.epoch != event.epoch:
        return group, _late(event.shard)
    draft = Draft(group)
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
    draft = Draft(group)
    if standing.stopped:
        draft.shards[event.shard] = standing._replace(stopped=False)
        # A stop that comes a second time, and late, must not find the epoch that it names.
        draft.fence(event.shard)
    return _settled(draft)


def _force(group: Group, event: ForceCheckpoint) -> tuple[Group, Reply]:
    standing = group.shards.get(event.shard)
    epoch = group.floor if standing is None else standing.epoch
    if epoch != event.epoch or event.shard.stream not in group.streams:
        return group, _late(event.shard)
    draft = Draft(group)
    if standing is None:
        draft.recall(event.shard, event.parents)
    draft.fence(event.shard)
    if event.finished:
        draft.done(event.shard)
    else:
        draft.reopen(event.shard)
    return _settled(draft)


def _configure(group: Group, event: Configure) -> tuple[Group, Reply]:
    if event.configured != group.configured:
        return group, Denied("late", f"group {group.name!r} was configured meanwhile")
    changed = group
    if event.order is not None:
        changed = replace(changed, order=event.order)
    if event.timeout_s is not None:
        changed = replace(changed, timeout_s=event.timeout_s)
    if event.allocator is not None:
        changed = replace(changed, allocator=event.allocator)
    if changed != group:
        changed = replace(changed, configured=group.version + 1)
    draft = Draft(changed, group)
    after = draft.finished()
    if event.allocator is not None and draft.fault:
        return group, Denied("allocation", draft.fault)
    return after, Settled(after.version)


def _delete(group: Group, event: Delete) -> tuple[Group, Reply]:
    if event.born != group.born:
        return group, Denied("late", f"group {group.name!r} is another one by now")
    highest = max((standing.epoch for standing in group.shards.values()), default=0)
    incarnations = {name: member.incarnation for name, member in group.members.items()}
    after = Group(
        group.name,
        version=group.version + 1,
        gone=remembered(group.gone, incarnations),
        streams=group.streams,
        floor=max(group.floor, highest),
    )
    return after, Settled(after.version)


def _swept(group: Group, event: Swept) -> tuple[Group, Reply]:
    if group.exists or not group.streams or group.version != event.version:
        return group, Settled(group.version)
    after = replace(group, version=group.version + 1, streams={}, moves=())
    return after, Settled(after.version)


# Shared questions, and replies


def _may_be_gone(group: Group, event: Evict) -> bool:
    timeout_s = group.members[event.member].timeout_s
    return event.proof == "dead" or event.silent_s > timeout_s


def _is_member(group: Group, name: str, incarnation: int) -> bool:
    member = group.members.get(name)
    return member is not None and member.incarnation == incarnation


def _settled(draft: Draft) -> tuple[Group, Reply]:
    after = draft.finished()
    if _is_too_full(draft.before, after):
        return draft.before, _too_many(after)
    return after, Settled(after.version)


def _is_too_full(before: Group, after: Group) -> bool:
    return len(after.shards) > max(GROUP_SHARDS_MAX, len(before.shards))


def _granted(group: Group, member: str, beat: int = 0) -> Granted:
    shards = {
        shard: standing.epoch
        for shard, standing in group.owned(member).items()
        if standing.state == "held"
    }
    # No observer calls the member silent before the timeout that the group has told it. So the
    # shorter of the two holds for the member.
    timeout_s = min(group.timeout_s, group.members[member].timeout_s)
    return Granted(group.version, shards, group.streams, beat, timeout_s, group.fault)


def _fenced(group: Group, member: str) -> Denied:
    return Denied("fenced", f"group {group.name!r} does not know this incarnation of {member!r}")


def _late(shard: ShardId) -> Denied:
    return Denied(
        "late", f"{shard} has another epoch or owner by now, or the group does not know it"
    )


def _unknown(event: Never) -> Denied:
    return Denied("unknown", f"no event: {type(event).__name__}")


def _disagrees(group: Group, allocator: Allocator) -> Denied:
    ours = group.allocator
    return Denied(
        "allocator",
        f"group {group.name!r} is dealt by {ours.name!r} version {ours.version!r}, not by "
        f"{allocator.name!r} version {allocator.version!r}",
    )


def _too_many(group: Group) -> Denied:
    return Denied(
        "full",
        f"group {group.name!r} would have {len(group.shards)} shards, of at most "
        f"{GROUP_SHARDS_MAX}",
    )
