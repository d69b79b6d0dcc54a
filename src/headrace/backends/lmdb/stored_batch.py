"""A stored batch: a header of 68 bytes, then the records. docs/format.md has the layout.

The checksum covers the records, the header and the key of the batch. So a damaged page can never
serve the batch of another shard, stream or store.
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa

from headrace.core.errors import BadBatch
from headrace.core.model import StreamInfo
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.row import FLAGS_MAX, SEQUENCE_MAX, Row
from headrace.core.records.schema import placed, placed_schema

MAGIC = b"HdRc"
BATCH_FORMAT = 1
KIND_ROWS = 1
KIND_ARROW = 2
KIND_REFERENCE = 3
"""Reserved for a batch that lies in a file of its own."""

ROWS_MAX = 16
"""Up to how many records are stored as rows. An Arrow batch of one record costs 900 bytes."""

_KEY = struct.Struct(">cIIQ")
_TABLE = b"R"

HEADER = struct.Struct("<4sBBH16sIIQIIqqI")


_StoredRow = tuple[
    bytes | None,
    bytes | None,
    Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)],
    Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)],
    Annotated[int, msgspec.Meta(ge=0, le=FLAGS_MAX)],
    list[tuple[str, bytes | None]],
    bytes | None,
]
_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[_StoredRow]).decode


def key_of(stream: int, shard: int, end: int) -> bytes:
    """The key of a batch. It ends with the last offset + 1, so that one range seek finds the batch
    of any offset."""
    return _KEY.pack(_TABLE, stream, shard, end)


def place_of(key: bytes) -> tuple[int, int, int]:
    """The stream id, the shard, and the last offset + 1."""
    _, stream, shard, end = _KEY.unpack(key)
    return stream, shard, end


def shard_prefix(stream: int, shard: int) -> bytes:
    """The prefix of the keys of a shard's batches, and of no other keys."""
    return key_of(stream, shard, 0)[:-8]


def stream_prefix(stream: int) -> bytes:
    return key_of(stream, 0, 0)[:-12]


class Encoded(NamedTuple):
    """A batch that is ready to be stored at the end of its shard, wherever that is."""

    kind: int
    records: int
    earliest_ms: int
    latest_ms: int
    value: memoryview
    """Space for the header, then the payload."""
    crc: int
    """The checksum of the payload: only that of the header remains for the time of the write
    lock."""


class Header(NamedTuple):
    magic: bytes
    version: int
    kind: int
    flags: int
    """Always 0: no flag is known yet."""
    store: bytes
    stream: int
    shard: int
    base: int
    records: int
    length: int
    earliest_ms: int
    latest_ms: int
    crc: int

    @property
    def end(self) -> int:
        return self.base + self.records

    @property
    def offsets(self) -> range:
        return range(self.base, self.end)


def encode(batch: Batch) -> Encoded:
    if len(batch) <= ROWS_MAX:
        return _encoded(batch, KIND_ROWS, _encode_rows(batch.rows))
    return _encoded(batch, KIND_ARROW, batch.columns.serialize())


def _encoded(batch: Batch, kind: int, payload: bytes | pa.Buffer) -> Encoded:
    if isinstance(payload, bytes):
        value = memoryview(bytearray(HEADER.size) + payload)
    else:
        # In memory of Arrow's pool. Fresh pages for each batch would cost more than the copy.
        value = memoryview(pa.allocate_buffer(HEADER.size + len(payload))).cast("B")
        value[HEADER.size :] = memoryview(payload).cast("B")
    return Encoded(kind, len(batch), *batch.times_ms, value, zlib.crc32(payload))


def sealed(encoded: Encoded, store: bytes, key: bytes, base: int) -> memoryview:
    """The value to store under the key. Its header is written in place."""
    stream, shard, _ = place_of(key)
    head = HEADER.pack(
        MAGIC,
        BATCH_FORMAT,
        encoded.kind,
        0,
        store,
        stream,
        shard,
        base,
        encoded.records,
        len(encoded.value) - HEADER.size,
        encoded.earliest_ms,
        encoded.latest_ms,
        0,
    )[:-4]
    crc = zlib.crc32(key, zlib.crc32(head, encoded.crc))
    encoded.value[: HEADER.size] = head + crc.to_bytes(4, "little")
    return encoded.value


