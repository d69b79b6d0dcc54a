"""The content of a stream when a proof is over: for each record its place, its origin, and a digest
of its key and data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from headrace.core.model import Record
from headrace.lanes.dead_letter import ORIGIN as LETTER_ORIGIN
from headrace.lanes.provenance import ORIGIN
from headrace.streams.stream import Stream


class Found(NamedTuple):
    origin: str | None
    """The header that tells what the record was made from; None if it was made from no record."""
    content: bytes
    """A digest of key and data."""


Log = Mapping[int, list[Found]]
"""The records of a stream by shard, in order from offset 0."""


def log_of(stream: Stream, *, letters: bool = False) -> Log:
    """The content of a stream. The origin of a dead letter is the record that was given up."""
    found = _letter if letters else _output
    shards = [shard.index for shard in stream.info.shards]
    return {shard: [found(record) for record in stream.read(shard)] for shard in shards}


def origins_of(stream: Stream, shard: int) -> Log:
    """The origins of the records of one shard, without digests."""
    return {shard: [Found(_header(record, ORIGIN), b"") for record in stream.read(shard)]}


def size(log: Log) -> int:
    return sum(map(len, log.values()))


def everything(logs: Iterable[Log]) -> list[Found]:
    return [found for log in logs for shard in log.values() for found in shard]


def _output(record: Record) -> Found:
    return Found(_header(record, ORIGIN), _digest(record))


def _letter(record: Record) -> Found:
    origin = _header(record, LETTER_ORIGIN)
    return Found(None if origin is None else f"{origin}/0", _digest(record))


def _header(record: Record, header: str) -> str | None:
    found = [value for name, value in record.headers if name == header and value is not None]
    return found[-1].decode() if found else None


def _digest(record: Record) -> bytes:
    key, data = record.key_bytes, record.data
    size = b"none" if key is None else len(key).to_bytes(4, "big")
    has_data = b"\0" if data is None else b"\1"
    whole = size + (key or b"") + has_data + (data or b"")
    return blake2b(whole, digest_size=16).digest()
