"""Explains in plain sentences why a shard moved or why it waits, from the journal of its group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.core.computations.attempts import Attempts
from headrace.core.groups.events import (
    Configure,
    Delete,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Heartbeat,
    Join,
    Leave,
    Release,
    Resume,
    ShardsChanged,
    Stop,
    Swept,
)
from headrace.core.groups.group import Group, ShardStanding
from headrace.core.groups.journal import Entry
from headrace.core.model import ShardId
from headrace.core.quantities import shown_duration
from headrace.groups.positions import Position
from headrace.ops.attempts_views import attempts_view, because, worth_showing
from headrace.ops.ranges import shown_shards
from headrace.ops.times import utc

TOO_LARGE = "a change too large to tell"
_ANCESTORS_SHOWN = 5


class ShardChange(NamedTuple):
    """One change of a shard: what happened, and how the shard stood afterwards."""

    version: int
    at_ms: int
    cause: str
    became: str
    stopped: bool = False
    """Whether the shard was stopped afterwards."""


@dataclass
class GroupChanges:
    """What a replay of the journal shows of a group and its shards."""

    causes: dict[int, str] = field(default_factory=dict)
    """What happened, by the version of the group that it led to."""
    moved: dict[int, dict[str, list[ShardId]]] = field(default_factory=dict)
    """By version: how which shards stood afterwards."""
    by_shard: dict[ShardId, list[ShardChange]] = field(default_factory=dict)
    """The changes of each shard, oldest first."""
    begin: int | None = None
    """The version before the first change; None if none is known."""
    note: str = ""
    """Why the changes are not known; empty if they are."""


def changes_of(group: Group, steps: Iterable[tuple[Entry, Group, Group]]) -> GroupChanges:
    """The changes of a group, from the steps of a replay. If the replay does not end at the group
    as it is, they are not known, and ``note`` says why."""
    found = GroupChanges()
    end = None
    for entry, before, after in steps:
        if entry.version > group.version:
            break
        if found.begin is None:
            found.begin = before.version
        cause = event_sentence(entry.event, before)
        found.causes[entry.version] = cause
        moved = found.moved[entry.version] = {}
        for shard in _changed(before, after):
            stands = after.shards.get(shard)
            became = _new_standing(before.shards.get(shard), stands)
            moved.setdefault(became, []).append(shard)
            stopped = stands is not None and stands.stopped
            change = ShardChange(entry.version, entry.at_ms, cause, became, stopped)
            found.by_shard.setdefault(shard, []).append(change)
        end = after
    if end == group:
        return found
    return GroupChanges(note=_why_unknown(group, end))


def event_sentence(event: Event | None, before: Group | None = None) -> str:
    """An event in one sentence; with more detail if the group before it is known."""
    match event:
        case None:
            return TOO_LARGE
        case Join():
            return _joined(event, before)
        case Heartbeat():
            return _beat(event, before)
        case Release():
            return f"{event.member} let go of {shown_shards(event.shards) or 'nothing'}"
        case Leave():
            return f"{event.member} left"
        case Evict(proof="dead"):
            return f"{event.member} was evicted: its process is dead"
        case Evict():
            return f"{event.member} was evicted: silent for {shown_duration(event.silent_s)}"
        case ShardsChanged():
            facts = event.stream
            return (
                f"{facts.stream} has {len(facts.shards)} shards"
                if facts.shards
                else (f"{facts.stream} is gone")
            )
        case Fence():
            return f"{event.shard} was fenced"
        case Stop():
            return f"{event.shard} was stopped"
        case Resume():
            return f"{event.shard} was resumed"
        case ForceCheckpoint():
            return f"the checkpoint of {event.shard} was moved to {event.next} by hand"
        case Configure():
            return _configured(event)
        case Delete():
            return "the group was deleted"
        case Swept():
            return "what the deleted group left was swept away"


def why(
    shard: ShardId,
    group: Group,
    positions: Mapping[ShardId, Position],
    changes: list[ShardChange],
    dead: Collection[str] = (),
    attempts: Attempts | None = None,
) -> str:
    """Why a shard stands as it does; ``dead`` are members whose processes have ended."""
    standing = group.shards.get(shard)
    if standing is None:
        return "not known to the group: read to its end and forgotten, or not heard of yet"
    since = _since(changes)
    shown = worth_showing(attempts, positions.get(shard), standing.stopped)
    trouble = attempts_view(shard, shown)
    match standing.state:
        case "held":
            cause = "".join(f": {t.cause}" for t in changes if t.version == standing.granted)
            gone = ""
            if standing.owner in dead:
                gone = "; its process is dead, and no member has taken the shard over yet"
            again = f"; it is tried again {because(trouble)}" if trouble else ""
            return f"held by {standing.owner} since version {standing.granted}{cause}{gone}{again}"
        case "moving" if standing.next is not None:
            to = f"promised to {standing.next}"
            return f"{to}, waits for {standing.owner} to let go{since}"
        case "moving":
            instead = _not_dealt(shard, group)
            if standing.stopped:
                instead = _stopped(trouble, changes)
            return f"waits for {standing.owner} to let go{since}: {instead}"
        case "waiting":
            return f"waits for its ancestors: {_ancestors(shard, group, positions)}"
        case "free":
            return f"free{since}: " + (
                f"{_stopped(trouble, changes)}, and is given to no member until it is resumed"
                if standing.stopped
                else _not_dealt(shard, group)
            )
        case "done":
            return f"closed, and read to its end{since}"


def _changed(before: Group, after: Group) -> list[ShardId]:
    gone = [shard for shard in before.shards if shard not in after.shards]
    return gone + [s for s, now in after.shards.items() if before.shards.get(s) != now]


def _new_standing(before: ShardStanding | None, after: ShardStanding | None) -> str:
    if after is None:
        return "read and forgotten" if before and before.state == "done" else "gone"
    text: str = after.state
    if after.state == "held":
        text = f"held by {after.owner}"
    if after.state == "moving":
        text = f"moving from {after.owner} to {after.next or 'no member'}"
    if after.epoch != (before.epoch if before else 0):
        text += f" under epoch {after.epoch}"
    return f"{text}, stopped" if after.stopped else text


def _joined(event: Join, before: Group | None) -> str:
    known = None if before is None else before.members.get(event.member)
    if before is not None and not before.exists:
        return f"{event.member} joined and made the group"
    if known is None:
        return f"{event.member} joined"
    if known.incarnation < event.incarnation:
        return f"{event.member} came back as a newer one"
    return f"{event.member} reads more streams"


def _beat(event: Heartbeat, before: Group | None) -> str:
    if before is None:
        return f"a heartbeat of {event.member}"
    let_go = [
        shard
        for shard, standing in before.owned(event.member).items()
        if standing.granted <= event.seen and shard not in event.held
    ]
    if let_go:
        return f"{event.member} let go of {shown_shards(let_go)}"
    if before.pending:
        return f"a heartbeat of {event.member} dealt what was left to be dealt"
    return f"{event.member} has heard of the timeout"


def _configured(event: Configure) -> str:
    changed = []
    if event.order is not None:
        changed.append(f"order {'on' if event.order else 'off'}")
    if event.timeout_s is not None:
        changed.append(f"timeout {shown_duration(event.timeout_s)}")
    if event.allocator is not None:
        changed.append(f"allocator {event.allocator.name}")
    return f"configured: {', '.join(changed) or 'nothing'}"


def _since(changes: list[ShardChange]) -> str:
    return f" since version {changes[-1].version} ({changes[-1].cause})" if changes else ""


def _stopped(trouble: Mapping[str, Any] | None, changes: list[ShardChange]) -> str:
    """Since when a shard is stopped, as far as that is known, and why."""
    at = None if trouble is None else trouble["at"]
    for change in reversed(changes):
        if not change.stopped:
            break
        at = utc(change.at_ms)
    since = f" at {at}" if at else ""
    return f"it was stopped{since}" + (f" {because(trouble)}" if trouble is not None else "")


def _not_dealt(shard: ShardId, group: Group) -> str:
    dealer = f"allocator {group.allocator.name}"
    if not group.members:
        return "the group has no members"
    if all(shard.stream not in member.streams for member in group.members.values()):
        return f"no member reads {shard.stream}"
    if group.fault:
        return f"it could not be dealt: {group.fault}"
    if group.pending:
        return f"not dealt yet: the member that changed the group last does not know {dealer}"
    return f"{dealer} gives it to no member: all that may hold it have as many as they may"


def _ancestors(shard: ShardId, group: Group, positions: Mapping[ShardId, Position]) -> str:
    """The ancestors that are still to be read, nearest first."""
    line, unread = [shard], []
    for one in line:
        for index in group.shards[one].parents:
            parent = ShardId(shard.stream, index)
            if parent in group.shards and parent not in line:
                line.append(parent)
                if group.shards[parent].state != "done":
                    unread.append(parent)
    shown = [_unread(one, group, positions) for one in unread[:_ANCESTORS_SHOWN]]
    more = len(unread) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _unread(shard: ShardId, group: Group, positions: Mapping[ShardId, Position]) -> str:
    text = f"{shard} is {group.shards[shard].state}"
    position = positions.get(shard)
    if position is None:
        return text
    if not position.closed:
        return f"{text} and open, read to {position.next} of {position.bounds.end}"
    return f"{text}, read to {position.next} of {position.bounds.end}"


def _why_unknown(group: Group, end: Group | None) -> str:
    if group.allocator.deal is None:
        return (
            f"who moved why cannot be told here: allocator {group.allocator.name!r} version "
            f"{group.allocator.version!r} is not known to this process"
        )
    if end is None:
        return "who moved why cannot be told: the journal does not reach back to a whole group"
    return (
        "who moved why cannot be told: replaying the journal does not lead to the group as it is "
        "(it was changed meanwhile, or by another version)"
    )