class Unreadable(Exception):
    """Why a stored value is not the batch that was written under its key."""


def header(store: bytes, key: bytes, value: bytes | memoryview) -> Header:
    """The header. All that is cheap is checked: not the checksum."""
    if len(value) < HEADER.size:
        raise Unreadable(f"only {len(value)} bytes")
    head = Header._make(HEADER.unpack_from(value))
    magic, version, kind, flags, *place, base, records, length, _, _, _ = head
    if magic != MAGIC:
        raise Unreadable("it does not begin like a batch")
    if version != BATCH_FORMAT or kind not in (KIND_ROWS, KIND_ARROW) or flags:
        raise Unreadable(f"unknown format {version}, kind {kind}, flags {flags:#x}")
    stream, shard, end = place_of(key)
    if place != [store, stream, shard] or base + records != end:
        raise Unreadable("it belongs elsewhere")
    if length != len(value) - HEADER.size or not records:
        raise Unreadable("its length is wrong")
    return head


class Verified(NamedTuple):
    """A stored batch whose checksum is right. Its records have not been looked at."""

    head: Header
    payload: memoryview


def decode(stream: StreamInfo, store: bytes, key: bytes, value: bytes | memoryview) -> Batch:
    """The batch stored under the key, or `BadBatch`. It is verified before its records are looked
    at."""
    return opened(stream, verified(stream, store, key, value))


def verified(stream: StreamInfo, store: bytes, key: bytes, value: bytes | memoryview) -> Verified:
    try:
        head = header(store, key, value)
        payload = memoryview(value)[HEADER.size :]
        crc = zlib.crc32(key, zlib.crc32(value[: HEADER.size - 4], zlib.crc32(payload)))
        if crc != head.crc:
            raise Unreadable("its checksum is wrong")
    except Unreadable as why:
        _, shard, end = place_of(key)
        raise BadBatch(stream.name, shard, _likely_base(value, end), end, str(why)) from None
    return Verified(head, payload)


def opened(stream: StreamInfo, stored: Verified) -> Batch:
    head, payload = stored
    try:
        if head.kind == KIND_ROWS:
            return Batch.of_rows(
                _opened_rows(head, payload),
                stream=stream.name,
                shard=head.shard,
                offsets=head.offsets,
                nbytes=head.length,
            )
        return Batch.of_arrow(
            placed(_opened_arrow(head, payload, stream.name), head.offsets),
            stream=stream.name,
            shard=head.shard,
            offsets=head.offsets,
            nbytes=head.length,
        )
    except Unreadable as why:
        raise BadBatch(stream.name, head.shard, head.base, head.end, str(why)) from None


def _opened_rows(head: Header, payload: memoryview) -> list[Row]:
    try:
        rows = list(map(Row._make, _decode_rows(payload)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise Unreadable(f"its rows cannot be decoded ({why})") from None
    if len(rows) != head.records:
        raise Unreadable(f"{len(rows)} records where {head.records} should be")
    return rows


def _opened_arrow(head: Header, payload: memoryview, stream: str) -> pa.RecordBatch:
    try:
        arrow = pa.ipc.read_record_batch(pa.py_buffer(payload), placed_schema(stream, head.shard))
        if arrow.num_rows != head.records:
            raise Unreadable(f"{arrow.num_rows} records where {head.records} should be")
        arrow.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError, MemoryError) as why:
        raise Unreadable(f"its columns cannot be decoded ({why})") from None
    return arrow


def _likely_base(value: bytes | memoryview, end: int) -> int:
    """The likely first offset, for the message only: the header itself may be damaged."""
    if len(value) >= HEADER.size:
        head = Header._make(HEADER.unpack_from(value))
        if head.end == end:
            return head.base
    return end - 1
