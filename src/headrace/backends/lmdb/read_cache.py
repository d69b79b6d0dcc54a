"""Batches of which a read took only a part, kept for the read that goes on there.

A caller that reads a few records at a time would otherwise copy and verify a large batch again for
each few.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from headrace.core.model import Bounds
from headrace.core.records.batch import Batch

CACHED_BYTES_MAX = 32 * 1024 * 1024

_Shard = tuple[int, int]


class CachedRead(NamedTuple):
    """A batch that a read took a part of."""

    batch: Batch
    bounds: Bounds
    """The bounds of the shard when the batch was last asked for."""
    transaction: int
    """The last transaction at that time. While it is still the last one, nothing has changed."""


class ReadCache:
    """At most one batch per shard, and `CACHED_BYTES_MAX` of all."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._cached: OrderedDict[_Shard, CachedRead] = OrderedDict()
        self._nbytes = 0

    def holding(self, shard: _Shard, offset: int) -> CachedRead | None:
        """The batch of a shard, if it is cached and holds ``offset``."""
        cached = self._cached.get(shard)
        if cached is not None and cached.batch.offsets[0] <= offset <= cached.batch.offsets[-1]:
            return cached
        return None

    def keep(self, shard: _Shard, cached: CachedRead) -> None:
        with self._lock:
            self.drop(shard)
            self._cached[shard] = cached
            self._nbytes += cached.batch.nbytes
            while self._nbytes > CACHED_BYTES_MAX:
                self.drop(next(iter(self._cached)))

    def drop(self, shard: _Shard) -> None:
        with self._lock:
            cached = self._cached.pop(shard, None)
            if cached is not None:
                self._nbytes -= cached.batch.nbytes
