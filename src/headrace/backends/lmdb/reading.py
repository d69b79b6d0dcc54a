"""Read records out of stored batches.

A read transaction must be short, so a read copies and verifies the stored batches inside it, and
looks into them afterwards. A large batch of which a read took only a part is kept for the next
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb.environment import Environment
from headrace.backends.lmdb.read_cache import CachedRead, ReadCache
from headrace.backends.lmdb.tables import Tables
from headrace.core.errors import BadBatch
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import ReadResult
from headrace.core.records.batch import Batch
from headrace.core.records.limits import ReadBudget, check_start


class Reader:
    """The read path of one hub."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._store = environment.identity.store
        self._cache = ReadCache()

    def read(
        self, stream: StreamInfo, shard: int, start: int, end: int | None, budget: ReadBudget
    ) -> ReadResult:
        cached = self._cache.holding((stream.id, shard), start)
        if cached is not None and cached.transaction == self._environment.last_transaction():
            return self._read_cached(stream, shard, cached, start, end, budget)
        with self._environment.reading() as txn:
            bounds = Tables(self._environment, txn).bounds(stream, shard)
            check_start(stream, shard, start, bounds)
            stop = _stop(end, bounds)
            if start >= stop:
                return ReadResult((), start)
            transaction = txn.id()
            if cached is not None:
                cached = CachedRead(cached.batch, bounds, transaction)
                self._cache.keep((stream.id, shard), cached)
                return self._read_cached(stream, shard, cached, start, end, budget)
            stored, damage = self._copied(txn, stream, shard, start, stop, budget)
        if not stored:
            raise damage or BadBatch(stream.name, shard, start, stop, "it is missing")
        result, rest = _taken(stream, stored, start, stop, budget)
        if rest is not None:
            self._cache.keep((stream.id, shard), CachedRead(rest, bounds, transaction))
        return result

    def offset_at(self, stream: StreamInfo, shard: int, bounds: Bounds, timestamp_ms: int) -> int:
        """The offset of the first kept record of that time or later; the end if there is none."""
        at = bounds.start
        while late := self._next_late(stream, shard, at, timestamp_ms):
            batch = batches.decode(stream, self._store, *late)
            for offset, found_ms in zip(batch.offsets, batch.timestamps, strict=True):
                if found_ms >= timestamp_ms and offset >= bounds.start:
                    return offset
            at = batch.offsets[-1] + 1
        return bounds.end

    def _read_cached(
        self,
        stream: StreamInfo,
        shard: int,
        cached: CachedRead,
        start: int,
        end: int | None,
        budget: ReadBudget,
    ) -> ReadResult:
        check_start(stream, shard, start, cached.bounds)
        stop = _stop(end, cached.bounds)
        if start >= stop:
            return ReadResult((), start)
        part = budget.take(cached.batch, start, stop)
        behind = start + len(part)
        if behind > cached.batch.offsets[-1]:
            self._cache.drop((stream.id, shard))
        return ReadResult([part], behind)

    def _copied(
        self,
        txn: Any,
        stream: StreamInfo,
        shard: int,
        start: int,
        stop: int,
        budget: ReadBudget,
    ) -> tuple[list[batches.Verified], BadBatch | None]:
        """The stored batches from ``start`` on that the budget allows, copied and verified. If the
        batch behind them is damaged, the second value says how."""
        stored: list[batches.Verified] = []
        nbytes = 0
        for key, value in _from(txn, stream, shard, start):
            nbytes += len(value)
            if stored and nbytes > budget.nbytes:
                break
            try:
                # Verified at once, while the copy is in the processor's caches. The records are
                # looked at later, so that large data goes through the caches only once.
                found = batches.verified(stream, self._store, key, _copy(value))
            except BadBatch as why:
                return stored, why
            stored.append(found)
            end = found.head.end
            if end >= stop or end - start >= budget.records:
                break
        return stored, None

    def _next_late(
        self, stream: StreamInfo, shard: int, start: int, timestamp_ms: int
    ) -> tuple[bytes, bytes] | None:
        """The first stored batch from ``start`` on that has a record of that time or later."""
        with self._environment.reading() as txn:
            for key, value in _from(txn, stream, shard, start):
                try:
                    late = batches.header(self._store, key, value).latest_ms >= timestamp_ms
                except batches.Unreadable:
                    late = True  # decoding the batch raises the error
                if late:
                    return key, bytes(value)
        return None


def _stop(end: int | None, bounds: Bounds) -> int:
    return bounds.end if end is None else min(end, bounds.end)


def _from(
    txn: Any, stream: StreamInfo, shard: int, start: int
) -> Iterator[tuple[bytes, memoryview]]:
    """The keys and values of a shard's stored batches, from the one that holds ``start`` on."""
    cursor = txn.cursor()
    prefix = batches.shard_prefix(stream.id, shard)
    found = cursor.set_range(batches.key_of(stream.id, shard, start + 1))
    while found:
        key = bytes(cursor.key())
        if not key.startswith(prefix):
            return
        yield key, cursor.value()
        found = cursor.next()


def _copy(value: memoryview) -> memoryview:
    """Copy a value out of the map into memory of Arrow's pool. Fresh pages would cost more."""
    copy = memoryview(pa.allocate_buffer(len(value))).cast("B")
    copy[:] = value
    return copy


def _taken(
    stream: StreamInfo, stored: list[batches.Verified], start: int, stop: int, budget: ReadBudget
) -> tuple[ReadResult, Batch | None]:
    """The records from ``start`` on that fit into the budget; and the last batch, if it is a large
    one that has more records than were taken."""
    taken: list[Batch] = []
    at = start
    rest: Batch | None = None
    try:
        for batch in _joined(_opened(stream, stored, start)):
            part = budget.take(batch, at, stop)
            if not len(part):
                break
            taken.append(part)
            at += len(part)
            rest = None if batch.is_rows or at > batch.offsets[-1] else batch
    except BadBatch:
        # The records before the damage are delivered. The next read begins there and raises.
        if not taken:
            raise
    return ReadResult(taken, at), rest


def _opened(stream: StreamInfo, stored: list[batches.Verified], expected: int) -> Iterator[Batch]:
    """The batches in order; `BadBatch` if one is missing between them."""
    for found in stored:
        base = found.head.base
        if base > expected:
            raise BadBatch(stream.name, found.head.shard, expected, base, "it is missing")
        expected = found.head.end
        yield batches.opened(stream, found)


def _joined(opened: Iterator[Batch]) -> Iterator[Batch]:
    """The batches, with small neighbours joined: records that were appended one by one are read
    together."""
    small: list[Batch] = []
    try:
        for batch in opened:
            if batch.is_rows:
                small.append(batch)
                continue
            yield from _as_one(small)
            small = []
            yield batch
    except BadBatch:
        yield from _as_one(small)
        raise
    yield from _as_one(small)


def _as_one(small: list[Batch]) -> Iterator[Batch]:
    if len(small) <= 1:
        yield from small
        return
    first, last = small[0], small[-1]
    yield Batch.of_rows(
        [row for batch in small for row in batch.rows],
        stream=first.stream,
        shard=first.shard,
        offsets=range(first.offsets[0], last.offsets[-1] + 1),
        nbytes=sum(batch.nbytes for batch in small),
    )
