"""A bounded journal of a group: its last events, kept so that its changes can be explained.

An entry lies in the slot of its version, so the last 256 changes are kept. At every 128th change
the whole group is kept too, and the last three of these snapshots stay. So there is always a
snapshot with at least 128 changes after it, over which `step` can be replayed. Entry and snapshot
are written together with the group. docs/format.md has the layout.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, get_args

from headrace.core import store_keys
from headrace.core.byte_fields import Fields, text_field
from headrace.core.errors import BadStored, NewerFormat
from headrace.core.groups.allocators import Allocator
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
    Proof,
    Release,
    Resume,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.groups.machine import step
from headrace.core.model import ShardId

VERSION = 1
ENTRIES_KEPT = 256
SNAPSHOT_EVERY = 128
SNAPSHOTS_KEPT = 3
ENTRY_BYTES_MAX = 256 * 1024
EVENT_BYTES_MAX = 4 * 1024 * 1024
"""The most bytes of an event before it is compressed."""

_HEAD = struct.Struct(">BBBQq")
_MEMBER = struct.Struct(">Q")
_JOIN = struct.Struct(">QdBd")
_BEAT = struct.Struct(">Qqq")
_EVICT = struct.Struct(">QBd")
_EPOCH = struct.Struct(">Q")
_FORCE = struct.Struct(">QQB")
_CONFIGURE = struct.Struct(">QBBdB")
_STREAM = struct.Struct(">IqI")
_FACT = struct.Struct(">IBq")
_PARENT = struct.Struct(">II")
_OWNED = struct.Struct(">IQ")
_COUNT = struct.Struct(">H")
_NUMBER = struct.Struct(">I")

_KINDS: tuple[type[Event], ...] = get_args(Event)
"""The number of a kind is its position here, from 1 on. 0 stands for an event that is not kept."""
_PROOFS: tuple[Proof, ...] = get_args(Proof)
_ORDERS = (None, False, True)

Resolver = Callable[[str, str], Allocator]
"""Finds an allocator by name and version. An unknown one is found too, but cannot deal."""


class Entry(NamedTuple):
    """One change of a group."""

    version: int
    """The version of the group after the change."""
    at_ms: int
    event: Event | None
    """None if the event was too large to be kept."""
    dealt: bool = True
    """Whether the process that made the change knew the group's allocator. If not, another process
    dealt the shards later."""


def kept(after: Group, event: Event, at_ms: int, value: bytes) -> dict[bytes, bytes]:
    """What is stored beside the group's new value: the entry, and the snapshot if one is due."""
    dealt = after.allocator.deal is not None
    entry = Entry(after.version, at_ms, event, dealt)
    puts = {store_keys.journal_key(after.name, after.version % ENTRIES_KEPT): encoded(entry)}
    if after.version % SNAPSHOT_EVERY == 0:
        slot = after.version // SNAPSHOT_EVERY % SNAPSHOTS_KEPT
        puts[store_keys.snapshot_key(after.name, slot)] = value
    return puts


def encoded(entry: Entry) -> bytes:
    """The entry as bytes, without its event if that is too large."""
    kind, body = 0, b""
    if entry.event is not None:
        try:
            body = _body(entry.event)
            kind = _KINDS.index(type(entry.event)) + 1
        except (struct.error, ValueError):  # numbers or texts that no group accepts
            body = b""
        if len(body) > EVENT_BYTES_MAX:
            kind, body = 0, b""
    head = (VERSION, kind, entry.dealt, entry.version, entry.at_ms)
    data = _HEAD.pack(*head) + zlib.compress(body, 1)
    if len(data) > ENTRY_BYTES_MAX:
        return encoded(entry._replace(event=None))
    return data


def decoded(data: bytes, allocator: Resolver) -> Entry:
    """The entry, with allocators that ``allocator`` finds by name and version. Raises `NewerFormat`
    or `BadStored`."""
    if data and data[0] > VERSION:
        raise NewerFormat(
            f"a journal entry was written by a newer Headrace (version {data[0]}, this one reads "
            f"up to {VERSION}); update this one"
        )
    try:
        return _decoded(data, allocator)
    except (struct.error, zlib.error, IndexError, ValueError) as error:
        raise BadStored(f"damaged journal entry: {error}") from error


