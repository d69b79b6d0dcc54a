"""Reads granted shards: whose turn it is, and how much is read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from headrace.codec.registry import find_codec
from headrace.consumers.held_shard import HeldShard
from headrace.core.errors import OffsetOutOfRange, UnknownStream, Unreachable
from headrace.core.model import StreamInfo
from headrace.core.ports import Grant, Log, ReadResult
from headrace.core.records.batch import Batch

SCAN_S = 0.02
"""How often a busy reader looks which other shards have something."""


class Limits(NamedTuple):
    """How much is read at once, and kept in memory."""

    prefetch: int
    """Records of one shard that are read and not done."""
    max_records: int
    """Records of one read."""
    max_bytes: int
    """Bytes of all shards together that are read and not done."""
    min_bytes: int
    """How many bytes of a shard are waited for before they are handed out."""
    max_wait_s: float
    """How long ``min_bytes`` are waited for: then fewer are handed out."""


class Reader:
    """Reads the log for one consumer. Used by the worker, under the lock of `HeldShards`; only
    `has_news` is called without it."""

    def __init__(
        self,
        records: Log,
        limits: Limits,
        decode: Callable[[bytes], Any] | None,
        after_trim: Callable[[Grant, int, OffsetOutOfRange], int],
    ) -> None:
        self._records = records
        self._limits = limits
        self._decode = decode
        self._after_trim = after_trim
        self._decoders: dict[str, tuple[Callable[[bytes], Any], Any]] = {}
        self._scanned_s = -inf
        self.seen = -1
        """The change counter of the backend when all shards were last looked at."""
        self.again_s = inf
        """When to look again, even if nothing is written until then."""

    def found(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        """The first of these shards that has something to hand out. None if none has: then all were
        looked at, and what is written later changes the counter from `seen`. While the backend does
        not answer, no shard has anything."""
        try:
            return self._found(turns, now_s)
        except Unreachable:
            return None

    def has_news(self) -> bool:
        """Whether something was written since all shards were looked at, as far as can be told."""
        try:
            return self._records.changes() != self.seen
        except Unreachable:
            return False

    def _found(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        self.again_s = inf
        scanned = now_s - self._scanned_s >= SCAN_S
        if scanned:
            self._scan(turns, now_s)
        held = self._first(turns, now_s)
        if held is None and not scanned:
            self._scan(turns, now_s)
            held = self._first(turns, now_s)
        return held

    def _first(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        for held in turns:
            if held.is_ahead or (held.has_more and self._read(held, len(turns), now_s)):
                return held
        return None

    def _scan(self, turns: Sequence[HeldShard], now_s: float) -> None:
        self._scanned_s = now_s
        self.seen = self._records.changes()
        idle = [held for held in turns if not (held.is_ahead or held.has_more)]
        ends = self._records.ends([(held.grant.stream, held.grant.shard) for held in idle])
        for held, end in zip(idle, ends, strict=True):
            held.has_more = end != held.at

    def _read(self, held: HeldShard, shards: int, now_s: float) -> bool:
        """Whether something of the shard is read ahead now."""
        limits = self._limits
        share = max(limits.max_bytes // shards, 1)
        records, nbytes = held.room(limits.prefetch, share)
        if records <= 0 or nbytes <= 0:
            return False  # full: this shard waits until some of it is done, others go on
        grant = held.grant
        try:
            reading = self._records.read(
                grant.stream,
                grant.shard,
                held.at,
                max_records=min(records, limits.max_records),
                max_bytes=nbytes,
            )
        except OffsetOutOfRange as why:
            held.go_on_at(self._after_trim(grant, held.at, why))
            return False
        except UnknownStream:
            held.has_more = False
            raise
        held.has_more = reading.next != held.at
        if not held.has_more or self._too_few(held, reading, now_s):
            return False
        batches = [self._decoded(grant.stream, batch) for batch in reading.batches]
        held.take_in(ReadResult(batches, reading.next))
        return True

    def _too_few(self, held: HeldShard, reading: ReadResult, now_s: float) -> bool:
        """Whether to wait for more: nothing of the read is kept then, and it is repeated."""
        limits = self._limits
        if limits.min_bytes <= 1 or sum(b.nbytes for b in reading.batches) >= limits.min_bytes:
            return False
        if held.few_since_s is None:
            held.few_since_s = now_s
        until_s = held.few_since_s + limits.max_wait_s
        if now_s >= until_s or sum(len(b) for b in reading.batches) >= limits.max_records:
            return False
        self.again_s = min(self.again_s, until_s)
        return True

    def _decoded(self, info: StreamInfo, batch: Batch) -> Batch:
        decoder = self._decoders.get(info.name)
        if decoder is None:
            codec = find_codec(info.codec)
            many = getattr(codec, "decode_many", None)
            decoder = (codec.decode, many) if self._decode is None else (self._decode, None)
            self._decoders[info.name] = decoder
        return batch.decoded_by(*decoder)
