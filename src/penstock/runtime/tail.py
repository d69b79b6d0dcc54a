"""Reading all shards of a stream as one: for people who look, not for work that must keep order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from penstock.core.model import Record
from penstock.runtime.stream import Stream

WAIT_S = 0.5


def merged(stream: Stream, starts: dict[int, int]) -> Iterator[Record]:
    """The records of some shards up to their ends now, by timestamp where shards meet."""
    reads = [stream.read(shard, start) for shard, start in starts.items()]
    return heapq.merge(*reads, key=lambda record: record.timestamp_ms)


def followed(stream: Stream, starts: dict[int, int]) -> Iterator[Record]:
    """The same, and then for ever what comes."""
    at = dict(starts)
    while True:
        seen = stream.changes()
        found = False
        for record in merged(stream, at):
            found = True
            at[record.shard] = record.offset + 1
            yield record
        if not found:
            stream.wait(seen, WAIT_S)


def last(stream: Stream, shards: list[int], count: int) -> dict[int, int]:
    """Where to start so that about the last ``count`` records of these shards come."""
    starts = {}
    for shard in shards:
        start, end = stream.bounds(shard)
        starts[shard] = max(end - count, start)
    newest = heapq.nlargest(count, merged(stream, starts), key=lambda r: (r.timestamp_ms, r.offset))
    for shard in shards:
        offsets = [record.offset for record in newest if record.shard == shard]
        starts[shard] = min(offsets, default=stream.bounds(shard).end)
    return starts
