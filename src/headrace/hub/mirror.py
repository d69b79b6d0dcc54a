"""Copies a stream from one hub into another, shard by shard.

Nothing is remembered here: where the copy has come to is stored in the target together with the
records, in one step, so that a copy that was killed goes on without doubles and without loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import pyarrow as pa

from headrace.core.errors import (
    BadSetting,
    Fenced,
    OffsetOutOfRange,
    Refused,
    StreamExists,
    Unreachable,
)
from headrace.core.model import StreamInfo
from headrace.core.names import checked_name
from headrace.core.ports import Backend, Copying, ReadResult, StreamSpec
from headrace.core.records.batch import COMMIT_BYTES_MAX, Batch
from headrace.hub.hub import Hub
from headrace.process.clock import now_ms

log = logging.getLogger("headrace")

TURN_RECORDS = 20_000
TURN_BYTES = COMMIT_BYTES_MAX // 2
"""What one shard copies before the next has its turn."""
FOLLOW_WAIT_S = 0.5


@dataclass(slots=True)
class ShardCopy:
    """How far the copy of one shard is, in offsets of the source."""

    shard: int
    at: int
    end: int
    """Where the source ended when the copy began."""
    already: int
    """Offsets of the source that were copied before, gaps among them included."""
    copied: int = 0
    """Records."""
    missing: int = 0
    """Offsets that were gone from the source, and passed over."""

    @property
    def complete(self) -> bool:
        return self.at >= self.end


class Mirrored(NamedTuple):
    """How far a copy is."""

    stream: str
    target: str
    shards: Sequence[ShardCopy]

    @property
    def records(self) -> int:
        return sum(shard.copied for shard in self.shards)

    @property
    def complete(self) -> bool:
        """Whether all is there that the source held when the copy began."""
        return all(shard.complete for shard in self.shards)


def mirror(
    source: Hub,
    target: Hub,
    name: str,
    *,
    as_name: str | None = None,
    follow: bool = False,
    skip_missing: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    progress: Callable[[Mirrored], None] = lambda found: None,
) -> Mirrored:
    """Copy a stream with every field of its records, up to where it ends now; with ``follow`` go on
    with what comes, until ``stopped`` says so.

    Called again, it goes on where the last call ended, however that ended. The target's stream is
    created if it is missing; one that holds other records is refused.

    >>> import headrace
    >>> here, there = headrace.open("memory:"), headrace.open("memory:")
    >>> orders = here.create_stream("shop/orders", shards=1)
    >>> ids = orders.append_many([(b"first", "ann"), (b"second", "bob")])
    >>> mirror(here, there, "shop/orders").records
    2
    >>> [record.value for record in there.stream("shop/orders").read(0)]
    [b'first', b'second']
    >>> mirror(here, there, "shop/orders").records
    0
    """
    backend = target.backend
    backend.capabilities.require("copying")
    stream = source.backend.stream(checked_name(name))
    into = _made(backend, stream, checked_name(name if as_name is None else as_name))
    identity = source.backend.identity
    if (identity, stream.id) == (backend.identity, into.id):
        raise BadSetting(
            f"{name} would be copied onto itself: name another hub, or another stream with --as "
            "(as_name)"
        )
    with ExitStack() as stack:
        copies: list[tuple[ShardCopy, Copying]] = []
        for shard in range(len(stream.shards)):
            origin = f"{identity}/{stream.id}:{shard}"
            copying = stack.enter_context(closing(backend.copying(into, shard, origin)))
            copies.append((_begun(source.backend, stream, backend, into, copying, shard), copying))
        found = Mirrored(stream.name, into.name, [copy for copy, _ in copies])
        mirroring = _Mirroring(source.backend, stream, into, follow, skip_missing)
        progress(found)
        while not stopped():
            try:
                seen = source.backend.changes()
            except Unreachable:
                if not follow:
                    raise
                continue
            moved = False
            for copy, copying in copies:
                if not stopped() and mirroring.turn(copy, copying):
                    moved = True
                    progress(found)
            if not follow and found.complete:
                break
            if not moved:
                source.backend.wait(seen, FOLLOW_WAIT_S)
        return found


class _Mirroring:
    def __init__(
        self,
        source: Backend,
        stream: StreamInfo,
        into: StreamInfo,
        follow: bool,
        skip_missing: bool,
    ) -> None:
        self._source = source
        self._stream = stream
        self._into = into
        self._follow = follow
        self._skip_missing = skip_missing

    def turn(self, copy: ShardCopy, copying: Copying) -> bool:
        """Whether there was something to copy."""
        if copy.complete and not self._follow:
            return False
        try:
            reading = self._read(copy)
        except Unreachable:
            if not self._follow:
                raise
            return False
        if reading.next == copy.at:
            return False
        try:
            for batch, behind in _pieces(reading):
                copying.append(batch, behind)
                copy.at = behind
                copy.copied += len(batch)
        except Fenced:
            raise Fenced(
                "mirror",
                self._into.name,
                copy.shard,
                "another mirror copied the same stream there meanwhile; nothing is doubled: run "
                "this one again, and it goes on behind the other",
                copying=True,
            ) from None
        return True

    def _read(self, copy: ShardCopy) -> ReadResult:
        try:
            return self._source.read(
                self._stream,
                copy.shard,
                copy.at,
                None if self._follow else copy.end,
                max_records=TURN_RECORDS,
                max_bytes=TURN_BYTES,
            )
        except OffsetOutOfRange as why:
            return self._behind_missing(copy, why)

    def _behind_missing(self, copy: ShardCopy, why: OffsetOutOfRange) -> ReadResult:
        place = f"{self._stream.name}:{copy.shard}"
        if why.start <= copy.at:
            raise _went_back(place, copy.at, why.end) from None
        missing = why.start - copy.at
        if not self._skip_missing:
            raise Refused(
                f"{place}: {missing} offsets from {copy.at} on are gone from the source and were "
                "never copied; to go on behind them say --skip-missing (skip_missing=True)"
            ) from None
        log.warning("shard=%s: %d offsets from %d on are missing", place, missing, copy.at)
        copy.missing += missing
        return ReadResult((), why.start)


def _made(target: Backend, stream: StreamInfo, name: str) -> StreamInfo:
    spec = StreamSpec(
        name=name,
        shards=len(stream.shards),
        codec=stream.codec,
        routing=stream.routing,
        retention_s=stream.retention_s,
        retention_bytes=stream.retention_bytes,
        created_ms=now_ms(),
    )
    try:
        return target.create_stream(spec)
    except StreamExists:
        there = target.stream(name)
    for what, has, wanted in (
        ("shards", len(there.shards), spec.shards),
        ("codec", there.codec, spec.codec),
        ("routing", there.routing, spec.routing),
    ):
        if has != wanted:
            raise StreamExists(
                f"stream {name!r} is there with {what} {has}, and its source has {wanted}: copy "
                "under another name with --as (as_name)"
            )
    return there


def _begun(
    source: Backend,
    stream: StreamInfo,
    target: Backend,
    into: StreamInfo,
    copying: Copying,
    shard: int,
) -> ShardCopy:
    start, end = source.bounds(stream, shard)
    if copying.at is not None and copying.at > end:
        raise _went_back(f"{stream.name}:{shard}", copying.at, end)
    if copying.at is not None:
        return ShardCopy(shard, copying.at, end, max(min(copying.at, end) - start, 0))
    if _holds_records(target, into, shard):
        raise Refused(
            f"{into.name}:{shard} of the target holds records that are not known to be copied from "
            f"{stream.name}: copy under another name with --as (as_name)"
        )
    return ShardCopy(shard, start, end, 0)


def _went_back(place: str, at: int, end: int) -> Refused:
    return Refused(
        f"{place} was copied up to offset {at} and ends at {end} now: the source went back, as "
        "after a restore; copy it under another name with --as (as_name)"
    )


def _holds_records(target: Backend, into: StreamInfo, shard: int) -> bool:
    """Offsets alone do not tell: what was aborted takes some too."""
    at, end = target.bounds(into, shard)
    while at < end:
        reading = target.read(into, shard, at, end, max_records=1, max_bytes=1)
        if any(map(len, reading.batches)):
            return True
        assert reading.next > at, f"{into.name}:{shard}: a read at {at} of {end} led nowhere"
        at = reading.next
    return False


def _pieces(reading: ReadResult) -> Iterator[tuple[Batch, int]]:
    """What was read as batches that fit one commit each, with the position behind each."""
    whole = _joined([batch for batch in reading.batches if len(batch)])
    done = 0
    while done < len(whole):
        rest = whole.part(done, len(whole))
        fitting = len(rest) if rest.nbytes <= COMMIT_BYTES_MAX else rest.fitting(COMMIT_BYTES_MAX)
        piece = rest.part(0, max(fitting, 1))
        done += len(piece)
        yield piece, piece.offsets[-1] + 1 if done < len(whole) else reading.next
    if not len(whole):
        yield whole, reading.next


def _joined(batches: Sequence[Batch]) -> Batch:
    """As one: what was appended record by record is not copied so."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return Batch(rows=[])
    stream, shard = batches[0].stream, batches[0].shard
    offsets = list(chain.from_iterable(batch.offsets for batch in batches))
    if all(batch.is_rows for batch in batches):
        rows = [row for batch in batches for row in batch.rows]
        return Batch(rows=rows, stream=stream, shard=shard, offsets=offsets)
    arrow = pa.concat_batches([batch.columns for batch in batches])
    return Batch(arrow=arrow, stream=stream, shard=shard, offsets=offsets)
