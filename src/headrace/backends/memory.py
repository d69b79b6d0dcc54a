"""Streams in this process's memory: for tests and trials, with every rule of the real ones."""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.backends.copy_by_producer import CopyByProducer
from headrace.core import store_keys, transaction
from headrace.core.capabilities import Capabilities
from headrace.core.errors import Closed, HeadraceError, ShardClosed, StreamExists, UnknownStream
from headrace.core.model import Bounds, StreamInfo, even_shards
from headrace.core.ports import (
    ABSENT,
    Append,
    Commit,
    Place,
    Producer,
    ReadResult,
    Sign,
    StreamSpec,
    Versioned,
)
from headrace.core.records.batch import Batch
from headrace.core.records.limits import ReadBudget, check_commit_bytes, check_shard, check_start
from headrace.core.records.schema import SCHEMA
from headrace.core.transaction import Part

CAPABILITIES = Capabilities(
    "memory",
    {
        "durable": "its records live as long as the process",
        "merge": "shards cannot be merged yet",
        "processes": "its records live in the memory of one process",
        "remote": "its records live in the memory of one process",
        "split": "shards cannot be split yet",
    },
)


@dataclass
class _ShardRecords:
    start: int = 0
    ends: list[int] = field(default_factory=list)
    """The offset after the last record of each batch, to find the batch of any offset."""
    batches: list[Batch] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else self.start


class MemoryLiveness:
    """Signs of life of members that all live in this process, so none is dead: some are silent."""

    def __init__(self) -> None:
        self._beats: dict[tuple[str, str, int], tuple[int, float]] = {}

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None:
        self._beats[group, member, incarnation] = beat, time.monotonic()

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        found = self._beats.get((group, member, incarnation))
        return None if found is None else Sign(True, found[0], time.monotonic() - found[1])

    def leave(self, group: str, member: str, incarnation: int) -> None:
        self._beats.pop((group, member, incarnation), None)