def whole(name: str, snapshots: Iterable[Group], entries: Sequence[Entry]) -> Group | None:
    """The earliest snapshot from which every event up to the last one is kept; the group before its
    first change counts as a snapshot too."""
    kept_versions = {entry.version for entry in entries if entry.event is not None}
    first = max((entry.version for entry in entries), default=0)
    while first in kept_versions:
        first -= 1
    begun = [group for group in (Group(name), *snapshots) if group.version >= first]
    return min(begun, key=lambda group: group.version, default=None)


def replayed(
    begin: Group, entries: Iterable[Entry], allocator: Resolver
) -> Iterator[tuple[Entry, Group, Group]]:
    """Each entry with the group before and after it. Ends at an event that was not kept, and where
    `step` does not lead to the stored version, because the allocator is unknown or has changed."""
    group = begin
    for entry in sorted(entries, key=lambda entry: entry.version):
        if entry.version <= begin.version:
            continue
        event = entry.event
        if event is None or entry.version != group.version + 1:
            return
        find = allocator if entry.dealt else Allocator
        before = _dealt_by(group, find)
        after, _ = step(before, _event_dealt_by(event, find))
        unknown = entry.dealt and after.members and after.allocator.deal is None
        if after.version != entry.version or unknown:
            return
        yield entry, before, after
        group = after


def _dealt_by(group: Group, find: Resolver) -> Group:
    return replace(group, allocator=find(group.allocator.name, group.allocator.version))


def _event_dealt_by(event: Event, find: Resolver) -> Event:
    if isinstance(event, Join | Configure) and event.allocator is not None:
        return replace(event, allocator=find(event.allocator.name, event.allocator.version))
    return event


# An event as bytes, and back: one case per kind


def _body(event: Event) -> bytes:
    match event:
        case Join():
            head = _JOIN.pack(event.incarnation, event.capacity, event.order, event.timeout_s)
            streams = b"".join(map(_stream, event.streams))
            count = _COUNT.pack(len(event.streams))
            return text_field(event.member) + head + _allocator(event.allocator) + count + streams
        case Heartbeat():
            beat = _BEAT.pack(event.incarnation, event.beat, event.seen)
            return text_field(event.member) + beat + _epochs(event.held)
        case Release():
            return _member(event.member, event.incarnation) + _epochs(event.shards)
        case Leave():
            return _member(event.member, event.incarnation)
        case Evict():
            gone = (event.incarnation, _PROOFS.index(event.proof), event.silent_s)
            return text_field(event.member) + _EVICT.pack(*gone)
        case ShardsChanged():
            return _stream(event.stream)
        case Fence() | Stop() | Resume():
            return _shard(event.shard) + _EPOCH.pack(event.epoch)
        case ForceCheckpoint():
            head = _FORCE.pack(event.epoch, event.next, event.finished)
            parents = b"".join(map(_NUMBER.pack, event.parents))
            return _shard(event.shard) + head + _COUNT.pack(len(event.parents)) + parents
        case Configure():
            head = _CONFIGURE.pack(
                event.configured,
                _ORDERS.index(event.order),
                event.timeout_s is not None,
                event.timeout_s or 0.0,
                event.allocator is not None,
            )
            return head + (b"" if event.allocator is None else _allocator(event.allocator))
        case Delete():
            return _EPOCH.pack(event.born)
        case _:
            return _EPOCH.pack(event.version)


