"""What is read from and written to the tables inside one LMDB transaction."""

from __future__ import annotations

from typing import Any

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_row
from headrace.backends.lmdb.environment import Environment
from headrace.core.errors import BadBatch, ShardClosed, UnknownStream
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import Versioned
from headrace.core.transaction import Part


class Tables:
    """One transaction's view; the write half serves `headrace.core.transaction`."""

    def __init__(self, environment: Environment, txn: Any) -> None:
        self._store = environment.identity.store
        self.txn = txn

    # Streams and shards

    def find_stream(self, name: str) -> StreamInfo:
        key = stored_row.name_key(name)
        row = self.txn.get(key)
        if row is None:
            raise UnknownStream(name)
        return self.stream_info(stored_row.unpacked(key, row, int))

    def stream_info(self, stream_id: int) -> StreamInfo:
        key = stored_row.id_key(stream_id)
        row = self.txn.get(key)
        stream = stored_row.unpacked(key, row, stored_row.StreamRow)
        cursor = self.txn.cursor()
        prefix = stored_row.shards_prefix(stream_id)
        shards = tuple(
            stored_row.unpacked(key, row, stored_row.ShardRow).shard(stored_row.shard_of(key))
            for key, row in stored_row.ranged(cursor, prefix)
        )
        return stream.info(stream_id, shards)

    def shard_row(self, stream: StreamInfo, shard: int) -> stored_row.ShardRow:
        key = stored_row.shard_key(stream.id, shard)
        row = self.txn.get(key)
        if row is None:  # it was there when the stream was looked up
            raise UnknownStream(stream.name)
        return stored_row.shard_row(key, bytes(row))

    def put_row(self, key: bytes, value: Any) -> None:
        self.txn.put(key, stored_row.sealed_row(key, stored_row.packed(value), self.txn.id()))

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        start = self.shard_row(stream, shard).start
        return Bounds(start, self.end_after(stream, shard, start))

    def end_after(self, stream: StreamInfo, shard: int, start: int) -> int:
        """The end of the last batch; ``start`` if there is none."""
        cursor = self.txn.cursor()
        beyond = batches.key_of(stream.id, shard, 2**64 - 1)
        found = cursor.prev() if cursor.set_range(beyond) else cursor.last()
        key = bytes(cursor.key()) if found else b""
        if not key.startswith(batches.shard_prefix(stream.id, shard)):
            return start
        end = batches.place_of(key)[2]
        try:
            batches.header(self._store, key, cursor.value())
        except batches.Unreadable as why:
            raise BadBatch(stream.name, shard, end - 1, end, str(why)) from None
        return end

    # For `headrace.core.transaction`

    def get(self, key: bytes) -> Versioned | None:
        stored_key = stored_row.value_key(key)
        row = self.txn.get(stored_key)
        return None if row is None else stored_row.opened_row(stored_key, row)

    def put(self, key: bytes, value: bytes | None) -> None:
        stored_key = stored_row.value_key(key)
        if value is None:
            self.txn.delete(stored_key)
        else:
            self.txn.put(stored_key, stored_row.sealed_row(stored_key, value, self.txn.id()))

    def end(self, stream: StreamInfo, shard: int) -> int:
        row = self.shard_row(stream, shard)
        if not row.open:
            raise ShardClosed(stream.name, shard)
        return self.end_after(stream, shard, row.start)

    def add(self, part: Part, base: int) -> None:
        key = batches.key_of(part.stream.id, part.shard, base + part.records)
        value = batches.sealed(part.content, self._store, key, base)
        self.txn.put(key, value)
