"""Small rows of the tables beside the records: streams, shards, values. Each carries its version
and a checksum."""

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

ROW_FORMAT = 1
_HEAD = struct.Struct("<BQI")

T = TypeVar("T")

ALL_STREAMS = b"S"
ALL_SHARDS = b"H"
STREAMS = b"Si"
DOOMED = b"Sd"
VALUES = b"V"
NEXT_ID_KEY = b"S+"


class StreamRow(msgspec.Struct, frozen=True, array_like=True):
    name: str
    codec: str
    routing: str
    retention_s: float | None
    retention_bytes: int | None
    created_ms: int

    @classmethod
    def of(cls, spec: StreamSpec) -> StreamRow:
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


class ShardRow(msgspec.Struct, frozen=True, array_like=True):
    start: int
    """The first kept offset."""
    open: bool
    begin: bytes
    end: bytes
    parents: tuple[int, ...]

    @classmethod
    def of(cls, shard: Shard, start: int = 0) -> ShardRow:
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
    """A stream that is deleted, and whose records are still being dropped."""
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


def sealed_row(key: bytes, value: bytes, version: int) -> bytes:
    head = _HEAD.pack(ROW_FORMAT, version, 0)[:-4]
    crc = zlib.crc32(key, zlib.crc32(head, zlib.crc32(value)))
    return head + crc.to_bytes(4, "little") + value


def opened_row(key: bytes, row: bytes | memoryview) -> Versioned:
    if len(row) < _HEAD.size:
        raise BadStored(
            f"damaged row {bytes(key).hex()}: only {len(row)} bytes; restore the hub from a copy"
        )
    row_format, version, crc = _HEAD.unpack_from(row)
    value = bytes(row[_HEAD.size :])
    if crc != zlib.crc32(key, zlib.crc32(row[: _HEAD.size - 4], zlib.crc32(value))):
        raise BadStored(
            f"damaged row {bytes(key).hex()}: wrong checksum; restore the hub from a copy"
        )
    if row_format != ROW_FORMAT:
        raise NewerFormat(
            f"row {bytes(key).hex()} has format {row_format}, this Headrace knows {ROW_FORMAT}: "
            "upgrade it"
        )
    return Versioned(value, version)


def version_of(row: bytes | memoryview) -> int:
    """Unverified: good to tell that a row is another one than the one that was verified."""
    return int.from_bytes(row[1:9], "little")


def packed(value: msgspec.Struct | int) -> bytes:
    return msgspec.msgpack.encode(value)


def unpacked(key: bytes, row: bytes | memoryview, kind: type[T]) -> T:
    try:
        found: T = _decoders[kind].decode(opened_row(key, row).value)
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        raise BadStored(f"damaged row {bytes(key).hex()}: {why}") from None
    return found


_decoders: dict[type, Any] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (int, StreamRow, ShardRow)
}


@lru_cache(maxsize=4096)
def shard_row(key: bytes, row: bytes) -> ShardRow:
    """Looked at by every append and read, and hardly ever another."""
    return unpacked(key, row, ShardRow)


def ranged(cursor: Any, prefix: bytes) -> Any:
    """The cursor's keys and values that begin with the prefix, in order."""
    found = cursor.set_range(prefix)
    while found and bytes(cursor.key()[: len(prefix)]) == prefix:
        yield bytes(cursor.key()), cursor.value()
        found = cursor.next()