class MemoryBackend:
    """All of it behind one lock."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._changes = 0
        self._streams: dict[str, StreamInfo] = {}
        self._next_id = 1
        self._shards: dict[tuple[int, int], _ShardRecords] = {}
        self._values: dict[bytes, Versioned] = {}
        self.liveness = MemoryLiveness()
        self.identity = uuid.uuid4().hex
        self.address = None
        self.closed = False
        self.users = 1
        """How many hubs stand on it: the last one closes it."""

    # Streams

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        with self._writing():
            if spec.name in self._streams:
                raise StreamExists.named(spec.name)
            info = StreamInfo(
                name=spec.name,
                id=self._next_id,
                codec=spec.codec,
                routing=spec.routing,
                retention_s=spec.retention_s,
                retention_bytes=spec.retention_bytes,
                created_ms=spec.created_ms,
                shards=even_shards(spec.shards),
            )
            self._next_id += 1
            self._streams[spec.name] = info
            for shard in info.shards:
                self._shards[info.id, shard.index] = _ShardRecords()
            return info

    def stream(self, name: str) -> StreamInfo:
        with self._reading():
            if name not in self._streams:
                raise UnknownStream(name)
            return self._streams[name]

    def streams(self) -> list[StreamInfo]:
        with self._reading():
            return [self._streams[name] for name in sorted(self._streams)]

    def delete_stream(self, name: str) -> None:
        with self._writing():
            if name not in self._streams:
                raise UnknownStream(name)
            info = self._streams.pop(name)
            for shard in info.shards:
                del self._shards[info.id, shard.index]
            gone = tuple(store_keys.stream_prefixes(info.id))
            for key in [key for key in self._values if key.startswith(gone)]:
                del self._values[key]

    # Records

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        check_commit_bytes(sum(part.batch.nbytes for part in parts))
        kept = [_kept(part) for part in parts]
        with self._writing():
            return transaction.append(self, kept, producer)

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
        with self._reading():
            records = self._records(stream, shard)
            check_start(stream, shard, start, Bounds(records.start, records.end))
            stop = records.end if end is None else min(end, records.end)
            room = ReadBudget(max_records, max_bytes)
            batches: list[Batch] = []
            at = start
            for batch in records.batches[bisect_right(records.ends, start) :]:
                if at >= stop or room.full:
                    break
                taken = room.take(batch, at, stop)
                if not len(taken):
                    break
                batches.append(taken)
                at += len(taken)
            return ReadResult(batches, at)

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        with self._reading():
            records = self._records(stream, shard)
            return Bounds(records.start, records.end)

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        return [self.bounds(stream, shard) for stream, shard in shards]

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        with self._reading():
            return [self._records(stream, shard).end for stream, shard in shards]

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        with self._reading():
            records = self._records(stream, shard)
            for batch in records.batches:
                for offset, found in zip(batch.offsets, batch.timestamps, strict=True):
                    if found >= timestamp_ms and offset >= records.start:
                        return offset
            return records.end

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        with self._writing():
            records = self._records(stream, shard)
            check_start(stream, shard, before, Bounds(records.start, records.end))
            whole = bisect_right(records.ends, before)
            del records.batches[:whole], records.ends[:whole]
            records.start = before

    def changes(self) -> int:
        with self._reading():
            return self._changes

    def wait(self, seen: int, timeout_s: float) -> int:
        with self._reading():
            self._changed.wait_for(lambda: self._changes != seen or self.closed, timeout_s)
            return self._changes

    # Small values and commits

    def get(self, key: bytes) -> Versioned | None:
        with self._reading():
            return self._values.get(key)

    def version(self, key: bytes) -> int:
        with self._reading():
            found = self._values.get(key)
            return ABSENT if found is None else found.version

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        with self._reading():
            found = sorted(item for item in self._values.items() if item[0].startswith(prefix))
        return iter(found)

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        transaction.check_puts(checks, puts)
        with self._writing():
            return transaction.transact(self, checks, puts)

    def commit_each(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        def tried(commit: Commit) -> HeadraceError | None:
            try:
                self.commit(commit)
            except HeadraceError as why:
                return why
            return None

        return [tried(commit) for commit in commits]

    def commit(self, commit: Commit) -> list[Place]:
        parts = [*commit.outputs, *commit.dead_letters]
        check_commit_bytes(sum(part.batch.nbytes for part in parts))
        kept = [_kept(part) for part in parts]
        with self._writing():
            return transaction.commit(self, commit, kept)

    # The transaction that `headrace.core.transaction` writes through, under the lock

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = Versioned(value, self._changes)

    def end(self, stream: StreamInfo, shard: int) -> int:
        records = self._records(stream, shard)
        if not self._streams[stream.name].shards[shard].open:
            raise ShardClosed(stream.name, shard)
        return records.end

    def add(self, part: Part, base: int) -> None:
        records = self._records(part.stream, part.shard)
        batch: Batch = part.content
        batch.offsets = range(base, base + part.records)
        records.batches.append(batch)
        records.ends.append(base + part.records)

    # The rest

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> CopyByProducer:
        return CopyByProducer(self, stream, shard, origin)

    def describe(self) -> dict[str, Any]:
        with self._reading():
            nbytes = sum(b.nbytes for shard in self._shards.values() for b in shard.batches)
            return {
                "backend": self.capabilities.backend,
                "streams": len(self._streams),
                "bytes": nbytes,
            }

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        return [{} for _ in streams]

    def close(self) -> None:
        with self._lock:
            self.users -= 1
            if self.users <= 0:
                self.closed = True
                self._shards.clear()
                self._values.clear()
                self._changed.notify_all()

    def _records(self, stream: StreamInfo, shard: int) -> _ShardRecords:
        check_shard(stream, shard)
        current = self._streams.get(stream.name)
        if current is None or current.id != stream.id:
            raise UnknownStream(stream.name)
        return self._shards[stream.id, shard]

    def _reading(self) -> AbstractContextManager[Any]:
        if self.closed:
            raise Closed("this hub was closed")
        return self._lock

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """The lock, a new version for what is written, and a call to those who wait."""
        with self._reading():
            self._changes += 1
            try:
                yield
            finally:
                self._changed.notify_all()


def _kept(part: Append) -> Part:
    """A copy that nobody else can change."""
    if part.batch.is_rows:
        rows = [row._replace(headers=tuple(row.headers)) for row in part.batch.rows]
        batch = Batch.of_rows(rows, stream=part.stream.name, shard=part.shard)
    else:
        copied = pa.ipc.read_record_batch(part.batch.columns.serialize(), SCHEMA)
        batch = Batch.of_arrow(copied, stream=part.stream.name, shard=part.shard)
    return Part(part.stream, part.shard, len(batch), batch)


_named: dict[str, MemoryBackend] = {}
_named_lock = threading.Lock()


def open_memory(name: str) -> MemoryBackend:
    """The backend of this name in this process; a new one without a name."""
    if not name:
        return MemoryBackend()
    with _named_lock:
        found = _named.get(name)
        if found is None or found.closed:
            found = _named[name] = MemoryBackend()
        else:
            found.users += 1
        return found
