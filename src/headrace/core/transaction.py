"""What append, transact and commit do inside one transaction, the same for every backend with
transactions.

Several calls may share a transaction. So each function checks first and writes last: a refused call
leaves no trace.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.core import store_keys
from headrace.core.errors import BadSetting, BadStored, Fenced, SequenceForgotten
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import StreamInfo
from headrace.core.ports import ABSENT, NOTHING_BEFORE, Commit, Place, Producer, Versioned
from headrace.core.records.limits import check_commit_bytes

PRODUCER_SEQS_REMEMBERED = 64
"""How many of the last appends of a producer to a stream can be repeated safely."""

STORIES_KEPT = 1024
"""How many stories of commits are kept per group and shard."""

VALUE_BYTES_MAX = 1024 * 1024

_REMEMBERED = struct.Struct(">QI")
_PLACE = struct.Struct(">IQ")
_OUTPUT = struct.Struct(">IIQI")


class Part(NamedTuple):
    """A batch for one shard, in the form that its backend stores."""

    stream: StreamInfo
    shard: int
    records: int
    content: Any


class OutputRange(NamedTuple):
    """Where one part of a commit's outputs went: ``start <= offset < end``."""

    stream_id: int
    shard: int
    start: int
    end: int


class Transaction(Protocol):
    """One write transaction of a backend."""

    def get(self, key: bytes) -> Versioned | None: ...
    def put(self, key: bytes, value: bytes | None) -> None: ...
    def end(self, stream: StreamInfo, shard: int) -> int:
        """The offset of the next record. Raises `ShardClosed`, or `UnknownStream` for a deleted
        stream."""

    def add(self, part: Part, base: int) -> None: ...


def append(tx: Transaction, parts: Sequence[Part], producer: Producer | None) -> list[Place]:
    seen = _seen(tx, parts, producer) if producer is not None else None
    if isinstance(seen, list):
        return seen
    places = _places(tx, parts)
    _add(tx, parts, places)
    if producer is not None:
        assert seen is not None
        key = store_keys.producer_key(parts[0].stream.id, producer.name)
        tx.put(key, remembering(seen.kept, producer.seq, places))
    return places


def transact(
    tx: Transaction, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]
) -> bool:
    for key, version in checks.items():
        found = tx.get(key)
        if (ABSENT if found is None else found.version) != version:
            return False
    for key, value in puts.items():
        tx.put(key, value)
    return True


