"""Mutated input for every decoder: it raises only our errors, and does not crash or hang.

Stored bytes get a right checksum after the mutation, so that the code behind the check is reached
too. Each decoder runs in a process of its own with little memory, which may die.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.codec.registry import find_codec
from headrace.core.errors import HeadraceError
from headrace.core.groups import group_bytes, journal
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.events import (
    Configure,
    Event,
    Evict,
    ForceCheckpoint,
    Heartbeat,
    Join,
    Leave,
    ShardFacts,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Group
from headrace.core.groups.machine import step
from headrace.core.model import RecordId, ShardId, StreamInfo, even_shards
from headrace.core.names import checked_name, from_one_word
from headrace.core.quantities import go_duration_ns, seconds, size_bytes
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.to_arrow import arrow_of
from headrace.testing.children import dice
from tests.harness.children import harness_child

MEMORY_BYTES = 3 * 2**30
SLOW_S = 2.0

_STORE = b"0123456789abcdef"
_KEY = batches.key_of(3, 1, 120)
_ROW_KEY = b"V" + b"key"
_STREAM = StreamInfo(
    name="faults/fuzz",
    id=3,
    codec="bytes",
    routing="md5-range",
    retention_s=None,
    retention_bytes=None,
    created_ms=0,
    shards=even_shards(2),
)
_INTERESTING = (b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xff" * 8)


class Decoder(NamedTuple):
    whole: list[bytes]
    """Valid inputs, from which mutants are made."""
    decode: Callable[[bytes], object]


class Fuzzed(NamedTuple):
    accepted: int
    refused: int
    slowest_s: float
    wrong: list[str]


def _stored(count: int) -> bytes:
    listed = [
        Row(b"k%d" % i, None if i % 9 == 8 else b"d" * i, 1_000 + i, i, 1, [("h", b"v")], b"t")
        for i in range(count)
    ]
    batch = Batch.of_rows(listed) if count <= batches.ROWS_MAX else Batch.of_arrow(arrow_of(listed))
    return bytes(batches.sealed(batches.encode(batch), _STORE, _KEY, 120 - count))


def _decoded_batch(value: bytes) -> object:
    if len(value) >= batches.HEADER.size:
        head, payload = value[: batches.HEADER.size - 4], value[batches.HEADER.size :]
        # The length is set right too: else nearly every mutant would fail there.
        head = head[:44] + len(payload).to_bytes(4, "little") + head[48:]
        crc = zlib.crc32(_KEY, zlib.crc32(head, zlib.crc32(payload)))
        value = head + crc.to_bytes(4, "little") + payload
    batch = batches.decode(_STREAM, _STORE, _KEY, value)
    batch.arrow.validate(full=True)
    return [record.headers for record in batch.records()], batch.rows


def _decoded_row(kind: type[Any]) -> Callable[[bytes], object]:
    def decode(value: bytes) -> object:
        return stored_value.unpacked(_ROW_KEY, stored_value.sealed(_ROW_KEY, value, 1), kind)

    return decode


def _text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda value: decode(value.decode("utf-8", "surrogateescape"))


def _codec(name: str) -> Callable[[bytes], object]:
    return find_codec(name).decode


def _group() -> bytes:
    orders = StreamFacts("a/b", 1, (ShardFacts(0), ShardFacts(1), ShardFacts(2, (0, 1))))
    group = Group("billing")
    for event in (
        Join("ann", 7, (orders,), balanced, order=True),
        Join("bob", 8, (orders,), balanced),
        Stop(ShardId("a/b", 0), 1),
        Leave("bob", 8),
    ):
        group, _ = step(group, event)
    return group_bytes.encoded(group)


_ORDERS = StreamFacts("a/b", 1, (ShardFacts(0), ShardFacts(1, (0,), 7), ShardFacts(2, (0, 1))))
_ENTRY_HEAD = 19


def _entries() -> list[bytes]:
    """Entries of the journal: each is its head and its unpacked content."""
    events: list[Event] = [
        Join("ann", 7, (_ORDERS,), balanced, order=True),
        Heartbeat("bob", 8, 1, 2, {ShardId("a/b", 0): 3, ShardId("c", 1): 4}),
        Evict("bob", 8, "silent", 10.5),
        ForceCheckpoint(ShardId("a/b", 1), 3, 9, finished=True, parents=(0, 1)),
        Configure(1, True, 5.0, balanced),
    ]
    rows = [journal.encoded(journal.Entry(3, 1_000, event)) for event in events]
    return [row[:_ENTRY_HEAD] + zlib.decompress(row[_ENTRY_HEAD:]) for row in rows]


def _decoded_entry(value: bytes) -> object:
    packed = value[:_ENTRY_HEAD] + zlib.compress(value[_ENTRY_HEAD:])
    return journal.decoded(packed, Allocator)


_SHARD_ROW = stored_value.StoredShard(5, True, bytes(17), b"\1" + bytes(16), (1, 2))
_STREAM_ROW = stored_value.StoredStream("a/b", "json", "md5-range", 5.0, None, 9)

DECODERS: dict[str, Decoder] = {
    "stored batch of rows": Decoder([_stored(1), _stored(7)], _decoded_batch),
    "stored batch of Arrow": Decoder([_stored(20), _stored(100)], _decoded_batch),
    "stored stream": Decoder(
        [stored_value.packed(_STREAM_ROW)], _decoded_row(stored_value.StoredStream)
    ),
    "stored shard": Decoder(
        [stored_value.packed(_SHARD_ROW)], _decoded_row(stored_value.StoredShard)
    ),
    "small row": Decoder(
        [stored_value.sealed(_ROW_KEY, b"value", 7)],
        lambda value: stored_value.opened(_ROW_KEY, value),
    ),
    "group": Decoder([_group()], lambda value: group_bytes.decoded(value, Allocator)),
    "journal entry": Decoder(_entries(), _decoded_entry),
    "packed journal entry": Decoder(
        [journal.encoded(journal.Entry(3, 1_000, Stop(ShardId("a/b", 0), 1)))],
        lambda value: journal.decoded(value, Allocator),
    ),
    "record id": Decoder([b"shop/orders:2+17", b"a:0+0"], _text(RecordId.parse)),
    "name": Decoder([b"shop/orders", b"a.b_c-d"], _text(checked_name)),
    "one word": Decoder([b"shop--orders", b"plain"], _text(from_one_word)),
    "duration": Decoder([b"1h30m5.25s", b"7d", b"200ms", "3µs".encode()], _text(seconds)),
    "Go duration": Decoder([b"-1h30m5.25s", b"1.5h", b"200ms"], _text(go_duration_ns)),
    "size": Decoder([b"16MiB", b"1.5GB", b"4k", b"123"], _text(size_bytes)),
    "json": Decoder([b'{"a": [1, 2.5e3, "x\\u00e9", null, true]}', b"[[[]]]"], _codec("json")),
    "text": Decoder(["héllo wörld €".encode()], _codec("text")),
}


def mutated(whole: bytes, random: random.Random) -> bytes:
    value = bytearray(whole)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        at = random.randrange(len(value) + 1)
        span = random.choice((1, 2, 4, 8, random.randrange(1, 64)))
        match random.randrange(7):
            case 0 if value:
                value[at % len(value)] ^= 1 << random.randrange(8)
            case 1 if value:
                value[at % len(value)] = random.randrange(256)
            case 2:
                del value[at : at + span]
            case 3:
                value[at:at] = random.randbytes(span)
            case 4:
                value[at:at] = value[at : at + span] * random.choice((1, 2, 50))
            case 5:
                some = random.choice(_INTERESTING)
                value[at : at + len(some)] = some
            case _:
                del value[at:]
    return bytes(value)


def fuzz(name: str, mutants: int) -> Fuzzed:
    """Run one decoder on mutants in a process of its own."""
    with harness_child(__name__, name, str(mutants)) as child:
        return Fuzzed(*json.loads(child.output(within_s=240)))


def _run(name: str, mutants: int) -> Fuzzed:
    decoder = DECODERS[name]
    for whole in decoder.whole:
        decoder.decode(whole)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    random = dice(f"fuzz {name}")
    accepted = refused = 0
    slowest_s = 0.0
    wrong: list[str] = []
    for _ in range(mutants):
        value = mutated(random.choice(decoder.whole), random)
        began = time.monotonic()
        try:
            decoder.decode(value)
            accepted += 1
        except HeadraceError:
            refused += 1
        except BaseException as why:  # every other error is a finding
            wrong.append(f"{type(why).__name__}: {why} for {value[:200].hex()}")
        took_s = time.monotonic() - began
        if took_s > SLOW_S:
            wrong.append(f"{took_s:.1f} s for {value[:200].hex()}")
        slowest_s = max(slowest_s, took_s)
    return Fuzzed(accepted, refused, slowest_s, wrong)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_run(sys.argv[1], int(sys.argv[2]))))
