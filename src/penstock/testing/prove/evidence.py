"""What is in a stream when all is over: for each record where it is, where it comes from, and a
digest of what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.core.model import Record
from penstock.run.letters import ORIGIN as LETTER_ORIGIN
from penstock.run.outputs import ORIGIN
from penstock.run.stream import Stream


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
    return {shard: [found(record) for record in stream.read(shard)] for shard in _shards(stream)}


def size(log: Log) -> int:
    return sum(map(len, log.values()))


def everything(logs: Iterable[Log]) -> list[Found]:
    return [found for log in logs for shard in log.values() for found in shard]


def _shards(stream: Stream) -> list[int]:
    return [shard.index for shard in stream.info.shards]


def _output(record: Record) -> Found:
    told = [value for name, value in record.headers if name == ORIGIN and value is not None]
    return Found(told[-1].decode() if told else None, _digest(record))


def _letter(record: Record) -> Found:
    told = [value for name, value in record.headers if name == LETTER_ORIGIN and value is not None]
    return Found(f"{told[-1].decode()}/0" if told else None, _digest(record))


def _digest(record: Record) -> bytes:
    key, data = record.key_bytes, record.data
    size = b"none" if key is None else len(key).to_bytes(4, "big")
    there = b"\0" if data is None else b"\1"
    whole = size + (key or b"") + there + (data or b"")
    return blake2b(whole, digest_size=16).digest()
