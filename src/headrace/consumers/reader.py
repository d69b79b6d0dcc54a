"""Reads granted shards: whose turn it is, and how much is read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from headrace.codec.registry import find_codec
from headrace.consumers.held_shard import HeldShard
from headrace.core.errors import OffsetOutOfRange, UnknownStream, Unreachable
from headrace.core.model import StreamInfo
from headrace.core.ports import Backend, Grant, ReadResult
from headrace.core.records.batch import Batch

SCAN_S = 0.02
"""So often a reader that is busy looks which other shards have something."""


class Limits(NamedTuple):
    """How much is read at once, and kept in memory."""

    prefetch: int
    """Records of one shard that are read and not done."""
    max_records: int
    """Records of one read."""
    max_bytes: int
    """Of all shards together that are read and not done."""
    min_bytes: int
    """So much is waited for, in each shard,"""
    max_wait_s: float
    """but no longer."""


class Reader:
    def __init__(
        self,
        backend: Backend,
        limits: Limits,
        decode: Callable[[bytes], Any] | None,
        after_trim: Callable[[Grant, int, OffsetOutOfRange], int],
    ) -> None:
        self._backend = backend
        self._limits = limits
        self._decode = decode
        self._after_trim = after_trim
        self._decoders: dict[str, tuple[Callable[[bytes], Any], Any]] = {}
        self._scanned_s = -inf
        self.seen = -1
        """What had been written when it last looked everywhere."""
        self.again_s = inf
        """When to look again, although nothing was written."""

    def found(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        """The first of these shards that has something to hand out; None when it has looked
        everywhere, and then what is written later differs from `seen`. While nobody answers there
        is nothing to hand out."""
        try:
            return self._found(turns, now_s)
        except Unreachable:
            return None

    def has_news(self) -> bool:
        """Whether something was written since it last looked everywhere, as far as can be told."""
        try:
            return self._backend.changes() != self.seen
        except Unreachable:
            return False

    def _found(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        self.again_s = inf
        scanned = now_s - self._scanned_s >= SCAN_S
        if scanned:
            self._scan(turns, now_s)
        holding = self._first(turns, now_s)
        if holding is None and not scanned:
            self._scan(turns, now_s)
            holding = self._first(turns, now_s)
        return holding

    def _first(self, turns: Sequence[HeldShard], now_s: float) -> HeldShard | None:
        for holding in turns:
            if holding.ahead or (holding.more and self._read(holding, len(turns), now_s)):
                return holding
        return None

    def _scan(self, turns: Sequence[HeldShard], now_s: float) -> None:
        self._scanned_s = now_s
        self.seen = self._backend.changes()
        idle = [holding for holding in turns if not (holding.ahead or holding.more)]
        ends = self._backend.ends([(h.grant.stream, h.grant.shard) for h in idle])
        for holding, end in zip(idle, ends, strict=True):
            holding.more = end != holding.at

    def _read(self, holding: HeldShard, shards: int, now_s: float) -> bool:
        """Whether there is now something ahead."""
        limits = self._limits
        share = max(limits.max_bytes // shards, 1)
        records, nbytes = holding.room(limits.prefetch, share)
        if records <= 0 or nbytes <= 0:
            return False  # full: this one waits until some of it is done, others go on
        grant = holding.grant
        try:
            reading = self._backend.read(
                grant.stream,
                grant.shard,
                holding.at,
                max_records=min(records, limits.max_records),
                max_bytes=nbytes,
            )
        except OffsetOutOfRange as why:
            holding.go_on_at(self._after_trim(grant, holding.at, why))
            return False
        except UnknownStream:
            holding.more = False
            raise
        holding.more = reading.next != holding.at
        if not holding.more or self._too_few(holding, reading, now_s):
            return False
        batches = [self._decoded(grant.stream, batch) for batch in reading.batches]
        holding.take_in(ReadResult(batches, reading.next))
        return True

    def _too_few(self, holding: HeldShard, reading: ReadResult, now_s: float) -> bool:
        """Whether to wait for more: it is read again then, as nothing of it was kept."""
        limits = self._limits
        if limits.min_bytes <= 1 or sum(b.nbytes for b in reading.batches) >= limits.min_bytes:
            return False
        if holding.few_since_s is None:
            holding.few_since_s = now_s
        until_s = holding.few_since_s + limits.max_wait_s
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
