"""The maintenance of a hub by one of its processes: drop what is no longer kept, pack small
batches.

It begins some seconds after the hub was opened, so that a short command never does it. Every write
is a small transaction of its own. A process that is killed between two of them only leaves work for
the next process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.backends.lmdb.environment import Environment
from headrace.backends.lmdb.files import PACKER_FILE
from headrace.backends.lmdb.tables import Tables
from headrace.core import store_keys
from headrace.core.errors import BadBatch, HeadraceError
from headrace.core.model import StreamInfo
from headrace.core.records.batch import Batch
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

ROUND_S = 10.0
STOP_S = 5.0
DROPPED_AT_ONCE = 256
PRODUCERS_KEPT = 10_000
"""How many producers of a stream are remembered: the last ones to append. A forgotten producer
begins anew."""

PACKED_RECORDS = 1_000
PACKED_BYTES = 256 * 1024
PACKED_BATCHES_MIN = 8
PACKED_BATCHES_MAX = 256
REST_S = 0.02
"""How long to rest between two writes of large batches, so that other writes have their turn."""
PAUSE_S = 0.0005
"""How long to pause while a large batch is made: other threads that wait for the interpreter need
it often, and for a short time."""
PAUSE_BATCHES = 16
"""After how many small batches to pause."""

Write = Callable[[Callable[[Tables], Any]], Any]


class Maintenance:
    """The maintenance thread of a process."""

    def __init__(self, environment: Environment, write: Write) -> None:
        self._environment = environment
        self._write = write
        self._ended = threading.Event()
        self._lock_file: int | None = None
        self._packed: dict[tuple[int, int], int] = {}
        """The offset of each shard up to which nothing is left to pack."""
        self._thread = threading.Thread(target=self._run, name="headrace-maintenance", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(STOP_S)

    def let_go(self) -> None:
        """Release the lock file. A forked child does it too, else it would hold the file after its
        parent has ended."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def _run(self) -> None:
        while not self._ended.wait(ROUND_S):
            try:
                if self._chosen():
                    self.round(time.time_ns() // 1_000_000)
            except (HeadraceError, OSError) as why:
                log.warning("hub=%s: maintenance put off: %s", self._environment.directory, why)
        self.let_go()

    def round(self, now_ms: int) -> None:
        """Do all the work that is due now."""
        for stream_id in self._doomed():
            drop_stream(self._write, stream_id)
        for stream in self._streams():
            self._forget_producers(stream)
            for shard in range(len(stream.shards)):
                if self._ended.is_set():
                    return
                self._retain(stream, shard, now_ms)
                self._pack(stream, shard)

    def _chosen(self) -> bool:
        """Whether this process is the one that holds the lock file."""
        if self._lock_file is None:
            path = self._environment.directory / PACKER_FILE
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            self._lock_file = file
        return True

    def _doomed(self) -> list[int]:
        with self._environment.reading() as txn:
            found = stored_value.ranged(txn.cursor(), stored_value.DOOMED)
            return [stored_value.id_of(key) for key, _ in found]

    def _streams(self) -> list[StreamInfo]:
        with self._environment.reading() as txn:
            tables = Tables(self._environment, txn)
            found = stored_value.ranged(txn.cursor(), stored_value.STREAMS)
            ids = [stored_value.id_of(key) for key, _ in found]
            return [tables.stream_info(stream_id) for stream_id in ids]

    def _forget_producers(self, stream: StreamInfo) -> None:
        with self._environment.reading() as txn:
            cursor = txn.cursor()
            prefix = stored_value.value_key(b"p" + stream.id.to_bytes(4, "big"))
            known = [
                (stored_value.opened(key, value).version, key)
                for key, value in stored_value.ranged(cursor, prefix)
            ]
        surplus = [(version, key[len(stored_value.VALUES) :]) for version, key in sorted(known)]
        del surplus[-PRODUCERS_KEPT:]

        def forget(tables: Tables) -> None:
            for version, key in surplus:
                found = tables.get(key)
                if found is not None and found.version == version:  # else it has appended meanwhile
                    tables.put(key, None)

        if surplus:
            self._write(forget)

    def _retain(self, stream: StreamInfo, shard: int, now_ms: int) -> None:
        if stream.retention_s is None and stream.retention_bytes is None:
            return
        old_ms = now_ms - round((stream.retention_s or 0) * 1000)
        with self._environment.reading() as txn:
            heads = [(head, HEADER_BYTES + head.length) for head in self._heads(txn, stream, shard)]
        left = sum(nbytes for _, nbytes in heads)
        keep_from = None
        for head, nbytes in heads:
            too_old = stream.retention_s is not None and head.latest_ms < old_ms
            too_many = stream.retention_bytes is not None and left > stream.retention_bytes
            if not (too_old or too_many):
                break
            keep_from = head.end
            left -= nbytes
        if keep_from is not None:
            trim(self._write, stream, shard, keep_from)

    def _heads(self, txn: Any, stream: StreamInfo, shard: int) -> Iterator[batches.Header]:
        cursor = txn.cursor()
        prefix = batches.shard_prefix(stream.id, shard)
        for key, value in stored_value.ranged(cursor, prefix):
            try:
                yield batches.header(self._environment.identity.store, key, value)
            except batches.Unreadable:
                return  # a reader will get the error; maintenance drops no damaged batch

    def _pack(self, stream: StreamInfo, shard: int) -> None:
        done = self._packed.get((stream.id, shard), 0)
        while not self._ended.is_set():
            with self._environment.reading() as txn:
                run = self._small_run(txn, stream, shard, done)
            if run is None:
                return
            done = self._packed[stream.id, shard] = run.end
            if len(run.stored) >= PACKED_BATCHES_MIN:
                self._swap(stream, run)
                self._ended.wait(REST_S)

    def _small_run(self, txn: Any, stream: StreamInfo, shard: int, start: int) -> _Run | None:
        """The next small batches side by side that are worth one large batch; None if there are
        none yet."""
        cursor = txn.cursor()
        prefix = batches.shard_prefix(stream.id, shard)
        found = cursor.set_range(batches.key_of(stream.id, shard, start + 1))
        stored: list[tuple[bytes, bytes]] = []
        records = nbytes = 0
        while found and bytes(cursor.key()).startswith(prefix):
            key, value = bytes(cursor.key()), cursor.value()
            try:
                head = batches.header(self._environment.identity.store, key, value)
            except batches.Unreadable:
                return None
            small = head.records < PACKED_RECORDS and head.length < PACKED_BYTES
            if small:
                stored.append((key, bytes(value)))
                records += head.records
                nbytes += head.length
            enough = records >= PACKED_RECORDS or nbytes >= PACKED_BYTES
            if not small or enough or len(stored) >= PACKED_BATCHES_MAX:
                return _Run(stored, head.end)
            found = cursor.next()
        # The end of the shard still grows, and waits until it is worth a large batch.
        return None

    def _swap(self, stream: StreamInfo, run: _Run) -> None:
        """Put one large batch in the place of small ones."""
        store = self._environment.identity.store
        try:
            small = []
            for at, (key, value) in enumerate(run.stored, 1):
                small.append(batches.decode(stream, store, key, value))
                if at % PAUSE_BATCHES == 0:
                    self._ended.wait(PAUSE_S)
        except BadBatch as why:
            log.warning("hub=%s: not packed: %s", self._environment.directory, why)
            return
        packed = batches.encode(Batch.of_rows([row for batch in small for row in batch.rows]))
        failpoint("pack.before-swap")

        def swap(tables: Tables) -> None:
            if any(tables.txn.get(key) != value for key, value in run.stored):
                return  # trimmed or deleted meanwhile
            for key, _ in run.stored[:-1]:
                tables.txn.delete(key)
            key = run.stored[-1][0]
            base = small[0].offsets[0]
            tables.txn.put(key, batches.sealed(packed, store, key, base))

        self._write(swap)


HEADER_BYTES = batches.HEADER.size


class _Run(NamedTuple):
    """Small batches side by side, as stored, and the offset behind them."""

    stored: list[tuple[bytes, bytes]]
    end: int


def trim(write: Write, stream: StreamInfo, shard: int, before: int) -> None:
    """Move the first kept offset of a shard, then drop the batches that end before it."""

    def move_start(tables: Tables) -> None:
        found = tables.stored_shard(stream, shard)
        start = max(before, found.start)
        moved = stored_value.StoredShard(start, found.open, found.begin, found.end, found.parents)
        tables.put_stored(stored_value.shard_key(stream.id, shard), moved)

    write(move_start)
    failpoint("trim.between")
    prefix = batches.shard_prefix(stream.id, shard)
    _drop(write, prefix, lambda key: batches.place_of(key)[2] <= before)


def drop_stream(write: Write, stream_id: int) -> None:
    """Drop the batches of a deleted stream, and the small values of groups and producers for it."""
    belonging = (stored_value.value_key(prefix) for prefix in store_keys.stream_prefixes(stream_id))
    for prefix in (batches.stream_prefix(stream_id), *belonging):
        _drop(write, prefix, lambda key: True)
    write(lambda tables: tables.txn.delete(stored_value.doomed_key(stream_id)))


def _drop(write: Write, prefix: bytes, wanted: Callable[[bytes], bool]) -> None:
    """Drop the entries under a prefix, up to the first that is not ``wanted``, some at a time."""

    def drop_some(tables: Tables) -> bool:
        cursor = tables.txn.cursor()
        found = cursor.set_range(prefix)
        for _ in range(DROPPED_AT_ONCE):
            key = bytes(cursor.key()) if found else b""
            if not key.startswith(prefix) or not wanted(key):
                return True
            found = cursor.delete() and bool(cursor.key())
        return False

    while not write(drop_some):
        pass
