"""The ports on LMDB: streams, records, small values and commits in one environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from headrace.backends.copy_by_producer import CopyByProducer
from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_row
from headrace.backends.lmdb.environment import MAP_BYTES
from headrace.backends.lmdb.files import MEMBERS
from headrace.backends.lmdb.handles import Shared
from headrace.backends.lmdb.liveness import FileLiveness
from headrace.backends.lmdb.lock_holder import holder_of
from headrace.backends.lmdb.maintenance import drop_stream, trim
from headrace.backends.lmdb.read_cache import CachedRead, ReadCache
from headrace.backends.lmdb.tables import Tables
from headrace.backends.lmdb.writer import WRITE_TIMEOUT_S
from headrace.core import transaction
from headrace.core.capabilities import Capabilities
from headrace.core.errors import BadBatch, Closed, HeadraceError, StreamExists
from headrace.core.model import Bounds, StreamInfo, even_shards
from headrace.core.ports import (
    ABSENT,
    Append,
    Commit,
    Place,
    Producer,
    ReadResult,
    StreamSpec,
    Versioned,
)
from headrace.core.records.batch import Batch
from headrace.core.records.limits import ReadBudget, check_commit_bytes, check_shard, check_start
from headrace.core.transaction import Part

CAPABILITIES = Capabilities(
    "lmdb",
    {
        "merge": "shards cannot be merged yet",
        "remote": "its files are memory-mapped: processes of one machine only",
        "split": "shards cannot be split yet",
    },
)

T = TypeVar("T")

POLL_S_MIN = 0.0005
POLL_S_SOON = 0.001
POLL_S_MAX = 0.004
"""How long a reader waits between two looks for what another process wrote: shortly for a while, as
more follows mostly soon, then longer."""
SOON_S = 0.02


class LmdbBackend:
    capabilities = CAPABILITIES

    def __init__(
        self,
        directory: Path,
        *,
        create: bool = True,
        map_bytes: int = MAP_BYTES,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        any_filesystem: bool = False,
        maintain: bool = True,
    ) -> None:
        self._shared = Shared.open(
            directory,
            create=create,
            map_bytes=map_bytes,
            any_filesystem=any_filesystem,
            maintain=maintain,
        )
        self._closed = False
        self._environment = self._shared.environment
        self._store = self._environment.identity.store
        self.identity = self._store.hex()
        self.address = os.path.abspath(self._environment.directory)
        self._write_timeout_s = write_timeout_s
        self._leftovers = ReadCache()
        self.liveness = FileLiveness(self._environment.directory / MEMBERS)

    # Streams

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        shards = even_shards(spec.shards)

        def create(tables: Tables) -> StreamInfo:
            if tables.txn.get(stored_row.name_key(spec.name)) is not None:
                raise StreamExists.named(spec.name)
            row = tables.txn.get(stored_row.NEXT_ID_KEY)
            stream_id = 1 if row is None else stored_row.unpacked(stored_row.NEXT_ID_KEY, row, int)
            tables.put_row(stored_row.NEXT_ID_KEY, stream_id + 1)
            tables.put_row(stored_row.name_key(spec.name), stream_id)
            tables.put_row(stored_row.id_key(stream_id), stored_row.StreamRow.of(spec))
            for shard in shards:
                key = stored_row.shard_key(stream_id, shard.index)
                tables.put_row(key, stored_row.ShardRow.of(shard))
            return stored_row.StreamRow.of(spec).info(stream_id, shards)

        return self._write(create)

    def stream(self, name: str) -> StreamInfo:
        with self._reading() as txn:
            return Tables(self._environment, txn).find_stream(name)

    def streams(self) -> list[StreamInfo]:
        with self._reading() as txn:
            tables = Tables(self._environment, txn)
            found = stored_row.ranged(txn.cursor(), stored_row.STREAMS)
            ids = [stored_row.id_of(key) for key, _ in found]
            return sorted((tables.stream_info(id) for id in ids), key=lambda stream: stream.name)

    def delete_stream(self, name: str) -> None:
        def delete(tables: Tables) -> StreamInfo:
            info = tables.find_stream(name)
            tables.txn.delete(stored_row.name_key(name))
            tables.txn.delete(stored_row.id_key(info.id))
            for shard in info.shards:
                tables.txn.delete(stored_row.shard_key(info.id, shard.index))
            tables.put_row(stored_row.doomed_key(info.id), info.id)
            return info

        info = self._write(delete)
        drop_stream(self._write, info.id)

    # Records

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        prepared, nbytes = self._prepared(parts)
        return self._write(lambda tables: transaction.append(tables, prepared, producer), nbytes)

    def read(
        self,
        stream: StreamInfo,
        shard: int,
        start: int,
        end: int | None = None,
        *,
        max_records: int,
        max_bytes: int,
    ) -> ReadResult:
        check_shard(stream, shard)
        stored: list[batches.Verified] = []
        damage: BadBatch | None = None
        left = self._leftovers.holding((stream.id, shard), start)
        if left is not None and left.transaction == self.changes():
            return self._going_on(
                stream, shard, left, start, end, ReadBudget(max_records, max_bytes)
            )
        with self._reading() as txn:
            bounds = Tables(self._environment, txn).bounds(stream, shard)
            check_start(stream, shard, start, bounds)
            stop = bounds.end if end is None else min(end, bounds.end)
            if start >= stop:
                return ReadResult((), start)
            room = ReadBudget(max_records, max_bytes)
            if left is not None:
                left = CachedRead(left.batch, bounds, txn.id())
                self._leftovers.keep((stream.id, shard), left)
                return self._going_on(stream, shard, left, start, end, room)
            cursor = txn.cursor()
            prefix = batches.shard_prefix(stream.id, shard)
            found = cursor.set_range(batches.key_of(stream.id, shard, start + 1))
            records = nbytes = 0
            while found and records < max_records:
                key, value = bytes(cursor.key()), cursor.value()
                if not key.startswith(prefix):
                    break
                nbytes += len(value)
                if stored and nbytes > max_bytes:
                    break
                try:
                    # At once, while the copy is at hand; what is in it is looked at later, so that
                    # large data goes through the caches only once.
                    stored.append(batches.verified(stream, self._store, key, _copied(value)))
                except BadBatch as why:
                    damage = why
                    break
                records = stored[-1].head.end - start
                if stored[-1].head.end >= stop:
                    break
                found = cursor.next()
            last = txn.id()
        if not stored:
            raise damage or BadBatch(stream.name, shard, start, stop, "it is missing")
        reading, rest = _taken(stream, stored, start, stop, room)
        if rest is not None:
            self._leftovers.keep((stream.id, shard), CachedRead(rest, bounds, last))
        return reading

    def _going_on(
        self,
        stream: StreamInfo,
        shard: int,
        left: CachedRead,
        start: int,
        end: int | None,
        room: ReadBudget,
    ) -> ReadResult:
        check_start(stream, shard, start, left.bounds)
        stop = left.bounds.end if end is None else min(end, left.bounds.end)
        if start >= stop:
            return ReadResult((), start)
        part = room.take(left.batch, start, stop)
        behind = start + len(part)
        if behind > left.batch.offsets[-1]:
            self._leftovers.drop((stream.id, shard))
        return ReadResult([part], behind)

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        check_shard(stream, shard)
        with self._reading() as txn:
            return Tables(self._environment, txn).bounds(stream, shard)

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        return [self.bounds(stream, shard) for stream, shard in shards]

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        with self._reading() as txn:
            tables = Tables(self._environment, txn)
            return [tables.bounds(stream, shard).end for stream, shard in shards]

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        bounds = self.bounds(stream, shard)
        at = bounds.start
        while late := self._next_late(stream, shard, at, timestamp_ms):
            batch = batches.decode(stream, self._store, *late)
            for offset, found in zip(batch.offsets, batch.timestamps, strict=True):
                if found >= timestamp_ms and offset >= bounds.start:
                    return offset
            at = batch.offsets[-1] + 1
        return bounds.end

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        check_start(stream, shard, before, self.bounds(stream, shard))
        trim(self._write, stream, shard, before)

    def changes(self) -> int:
        self._check_open()
        return self._environment.last_transaction()

    def wait(self, seen: int, timeout_s: float) -> int:
        began_s = now_s = time.monotonic()
        pause_s = POLL_S_MIN
        while True:
            now = self.changes()
            left_s = began_s + timeout_s - now_s
            if now != seen or left_s <= 0:
                return now
            self._shared.wait(min(pause_s, left_s))
            now_s = time.monotonic()
            longest_s = POLL_S_SOON if now_s - began_s < SOON_S else POLL_S_MAX
            pause_s = min(pause_s * 1.5, longest_s)

    # Small values and commits

    def get(self, key: bytes) -> Versioned | None:
        with self._reading() as txn:
            return Tables(self._environment, txn).get(key)

    def version(self, key: bytes) -> int:
        with self._reading() as txn:
            row = txn.get(stored_row.value_key(key))
            return ABSENT if row is None else stored_row.version_of(row)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        with self._reading() as txn:
            cursor = txn.cursor()
            found = [
                (key[len(stored_row.VALUES) :], stored_row.opened_row(key, row))
                for key, row in stored_row.ranged(cursor, stored_row.value_key(prefix))
            ]
        return iter(found)

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        transaction.check_puts(checks, puts)
        return self._write(lambda tables: transaction.transact(tables, checks, puts))

    def commit(self, commit: Commit) -> list[Place]:
        return self._write(*self._committing(commit))

    def commit_each(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        wanted = [self._committing(commit) for commit in commits]

        def each(tables: Tables) -> list[HeadraceError | None]:
            return [_wrong_with(work, tables) for work, _ in wanted]

        return self._write(each, sum(nbytes for _, nbytes in wanted))

    def _committing(self, commit: Commit) -> tuple[Callable[[Tables], list[Place]], int]:
        prepared, nbytes = self._prepared([*commit.outputs, *commit.dead_letters])
        return lambda tables: transaction.commit(tables, commit, prepared), nbytes

    # The rest

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> CopyByProducer:
        return CopyByProducer(self, stream, shard, origin)

    def describe(self) -> dict[str, Any]:
        self._check_open()
        holder = holder_of(self._environment.directory)
        return {**self._environment.facts(), "write_lock": str(holder) if holder else None}

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        return [{} for _ in streams]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._shared.release()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the hub {self._environment.directory} was closed")

    def _write(self, work: Callable[[Tables], T], nbytes: int = 0) -> T:
        self._check_open()
        result: T = self._shared.write(work, nbytes, self._write_timeout_s)
        return result

    def _reading(self) -> AbstractContextManager[Any]:
        self._check_open()
        return self._environment.reading()

    def _prepared(self, parts: Sequence[Append]) -> tuple[list[Part], int]:
        nbytes = sum(part.batch.nbytes for part in parts)
        check_commit_bytes(nbytes)
        for part in parts:
            check_shard(part.stream, part.shard)
        return [
            Part(part.stream, part.shard, len(part.batch), batches.encode(part.batch))
            for part in parts
        ], nbytes

    def _next_late(
        self, stream: StreamInfo, shard: int, start: int, timestamp_ms: int
    ) -> tuple[bytes, bytes] | None:
        """The first stored batch from an offset on that has a record of that time or later."""
        prefix = batches.shard_prefix(stream.id, shard)
        with self._reading() as txn:
            cursor = txn.cursor()
            found = cursor.set_range(batches.key_of(stream.id, shard, start + 1))
            while found and bytes(cursor.key()).startswith(prefix):
                key, value = bytes(cursor.key()), cursor.value()
                try:
                    late = batches.header(self._store, key, value).latest_ms >= timestamp_ms
                except batches.Unreadable:
                    late = True  # decoding it tells what is wrong
                if late:
                    return key, bytes(value)
                found = cursor.next()
        return None


def _wrong_with(work: Callable[[Tables], object], tables: Tables) -> HeadraceError | None:
    try:
        work(tables)
    except HeadraceError as why:
        return why  # it looked first and wrote nothing, so the others stand
    return None


def _taken(
    stream: StreamInfo, stored: list[batches.Verified], start: int, stop: int, room: ReadBudget
) -> tuple[ReadResult, Batch | None]:
    """As many of the records from ``start`` on as there is room for; and the batch, if it is a
    large one, that has more of them than were taken."""
    taken: list[Batch] = []
    at = start
    left: Batch | None = None
    try:
        for batch in _joined(_opened(stream, stored, start)):
            part = room.take(batch, at, stop)
            if not len(part):
                break
            taken.append(part)
            at += len(part)
            left = None if batch.is_rows or at > batch.offsets[-1] else batch
    except BadBatch:
        # What came before the damage is delivered; the next read begins with it and says so.
        if not taken:
            raise
    return ReadResult(taken, at), left


def _opened(stream: StreamInfo, stored: list[batches.Verified], expected: int) -> Iterator[Batch]:
    """The batches, and that none is missing between them."""
    for found in stored:
        base = found.head.base
        if base > expected:
            raise BadBatch(stream.name, found.head.shard, expected, base, "it is missing")
        expected = found.head.end
        yield batches.opened(stream, found)


def _copied(value: memoryview) -> memoryview:
    """Out of the map, into memory of Arrow's pool: fresh pages for each copy would cost more."""
    copy = memoryview(pa.allocate_buffer(len(value))).cast("B")
    copy[:] = value
    return copy


def _joined(opened: Iterator[Batch]) -> Iterator[Batch]:
    """Neighbouring small batches as one: what was appended one by one is read together."""
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
