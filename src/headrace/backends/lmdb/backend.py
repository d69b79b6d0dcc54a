"""The ports on LMDB: streams, records, small values and commits in one environment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from headrace.backends.copy_by_producer import CopyByProducer
from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.backends.lmdb.environment import MAP_BYTES
from headrace.backends.lmdb.files import MEMBERS
from headrace.backends.lmdb.handles import SharedEnvironment
from headrace.backends.lmdb.liveness import FileLiveness
from headrace.backends.lmdb.lock_holder import holder_of
from headrace.backends.lmdb.maintenance import drop_stream, trim
from headrace.backends.lmdb.reading import Reader
from headrace.backends.lmdb.tables import Tables
from headrace.backends.lmdb.writer import WRITE_TIMEOUT_S
from headrace.core import transaction
from headrace.core.capabilities import Capabilities
from headrace.core.errors import Closed, HeadraceError, StreamExists
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
        self._shared = SharedEnvironment.open(
            directory,
            create=create,
            map_bytes=map_bytes,
            any_filesystem=any_filesystem,
            maintain=maintain,
        )
        self._closed = False
        self._environment = self._shared.environment
        self.identity = self._environment.identity.store.hex()
        self.address = os.path.abspath(self._environment.directory)
        self._write_timeout_s = write_timeout_s
        self._reader = Reader(self._environment)
        self.liveness = FileLiveness(self._environment.directory / MEMBERS)

    # Streams

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        shards = even_shards(spec.shards)

        def create(tables: Tables) -> StreamInfo:
            if tables.txn.get(stored_value.name_key(spec.name)) is not None:
                raise StreamExists.named(spec.name)
            row = tables.txn.get(stored_value.NEXT_ID_KEY)
            stream_id = (
                1 if row is None else stored_value.unpacked(stored_value.NEXT_ID_KEY, row, int)
            )
            tables.put_stored(stored_value.NEXT_ID_KEY, stream_id + 1)
            tables.put_stored(stored_value.name_key(spec.name), stream_id)
            tables.put_stored(stored_value.id_key(stream_id), stored_value.StoredStream.of(spec))
            for shard in shards:
                key = stored_value.shard_key(stream_id, shard.index)
                tables.put_stored(key, stored_value.StoredShard.of(shard))
            return stored_value.StoredStream.of(spec).info(stream_id, shards)

        return self._write(create)

    def stream(self, name: str) -> StreamInfo:
        with self._reading() as txn:
            return Tables(self._environment, txn).find_stream(name)

    def streams(self) -> list[StreamInfo]:
        with self._reading() as txn:
            tables = Tables(self._environment, txn)
            found = stored_value.ranged(txn.cursor(), stored_value.STREAMS)
            ids = [stored_value.id_of(key) for key, _ in found]
            return sorted((tables.stream_info(id) for id in ids), key=lambda stream: stream.name)

    def delete_stream(self, name: str) -> None:
        def delete(tables: Tables) -> StreamInfo:
            info = tables.find_stream(name)
            tables.txn.delete(stored_value.name_key(name))
            tables.txn.delete(stored_value.id_key(info.id))
            for shard in info.shards:
                tables.txn.delete(stored_value.shard_key(info.id, shard.index))
            tables.put_stored(stored_value.doomed_key(info.id), info.id)
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
        self._check_open()
        budget = ReadBudget(max_records, max_bytes)
        return self._reader.read(stream, shard, start, end, budget)

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
        return self._reader.offset_at(stream, shard, bounds, timestamp_ms)

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
            row = txn.get(stored_value.value_key(key))
            return ABSENT if row is None else stored_value.version_of(row)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        with self._reading() as txn:
            cursor = txn.cursor()
            found = [
                (key[len(stored_value.VALUES) :], stored_value.opened(key, row))
                for key, row in stored_value.ranged(cursor, stored_value.value_key(prefix))
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


def _wrong_with(work: Callable[[Tables], object], tables: Tables) -> HeadraceError | None:
    try:
        work(tables)
    except HeadraceError as why:
        return why  # it looked first and wrote nothing, so the others stand
    return None
