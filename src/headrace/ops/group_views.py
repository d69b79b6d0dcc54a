"""Views of groups: who reads what, how far, how late, what happened and why; plain dicts for people
and programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.core.computations.attempts import Attempts
from headrace.core.groups.events import Stop
from headrace.core.groups.group import Group, ShardStanding
from headrace.core.groups.journal import Entry
from headrace.core.model import Record, ShardId
from headrace.core.ports import Sign
from headrace.core.quantities import shown_duration
from headrace.groups.positions import Position, Seek
from headrace.ops.attempts_views import attempts_view, worth_showing
from headrace.ops.explain import GroupChanges, event_sentence, why
from headrace.ops.ranges import shown_shards
from headrace.ops.times import utc


def group_line(group: Group) -> dict[str, Any]:
    """A group in one line."""
    held = sum(standing.owner is not None for standing in group.shards.values())
    return {
        "group": group.name,
        "streams": sorted(group.streams),
        "members": len(group.members),
        "shards": len(group.shards),
        "held": held,
        "allocator": group.allocator.name,
        "version": group.version,
    }


def group_view(
    group: Group,
    signs: Mapping[str, Sign | None],
    positions: Mapping[ShardId, Position],
    unread: Mapping[ShardId, Record],
    entries: Iterable[Entry],
    now_ms: int,
    attempts: Mapping[ShardId, Attempts] | None = None,
) -> dict[str, Any]:
    """A group with its members and shards."""
    entries = list(entries)
    times = {entry.version: entry.at_ms for entry in entries}
    stops = {e.event.shard: e.at_ms for e in entries if isinstance(e.event, Stop)}
    return {
        "group": group.name,
        "version": group.version,
        "allocator": group.allocator.name,
        "allocator_version": group.allocator.version,
        "order": group.order,
        "timeout": shown_duration(group.timeout_s),
        "fault": group.fault or None,
        "streams": sorted(group.streams),
        "members": [_member_view(group, name, signs.get(name)) for name in sorted(group.members)],
        "shards": [
            {
                **_standing_view(shard, group, positions.get(shard), times),
                **_position_view(positions.get(shard), unread.get(shard), now_ms),
                **_trouble_view(
                    shard,
                    group,
                    positions.get(shard),
                    (attempts or {}).get(shard),
                    stops.get(shard),
                ),
            }
            for shard in sorted(group.shards.keys() | positions.keys())
        ],
    }


def _member_view(group: Group, name: str, sign: Sign | None) -> dict[str, Any]:
    age_s = None if sign is None else sign.age_s
    return {
        "member_id": name,
        "shards": shown_shards(group.owned(name)),
        "last_heartbeat": None if age_s is None else round(age_s, 1),
        "alive": None if sign is None else sign.alive,
        "incarnation": group.members[name].incarnation,
    }


def _standing_view(
    shard: ShardId, group: Group, position: Position | None, times: Mapping[int, int]
) -> dict[str, Any]:
    standing = group.shards.get(shard)
    if standing is None:
        # The group does not list the shard: it was read and forgotten, or is not known yet.
        over = position is not None and position.closed and not position.lag
        standing = ShardStanding("done" if over else "free")
    since_ms = times.get(standing.granted)
    return {
        "shard": str(shard),
        "state": standing.state,
        "stopped": standing.stopped,
        "owner": standing.owner,
        "next": standing.next,
        "epoch": standing.epoch,
        "since": None if since_ms is None else utc(since_ms),
    }


def _position_view(position: Position | None, unread: Record | None, now_ms: int) -> dict[str, Any]:
    if position is None:
        return dict.fromkeys(("checkpoint", "end", "lag", "lag_s"))
    return {
        "checkpoint": position.checkpoint,
        "end": position.bounds.end,
        "lag": position.lag,
        "lag_s": _age_s(position, unread, now_ms),
    }


def _trouble_view(
    shard: ShardId,
    group: Group,
    position: Position | None,
    attempts: Attempts | None,
    stopped_ms: int | None,
) -> dict[str, Any]:
    standing = group.shards.get(shard)
    stopped = standing is not None and standing.stopped
    shown = worth_showing(attempts, position, stopped)
    if stopped_ms is None and shown is not None:
        stopped_ms = shown.at_ms or None  # the journal does not reach back: it was soon after
    return {
        "stopped_since": utc(stopped_ms) if stopped and stopped_ms is not None else None,
        "attempts": attempts_view(shard, shown),
    }


def lag_views(
    group: str,
    positions: Mapping[ShardId, Position],
    unread: Mapping[ShardId, Record],
    now_ms: int,
    *,
    each: bool = False,
) -> list[dict[str, Any]]:
    """The lag of a group: a line for each stream, or for each shard."""
    rows = []
    for stream, shard, mine in _parts(positions, each):
        ages = [_age_s(positions[one], unread.get(one), now_ms) for one in mine]
        known = [age_s for age_s in ages if age_s is not None]
        rows.append(
            {
                "stream": stream,
                "group": group,
                "shard": shard,
                "lag": sum(positions[one].lag for one in mine),
                "pos": sum(positions[one].next for one in mine),
                "end": sum(positions[one].bounds.end for one in mine),
                "lag_s": max(known) if known else None,
            }
        )
    return rows


def latency_views(
    group: str,
    positions: Mapping[ShardId, Position],
    last_read: Mapping[ShardId, Record],
    now_ms: int,
    *,
    each: bool = False,
) -> list[dict[str, Any]]:
    """The latency of a group, as Nuxeo counts it: the age of the last record that it has read,
    while there are more. A line for each stream, or for each shard; None if nothing was read, or
    the record is not kept."""
    rows = []
    for stream, shard, mine in _parts(positions, each):
        lag = sum(positions[one].lag for one in mine)
        found = [last_read[one] for one in mine if one in last_read]
        oldest = min(found, key=lambda record: record.timestamp_ms, default=None)
        latency_s = None if oldest is None else _since_s(oldest, now_ms)
        rows.append(
            {
                "stream": stream,
                "group": group,
                "shard": shard,
                "lag": lag,
                "latency_s": latency_s if lag else 0.0,
                "time": None if oldest is None else utc(oldest.timestamp_ms),
                "key": None if oldest is None else oldest.key,
            }
        )
    return rows


def _parts(
    positions: Mapping[ShardId, Position], each: bool
) -> list[tuple[str, int | str, list[ShardId]]]:
    """For each line: the stream, the shard or "all", and the shards that it sums up."""
    if each:
        return [(shard.stream, shard.index, [shard]) for shard in sorted(positions)]
    by_stream: dict[str, list[ShardId]] = {}
    for shard in sorted(positions):
        by_stream.setdefault(shard.stream, []).append(shard)
    return [(stream, "all", mine) for stream, mine in by_stream.items()]


def _age_s(position: Position, unread: Record | None, now_ms: int) -> float | None:
    """The age of the oldest unread record; 0 if all are read, None if it cannot be read."""
    if not position.lag:
        return 0.0
    return None if unread is None else _since_s(unread, now_ms)


def _since_s(record: Record, now_ms: int) -> float:
    return max(now_ms - record.timestamp_ms, 0) / 1000


def seek_views(plan: Iterable[Seek]) -> list[dict[str, Any]]:
    """A planned move of checkpoints, shard by shard."""
    return [
        {
            "shard": str(seek.shard),
            "from": seek.checkpoint,
            "to": seek.to,
            "skipped": seek.skipped,
            "repeated": seek.repeated,
            "resumes": seek.resumes,
        }
        for seek in plan
    ]


def history_views(entries: Iterable[Entry], changes: GroupChanges) -> list[dict[str, Any]]:
    """What happened to a group, oldest first; ``moved`` is None where it is not known."""
    return [
        {
            "version": entry.version,
            "time": utc(entry.at_ms),
            "what": changes.causes.get(entry.version) or event_sentence(entry.event),
            "moved": _moved_view(changes.moved.get(entry.version)),
        }
        for entry in entries
    ]


def _moved_view(moved: Mapping[str, list[ShardId]] | None) -> list[str] | None:
    if moved is None:
        return None
    return [f"{shown_shards(shards)} {became}" for became, shards in moved.items()]


def explanation(
    group: Group,
    shards: Iterable[ShardId],
    positions: Mapping[ShardId, Position],
    changes: GroupChanges,
    signs: Mapping[str, Sign | None] | None = None,
    attempts: Mapping[ShardId, Attempts] | None = None,
) -> dict[str, Any]:
    """Why each shard is where it is, and how it came there."""
    dead = {member for member, sign in (signs or {}).items() if sign and not sign.alive}
    return {
        "group": group.name,
        "version": group.version,
        "told_since_version": changes.begin,
        "note": changes.note or None,
        "shards": [
            {
                "shard": str(shard),
                "state": group.shards[shard].state if shard in group.shards else None,
                "why": why(
                    shard,
                    group,
                    positions,
                    changes.by_shard.get(shard, []),
                    dead,
                    (attempts or {}).get(shard),
                ),
                "story": [
                    {
                        "version": change.version,
                        "time": utc(change.at_ms),
                        "what": change.cause,
                        "became": change.became,
                    }
                    for change in changes.by_shard.get(shard, [])
                ],
            }
            for shard in shards
        ],
    }