def _decoded(data: bytes, allocator: Resolver) -> Entry:
    head, kind, dealt, version, at_ms = _HEAD.unpack_from(data)
    if head != VERSION:
        raise ValueError(f"version {head}")
    if dealt > 1:
        raise ValueError(f"bad flag {dealt}")
    unpacker = zlib.decompressobj()
    body = unpacker.decompress(data[_HEAD.size :], EVENT_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("cut short, too large, or followed by more")
    fields = Fields(body)
    event = None if kind == 0 else _event(_KINDS[kind - 1], fields, allocator)
    fields.end()
    return Entry(version, at_ms, event, bool(dealt))


def _event(kind: type[Event], fields: Fields, allocator: Resolver) -> Event:
    if kind is Join:
        member = fields.text()
        incarnation, capacity, order, timeout_s = fields.take(_JOIN)
        dealer = _taken_allocator(fields, allocator)
        streams = tuple(_taken_stream(fields) for _ in range(fields.count()))
        return Join(member, incarnation, streams, dealer, capacity, bool(order), timeout_s)
    if kind is Heartbeat:
        member = fields.text()
        incarnation, beat, seen = fields.take(_BEAT)
        return Heartbeat(member, incarnation, beat, seen, _taken_epochs(fields))
    if kind is Release:
        member = fields.text()
        (incarnation,) = fields.take(_MEMBER)
        return Release(member, incarnation, _taken_epochs(fields))
    if kind is Leave:
        return Leave(fields.text(), *fields.take(_MEMBER))
    if kind is Evict:
        member = fields.text()
        incarnation, proof, silent_s = fields.take(_EVICT)
        return Evict(member, incarnation, _PROOFS[proof], silent_s)
    if kind is ShardsChanged:
        return ShardsChanged(_taken_stream(fields))
    if kind is ForceCheckpoint:
        shard = _taken_shard(fields)
        epoch, next_offset, finished = fields.take(_FORCE)
        parents = tuple(index for (index,) in fields.rows(_NUMBER, fields.count()))
        return ForceCheckpoint(shard, epoch, next_offset, bool(finished), parents)
    if kind is Configure:
        configured, order, has_timeout, timeout_s, has_allocator = fields.take(_CONFIGURE)
        return Configure(
            configured,
            _ORDERS[order],
            timeout_s if has_timeout else None,
            _taken_allocator(fields, allocator) if has_allocator else None,
        )
    if kind is Delete:
        return Delete(*fields.take(_EPOCH))
    if kind is Swept:
        return Swept(*fields.take(_EPOCH))
    of_shard: Mapping[type[Event], type[Fence | Stop | Resume]] = {
        Fence: Fence,
        Stop: Stop,
        Resume: Resume,
    }
    return of_shard[kind](_taken_shard(fields), *fields.take(_EPOCH))


# Parts of events


def _member(name: str, incarnation: int) -> bytes:
    return text_field(name) + _MEMBER.pack(incarnation)


def _allocator(allocator: Allocator) -> bytes:
    return text_field(allocator.name) + text_field(allocator.version)


def _taken_allocator(fields: Fields, allocator: Resolver) -> Allocator:
    return allocator(fields.text(), fields.text())


def _shard(shard: ShardId) -> bytes:
    return text_field(shard.stream) + _NUMBER.pack(shard.index)


def _taken_shard(fields: Fields) -> ShardId:
    return ShardId(fields.text(), fields.number())


def _epochs(epochs: Mapping[ShardId, int]) -> bytes:
    by_stream: dict[str, list[bytes]] = {}
    for (stream, index), epoch in epochs.items():
        by_stream.setdefault(stream, []).append(_OWNED.pack(index, epoch))
    out = [_COUNT.pack(len(by_stream))]
    for stream, rows in by_stream.items():
        out += [text_field(stream), _NUMBER.pack(len(rows)), *rows]
    return b"".join(out)


def _taken_epochs(fields: Fields) -> dict[ShardId, int]:
    epochs = {}
    for _ in range(fields.count()):
        stream = fields.text()
        for index, epoch in fields.rows(_OWNED, fields.number()):
            epochs[ShardId(stream, index)] = epoch
    return epochs


def _stream(facts: StreamFacts) -> bytes:
    parents = [(row, p) for row, fact in enumerate(facts.shards) for p in fact.parents]
    return b"".join(
        [
            text_field(facts.stream),
            _STREAM.pack(facts.id, facts.seen, len(facts.shards)),
            *(
                _FACT.pack(fact.index, fact.finished_at is not None, fact.finished_at or 0)
                for fact in facts.shards
            ),
            _NUMBER.pack(len(parents)),
            *(_PARENT.pack(*pair) for pair in parents),
        ]
    )


def _taken_stream(fields: Fields) -> StreamFacts:
    stream = fields.text()
    stream_id, seen, count = fields.take(_STREAM)
    rows = fields.rows(_FACT, count)
    parents: list[tuple[int, ...]] = [()] * count
    for row, parent in fields.rows(_PARENT, fields.number()):
        parents[row] = (*parents[row], parent)
    shards = tuple(
        ShardFacts(index, parents[row], epoch if finished else None)
        for row, (index, finished, epoch) in enumerate(rows)
    )
    return StreamFacts(stream, stream_id, shards, seen)
