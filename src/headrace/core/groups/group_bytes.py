"""A group as bytes: a version byte first, 25 bytes for each shard. docs/format.md has the
layout."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import get_args

from headrace.core.byte_fields import Fields, text_field
from headrace.core.errors import BadStored, NewerFormat
from headrace.core.groups.allocators import Allocator
from headrace.core.groups.group import Group, Member, ShardStanding, State
from headrace.core.model import ShardId

VERSION = 1

_HEAD = struct.Struct(">BBQQQQQQdQ")
_MEMBER = struct.Struct(">QddH")
_GONE = struct.Struct(">Q")
_STREAM = struct.Struct(">HII")
_SHARD = struct.Struct(">IBHHQQ")
_PARENTS = struct.Struct(">II")
_COUNT = struct.Struct(">H")

_STATES: tuple[State, ...] = get_args(State)
_STOPPED = 0x80
_NOBODY = 0xFFFF
_EXISTS, _ORDER, _PENDING = 1, 2, 4


def encoded(group: Group) -> bytes:
    names = sorted(group.members)
    number: dict[str | None, int] = {name: n for n, name in enumerate(names)}
    number[None] = _NOBODY
    streams = sorted(group.streams.keys() | {s for m in group.members.values() for s in m.streams})
    at = {stream: n for n, stream in enumerate(streams)}
    flags = _EXISTS * group.exists | _ORDER * group.order | _PENDING * group.pending
    out = [
        _HEAD.pack(
            VERSION,
            flags,
            group.version,
            group.born,
            group.floor,
            group.entered,
            group.removed,
            group.forgotten,
            group.timeout_s,
            group.configured,
        ),
        text_field(group.name),
        text_field(group.allocator.name),
        text_field(group.allocator.version),
        text_field(group.fault),
        _COUNT.pack(len(streams)),
        *map(text_field, streams),
        _COUNT.pack(len(group.gone)),
    ]
    for name, incarnation in group.gone.items():
        out += [text_field(name), _GONE.pack(incarnation)]
    out.append(_COUNT.pack(len(names)))
    for name in names:
        member = group.members[name]
        out.append(text_field(name))
        out.append(
            _MEMBER.pack(member.incarnation, member.capacity, member.timeout_s, len(member.streams))
        )
        out += [_COUNT.pack(at[stream]) for stream in sorted(member.streams)]
    by_stream: dict[str, list[tuple[int, ShardStanding]]] = {s: [] for s in sorted(group.streams)}
    for (stream, index), standing in group.shards.items():
        by_stream[stream].append((index, standing))
    out.append(_COUNT.pack(len(by_stream)))
    for stream, rows in by_stream.items():
        rows.sort()
        parents = [(index, p) for index, standing in rows for p in standing.parents]
        out.append(_STREAM.pack(at[stream], group.streams[stream], len(rows)))
        out += [
            _SHARD.pack(
                index,
                _STATES.index(s.state) | _STOPPED * s.stopped,
                number[s.owner],
                number[s.next],
                s.epoch,
                s.granted,
            )
            for index, s in rows
        ]
        out.append(len(parents).to_bytes(4, "big"))
        out += [_PARENTS.pack(*pair) for pair in parents]
    return b"".join(out)


def decoded(data: bytes, allocator: Callable[[str, str], Allocator]) -> Group:
    """The group, with the allocator that ``allocator`` finds by name and version. Raises
    `NewerFormat` or `BadStored`."""
    _check_version(data)
    try:
        return _decoded(data, allocator)
    except (struct.error, IndexError, ValueError) as error:
        raise BadStored(f"damaged group: {error}") from error


def title(data: bytes) -> tuple[str, bool]:
    """The name of the group, and whether it exists. The rest is not read."""
    _check_version(data)
    try:
        reader = Fields(data)
        flags = reader.take(_HEAD)[1]
        return reader.text(), bool(flags & _EXISTS)
    except (struct.error, ValueError) as error:
        raise BadStored(f"damaged group: {error}") from error


def _check_version(data: bytes) -> None:
    if data and data[0] > VERSION:
        raise NewerFormat(
            f"a group was written by a newer Headrace (version {data[0]}, this one reads up to "
            f"{VERSION}); update this one"
        )


def _decoded(data: bytes, allocator: Callable[[str, str], Allocator]) -> Group:
    reader = Fields(data)
    version_byte, flags, version, born, floor, *rest = reader.take(_HEAD)
    entered, removed, forgotten, timeout_s, configured = rest
    if version_byte != VERSION:
        raise ValueError(f"version {version_byte}")
    name, allocator_name, allocator_version, fault = (reader.text() for _ in range(4))
    known = [reader.text() for _ in range(reader.count())]
    gone = {}
    for _ in range(reader.count()):
        name_gone = reader.text()
        (gone[name_gone],) = reader.take(_GONE)
    names: list[str | None] = []
    members = {}
    for _ in range(reader.count()):
        member = reader.text()
        incarnation, capacity, session_s, count = reader.take(_MEMBER)
        subscribed = frozenset(known[reader.count()] for _ in range(count))
        members[member] = Member(incarnation, subscribed, capacity, session_s)
        names.append(member)
    streams = {}
    shards: dict[ShardId, ShardStanding] = {}
    for _ in range(reader.count()):
        at, stream_id, rows = reader.take(_STREAM)
        stream = known[at]
        streams[stream] = stream_id
        found = reader.rows(_SHARD, rows)
        parents: dict[int, tuple[int, ...]] = {}
        for index, parent in reader.rows(_PARENTS, reader.number()):
            parents[index] = (*parents.get(index, ()), parent)
        for index, state, owner, next_owner, epoch, granted in found:
            shards[ShardId(stream, index)] = ShardStanding(
                _STATES[state & ~_STOPPED],
                epoch,
                None if owner == _NOBODY else names[owner],
                None if next_owner == _NOBODY else names[next_owner],
                granted,
                parents.pop(index, ()),
                bool(state & _STOPPED),
            )
        if parents:
            raise ValueError(f"parents of unknown shards: {sorted(parents)[:3]}")
    reader.end()
    return Group(
        name,
        version=version,
        exists=bool(flags & _EXISTS),
        born=born,
        order=bool(flags & _ORDER),
        timeout_s=timeout_s,
        configured=configured,
        allocator=allocator(allocator_name, allocator_version),
        members=members,
        gone=gone,
        streams=streams,
        shards=shards,
        floor=floor,
        entered=entered,
        removed=removed,
        forgotten=forgotten,
        pending=bool(flags & _PENDING),
        fault=fault,
    )
