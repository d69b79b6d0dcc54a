"""Batches that a read left half unread, kept for the read that goes on there.

Who reads a few records at a time would otherwise copy and verify a large batch again for each few.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from headrace.core.model import Bounds
from headrace.core.records.batch import Batch

LEFTOVERS_BYTES_MAX = 32 * 1024 * 1024

_Shard = tuple[int, int]


class CachedRead(NamedTuple):
    batch: Batch
    bounds: Bounds
    """Of the shard, when the batch was last asked for,"""
    transaction: int
    """at that time: nothing has changed as long as this is the last one."""


class ReadCache:
    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: OrderedDict[_Shard, CachedRead] = OrderedDict()
        self._nbytes = 0

    def holding(self, shard: _Shard, offset: int) -> CachedRead | None:
        """The one that holds this offset, if it is there."""
        left = self._kept.get(shard)
        if left is not None and left.batch.offsets[0] <= offset <= left.batch.offsets[-1]:
            return left
        return None

    def keep(self, shard: _Shard, left: CachedRead) -> None:
        with self._lock:
            self.drop(shard)
            self._kept[shard] = left
            self._nbytes += left.batch.nbytes
            while self._nbytes > LEFTOVERS_BYTES_MAX:
                self.drop(next(iter(self._kept)))

    def drop(self, shard: _Shard) -> None:
        with self._lock:
            left = self._kept.pop(shard, None)
            if left is not None:
                self._nbytes -= left.batch.nbytes
