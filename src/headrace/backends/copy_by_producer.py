"""Copy into a shard of a backend that remembers the last append of each producer.

The copy is a producer. The number of each of its appends is the offset in the source behind the
copied records. So the backend itself knows how far the copy has come."""

from __future__ import annotations

from typing import Protocol

from headrace.core import store_keys, transaction
from headrace.core.errors import Fenced
from headrace.core.model import StreamInfo
from headrace.core.ports import ABSENT, NOTHING_BEFORE, Append, Producer, Records, Store
from headrace.core.quantities import shown_size
from headrace.core.records.batch import Batch
from headrace.core.records.limits import check_shard, too_large
from headrace.core.records.row import COMMIT_BYTES_MAX


class RemembersProducers(Records, Store, Protocol):
    """A backend that keeps what it remembers of producers among its small values."""


class CopyByProducer:
    """The copy of one source shard into one shard of this backend."""

    def __init__(
        self, backend: RemembersProducers, stream: StreamInfo, shard: int, origin: str
    ) -> None:
        check_shard(stream, shard)
        backend.bounds(stream, shard)  # raises at once if the stream is gone
        self._backend = backend
        self._stream = stream
        self._shard = shard
        self._producer = f"copy into {shard} of {origin}"
        self._key = store_keys.producer_key(stream.id, self._producer)
        found = backend.get(self._key)
        last = NOTHING_BEFORE if found is None else transaction.last_seq(found.value)
        self.at: int | None = None if last == NOTHING_BEFORE else last

    def append(self, batch: Batch, next: int) -> None:
        assert self.at is None or next > self.at, f"{next} after {self.at}"
        if not len(batch):
            self._pass(next)
        elif batch.nbytes > COMMIT_BYTES_MAX:
            raise too_large(batch, shown_size(COMMIT_BYTES_MAX))
        else:
            producer = Producer(self._producer, next, self._last)
            self._backend.append([Append(self._stream, self._shard, batch)], producer)
        self.at = next

    def close(self) -> None:
        """There is nothing to close."""

    @property
    def _last(self) -> int:
        return NOTHING_BEFORE if self.at is None else self.at

    def _pass(self, next: int) -> None:
        """Move behind a gap in the source, without a record."""
        self._backend.bounds(self._stream, self._shard)  # raises if the stream is gone
        found = self._backend.get(self._key)
        kept, version = (b"", ABSENT) if found is None else (found.value, found.version)
        passed = {self._key: transaction.remembering(kept, next)}
        alone = transaction.last_seq(kept) == self._last
        if not alone or not self._backend.transact({self._key: version}, passed):
            raise Fenced(self._producer, self._stream.name, self._shard, copying=True)
