"""What is in a stream when all is over: for each record where it is, where it comes from, and a
digest of what it says."""

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
    """None: it was made from no record."""
    content: bytes
    """A digest of key and data."""


Log = Mapping[int, list[Found]]
"""What a stream holds, by shard, in order; it begins with offset 0."""


def log_of(stream: Stream, *, letters: bool = False) -> Log:
    """What is in it; for a stream of dead letters the origin is the record that was given up."""
    found = _letter if letters else _output
    shards = [shard.index for shard in stream.info.shards]
    return {shard: [found(record) for record in stream.read(shard)] for shard in shards}


def origins_of(stream: Stream, shard: int) -> Log:
    """Where the records of one shard come from, whatever they say."""
    return {shard: [Found(_told(record, ORIGIN), b"") for record in stream.read(shard)]}


def size(log: Log) -> int:
    return sum(map(len, log.values()))


def everything(logs: Iterable[Log]) -> list[Found]:
    return [found for log in logs for shard in log.values() for found in shard]


def _output(record: Record) -> Found:
    return Found(_told(record, ORIGIN), _digest(record))


def _letter(record: Record) -> Found:
    told = _told(record, LETTER_ORIGIN)
    return Found(None if told is None else f"{told}/0", _digest(record))


def _told(record: Record, header: str) -> str | None:
    told = [value for name, value in record.headers if name == header and value is not None]
    return told[-1].decode() if told else None


def _digest(record: Record) -> bytes:
    key, data = record.key_bytes, record.data
    size = b"none" if key is None else len(key).to_bytes(4, "big")
    there = b"\0" if data is None else b"\1"
    whole = size + (key or b"") + there + (data or b"")
    return blake2b(whole, digest_size=16).digest()