def check_puts(checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> None:
    """Refuse keys and values out of bounds before any lock is taken."""
    for key in (*checks, *puts):
        if not isinstance(key, bytes) or not 0 < len(key) <= store_keys.KEY_BYTES_MAX:
            raise BadSetting(f"a store key of {_shown(key)}: 1 to {store_keys.KEY_BYTES_MAX} bytes")
    for value in puts.values():
        _check_value(value)


def commit(tx: Transaction, commit: Commit, parts: Sequence[Part]) -> list[Place]:
    """Store a commit. ``parts`` are the outputs of the commit, then its dead letters, in order."""
    state, attempts, story = commit.state, commit.attempts, commit.story
    values = (*state, *state.values(), attempts, story)
    for value in values:
        _check_value(value)
    check_commit_bytes(sum(len(value or b"") for value in values))
    grant, done = commit.grant, commit.done
    group, stream_id, shard = grant.group, grant.stream.id, grant.shard
    epoch = tx.get(store_keys.epoch_key(group, stream_id, shard))
    checkpoint_key = store_keys.checkpoint_key(group, stream_id, shard)
    stored = tx.get(checkpoint_key)
    before = Checkpoint.decoded(stored.value) if stored else Checkpoint()
    after = before.advanced(done)
    # A slice before the checkpoint was committed already: by a zombie, or by this member in a
    # commit whose answer was lost.
    if epoch is None or epoch.value != grant.token or after is None:
        raise Fenced(group, done.stream, shard)
    places = _places(tx, parts)
    _add(tx, parts, places)
    tx.put(checkpoint_key, after.encoded())
    for name, value in state.items():
        row = None if value is None else len(name).to_bytes(4, "big") + name + value
        tx.put(store_keys.state_key(group, stream_id, shard, name), row)
    if attempts is not None:
        tx.put(store_keys.attempts_key(group, stream_id, shard), attempts or None)
    # A commit without a story clears its slot too. So the slots of the kept stories tell their
    # order, and a reader who walks back in time knows when to stop.
    if story or before.commits >= STORIES_KEPT:
        slot = before.commits % STORIES_KEPT
        row = _story_row(parts, places, story) if story else None
        tx.put(store_keys.story_key(group, stream_id, shard, slot), row)
    return places[: len(commit.outputs)]


def state_entry(row: bytes) -> tuple[bytes, bytes]:
    """The name and the value of a stored entry of state."""
    split = 4 + int.from_bytes(row[:4], "big")
    return row[4:split], row[split:]


def story_entry(row: bytes) -> tuple[tuple[OutputRange, ...], bytes]:
    """A stored story as where the outputs and then the dead letters went, and what was committed
    as the story."""
    split = 4 + int.from_bytes(row[:4], "big") * _OUTPUT.size
    if len(row) < split:
        raise BadStored(f"a story of {len(row)} bytes that should have {split} and more")
    outputs = tuple(
        OutputRange(stream_id, shard, base, base + records)
        for stream_id, shard, base, records in _OUTPUT.iter_unpack(row[4:split])
    )
    return outputs, row[split:]


def _story_row(parts: Sequence[Part], places: Sequence[Place], story: bytes) -> bytes:
    told = b"".join(
        _OUTPUT.pack(part.stream.id, place.shard, place.base, part.records)
        for part, place in zip(parts, places, strict=True)
    )
    return len(parts).to_bytes(4, "big") + told + story


def _check_value(value: object) -> None:
    if value is not None and not (isinstance(value, bytes) and len(value) <= VALUE_BYTES_MAX):
        raise BadSetting(f"a stored value of {_shown(value)}: at most {VALUE_BYTES_MAX} bytes")


def _shown(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else type(value).__name__


class _Unseen(NamedTuple):
    kept: bytes


def _seen(tx: Transaction, parts: Sequence[Part], producer: Producer) -> list[Place] | _Unseen:
    stream, shard = parts[0].stream, parts[0].shard
    found = tx.get(store_keys.producer_key(stream.id, producer.name))
    kept = found.value if found else b""
    last, first_time = NOTHING_BEFORE, None
    for last, places in _remembered(kept):
        if last == producer.seq:
            first_time = places
    if producer.after is not None and producer.after != last:
        raise Fenced(producer.name, stream.name, shard)
    if first_time is not None:
        return [Place(*place) for place in _PLACE.iter_unpack(first_time)]
    if producer.seq < last:
        raise SequenceForgotten(producer.name, producer.seq, last, PRODUCER_SEQS_REMEMBERED)
    return _Unseen(kept)


def last_seq(kept: bytes) -> int:
    """The number of the last append of a producer, from its stored value."""
    return max((seq for seq, _ in _remembered(kept)), default=NOTHING_BEFORE)


def remembering(kept: bytes, seq: int, places: Sequence[Place] = ()) -> bytes:
    """The stored value of a producer after one more append."""
    rows = [
        _REMEMBERED.pack(old, len(found) // _PLACE.size) + found for old, found in _remembered(kept)
    ]
    own = (_PLACE.pack(place.shard, place.base) for place in places)
    rows = rows[-(PRODUCER_SEQS_REMEMBERED - 1) :]
    return b"".join([*rows, _REMEMBERED.pack(seq, len(places)), *own])


def _remembered(kept: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(kept):
        seq, count = _REMEMBERED.unpack_from(kept, at)
        at += _REMEMBERED.size
        places = kept[at : at + count * _PLACE.size]
        at += len(places)
        yield seq, places


def _places(tx: Transaction, parts: Sequence[Part]) -> list[Place]:
    """The place that each part will get."""
    ends: dict[tuple[int, int], int] = {}
    places = []
    for part in parts:
        shard = part.stream.id, part.shard
        base = ends[shard] if shard in ends else tx.end(part.stream, part.shard)
        places.append(Place(part.shard, base))
        ends[shard] = base + part.records
    return places


def _add(tx: Transaction, parts: Sequence[Part], places: Sequence[Place]) -> None:
    for part, place in zip(parts, places, strict=True):
        tx.add(part, place.base)
