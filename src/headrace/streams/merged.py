"""Read several shards of a stream as one, by time. This is for people; work that must keep order
reads shard by shard."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from headrace.core.errors import Unreachable
from headrace.core.model import Record
from headrace.streams.stream import Stream

WAIT_S = 0.5


def merged(
    stream: Stream, starts: dict[int, int], ends: dict[int, int] | None = None
) -> Iterator[Record]:
    """The records of some shards from ``starts`` to ``ends``, merged by timestamp.

    Each shard keeps its own order. A shard without an end is read up to its end of now."""
    reads = [stream.read(shard, start, (ends or {}).get(shard)) for shard, start in starts.items()]
    return heapq.merge(*reads, key=lambda record: record.timestamp_ms)


def followed(stream: Stream, starts: dict[int, int]) -> Iterator[Record]:
    """The records of `merged`, and after them every new record, for ever."""
    at = dict(starts)
    while True:
        try:
            seen = stream.changes()
            ends = {shard: max(stream.bounds(shard).end, start) for shard, start in at.items()}
            nothing_new = at == ends
            for record in merged(stream, at.copy(), ends):
                at[record.shard] = record.offset + 1
                yield record
        except Unreachable:
            continue  # a follower also waits for a backend that does not answer
        at = ends  # not behind the last record: a gap may follow it
        if nothing_new:
            stream.wait(seen, WAIT_S)


def last(stream: Stream, shards: list[int], count: int) -> dict[int, int]:
    """Where to start in each shard to read about the last ``count`` records of all of them."""
    bounds = {shard: stream.bounds(shard) for shard in shards}
    found = [
        record
        for shard, (start, end) in bounds.items()
        for record in _last_of(stream, shard, start, end, count)
    ]
    newest = heapq.nlargest(count, found, key=lambda record: (record.timestamp_ms, record.offset))
    starts = {shard: end for shard, (_, end) in bounds.items()}
    for record in newest:
        starts[record.shard] = min(starts[record.shard], record.offset)
    return starts


def _last_of(stream: Stream, shard: int, start: int, end: int, count: int) -> deque[Record]:
    """The last ``count`` records of a shard. Where there are gaps, it looks further back."""
    width = count
    while True:
        at = max(end - width, start)
        found = deque(stream.read(shard, at, end), maxlen=count)
        if len(found) == count or at == start:
            return found
        width *= 4
