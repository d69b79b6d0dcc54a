"""The small values beside the records: streams, shards and the values of the store. Each is stored
with its version and a checksum."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from headrace.core.errors import BadStored, NewerFormat
from headrace.core.model import Shard, StreamInfo
from headrace.core.ports import StreamSpec, Versioned
from headrace.core.store_keys import digest

VALUE_FORMAT = 1
_HEAD = struct.Struct("<BQI")

T = TypeVar("T")

ALL_STREAMS = b"S"
ALL_SHARDS = b"H"
STREAMS = b"Si"
DOOMED = b"Sd"
VALUES = b"V"
NEXT_ID_KEY = b"S+"


class StoredStream(msgspec.Struct, frozen=True, array_like=True):
    name: str
    codec: str
    routing: str
    retention_s: float | None
    retention_bytes: int | None
    created_ms: int

    @classmethod
    def of(cls, spec: StreamSpec) -> StoredStream:
        return cls(
            spec.name,
            spec.codec,
            spec.routing,
            spec.retention_s,
            spec.retention_bytes,
            spec.created_ms,
        )

    def info(self, stream_id: int, shards: tuple[Shard, ...]) -> StreamInfo:
        return StreamInfo(
            name=self.name,
            id=stream_id,
            codec=self.codec,
            routing=self.routing,
            retention_s=self.retention_s,
            retention_bytes=self.retention_bytes,
            created_ms=self.created_ms,
            shards=shards,
        )


class StoredShard(msgspec.Struct, frozen=True, array_like=True):
    start: int
    """The first kept offset."""
    open: bool
    begin: bytes
    end: bytes
    parents: tuple[int, ...]

    @classmethod
    def of(cls, shard: Shard, start: int = 0) -> StoredShard:
        begin, end = shard.begin.to_bytes(17, "big"), shard.end.to_bytes(17, "big")
        return cls(start, shard.open, begin, end, shard.parents)

    def shard(self, index: int) -> Shard:
        begin, end = int.from_bytes(self.begin, "big"), int.from_bytes(self.end, "big")
        return Shard(index, begin, end, self.open, self.parents)


def id_key(stream_id: int) -> bytes:
    return STREAMS + stream_id.to_bytes(4, "big")


def name_key(name: str) -> bytes:
    return b"Sn" + digest(name)


def doomed_key(stream_id: int) -> bytes:
    """The key of a deleted stream whose records are still being dropped."""
    return DOOMED + stream_id.to_bytes(4, "big")


def id_of(key: bytes) -> int:
    """The stream id that an `id_key` or `doomed_key` ends with."""
    return int.from_bytes(key[-4:], "big")


def shard_key(stream_id: int, shard: int) -> bytes:
    return struct.pack(">cII", ALL_SHARDS, stream_id, shard)


def shard_of(key: bytes) -> int:
    return int.from_bytes(key[-4:], "big")


def shards_prefix(stream_id: int) -> bytes:
    return shard_key(stream_id, 0)[:-4]


def value_key(key: bytes) -> bytes:
    return VALUES + key


def sealed(key: bytes, value: bytes, version: int) -> bytes:
    head = _HEAD.pack(VALUE_FORMAT, version, 0)[:-4]
    crc = zlib.crc32(key, zlib.crc32(head, zlib.crc32(value)))
    return head + crc.to_bytes(4, "little") + value


def opened(key: bytes, stored: bytes | memoryview) -> Versioned:
    if len(stored) < _HEAD.size:
        raise BadStored(
            f"damaged value {bytes(key).hex()}: only {len(stored)} bytes; restore the hub from "
            "a copy"
        )
    value_format, version, crc = _HEAD.unpack_from(stored)
    value = bytes(stored[_HEAD.size :])
    if crc != zlib.crc32(key, zlib.crc32(stored[: _HEAD.size - 4], zlib.crc32(value))):
        raise BadStored(
            f"damaged value {bytes(key).hex()}: wrong checksum; restore the hub from a copy"
        )
    if value_format != VALUE_FORMAT:
        raise NewerFormat(
            f"the value {bytes(key).hex()} has format {value_format}, this Headrace knows "
            f"{VALUE_FORMAT}: upgrade it"
        )
    return Versioned(value, version)


def version_of(stored: bytes | memoryview) -> int:
    """The version, without a check of the value: enough to tell that the value has changed."""
    return int.from_bytes(stored[1:9], "little")


def packed(value: msgspec.Struct | int) -> bytes:
    return msgspec.msgpack.encode(value)


def unpacked(key: bytes, stored: bytes | memoryview, kind: type[T]) -> T:
    try:
        found: T = _decoders[kind].decode(opened(key, stored).value)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise BadStored(f"damaged value {bytes(key).hex()}: {why}") from None
    return found


_decoders: dict[type, Any] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (int, StoredStream, StoredShard)
}


@lru_cache(maxsize=4096)
def opened_shard(key: bytes, stored: bytes) -> StoredShard:
    """The shard of stored bytes. Every append and read asks for it, and it hardly ever changes."""
    return unpacked(key, stored, StoredShard)


def ranged(cursor: Any, prefix: bytes) -> Any:
    """The keys that begin with the prefix, in order, with their values."""
    found = cursor.set_range(prefix)
    while found and bytes(cursor.key()[: len(prefix)]) == prefix:
        yield bytes(cursor.key()), cursor.value()
        found = cursor.next()
