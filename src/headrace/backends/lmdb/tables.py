"""The stored streams, shards, batches and values, inside one LMDB transaction."""

from __future__ import annotations

from typing import Any

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.backends.lmdb.environment import Environment
from headrace.core.errors import BadBatch, ShardClosed, UnknownStream
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import Versioned
from headrace.core.transaction import Part


class Tables:
    """What one transaction sees. The write half serves `headrace.core.transaction`."""

    def __init__(self, environment: Environment, txn: Any) -> None:
        self._store = environment.identity.store
        self.txn = txn

    # Streams and shards

    def find_stream(self, name: str) -> StreamInfo:
        key = stored_value.name_key(name)
        stored = self.txn.get(key)
        if stored is None:
            raise UnknownStream(name)
        return self.stream_info(stored_value.unpacked(key, stored, int))

    def stream_info(self, stream_id: int) -> StreamInfo:
        key = stored_value.id_key(stream_id)
        stored = self.txn.get(key)
        stream = stored_value.unpacked(key, stored, stored_value.StoredStream)
        cursor = self.txn.cursor()
        prefix = stored_value.shards_prefix(stream_id)
        shards = tuple(
            stored_value.unpacked(key, stored, stored_value.StoredShard).shard(
                stored_value.shard_of(key)
            )
            for key, stored in stored_value.ranged(cursor, prefix)
        )
        return stream.info(stream_id, shards)

    def stored_shard(self, stream: StreamInfo, shard: int) -> stored_value.StoredShard:
        key = stored_value.shard_key(stream.id, shard)
        stored = self.txn.get(key)
        if stored is None:  # the shard existed when the stream was looked up
            raise UnknownStream(stream.name)
        return stored_value.opened_shard(key, bytes(stored))

    def put_stored(self, key: bytes, value: Any) -> None:
        self.txn.put(key, stored_value.sealed(key, stored_value.packed(value), self.txn.id()))

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        start = self.stored_shard(stream, shard).start
        return Bounds(start, self.end_after(stream, shard, start))

    def end_after(self, stream: StreamInfo, shard: int, start: int) -> int:
        """The end of the shard's last batch; ``start`` if there is none."""
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
        stored_key = stored_value.value_key(key)
        stored = self.txn.get(stored_key)
        return None if stored is None else stored_value.opened(stored_key, stored)

    def put(self, key: bytes, value: bytes | None) -> None:
        stored_key = stored_value.value_key(key)
        if value is None:
            self.txn.delete(stored_key)
        else:
            self.txn.put(stored_key, stored_value.sealed(stored_key, value, self.txn.id()))

    def end(self, stream: StreamInfo, shard: int) -> int:
        found = self.stored_shard(stream, shard)
        if not found.open:
            raise ShardClosed(stream.name, shard)
        return self.end_after(stream, shard, found.start)

    def add(self, part: Part, base: int) -> None:
        key = batches.key_of(part.stream.id, part.shard, base + part.records)
        value = batches.sealed(part.content, self._store, key, base)
        self.txn.put(key, value)
