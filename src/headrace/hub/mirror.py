"""Copies a stream from one hub into another, shard by shard.

The mirror itself remembers nothing. The target stores the position of the copy together with the
records, in one step. So a copy that was killed goes on without doubles and without loss.
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
from headrace.core.ports import Copying, Log, ReadResult, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.hub.hub import Hub
from headrace.process.clock import now_ms

log = logging.getLogger("headrace")

TURN_RECORDS = 20_000
TURN_BYTES = COMMIT_BYTES_MAX // 2
"""The most that one shard copies before the next shard has its turn."""
FOLLOW_WAIT_S = 0.5


@dataclass(slots=True)
class ShardCopy:
    """The progress of the copy of one shard, in offsets of the source."""

    shard: int
    at: int
    """The next offset to copy."""
    end: int
    """The end of the source shard when the copy began."""
    already: int
    """How many offsets of the source earlier copies have passed, gaps included."""
    copied: int = 0
    """How many records this copy has copied."""
    missing: int = 0
    """How many offsets this copy has passed over because the source had trimmed them."""

    @property
    def complete(self) -> bool:
        return self.at >= self.end


class Mirrored(NamedTuple):
    """The progress of the copy of a stream."""

    stream: str
    target: str
    shards: Sequence[ShardCopy]

    @property
    def records(self) -> int:
        return sum(shard.copied for shard in self.shards)

    @property
    def complete(self) -> bool:
        """Whether the target has all records that the source held when the copy began."""
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
    """Copy a stream with every field of its records, up to its present end. With ``follow`` go on
    with new records until ``stopped`` returns True.

    A second call goes on where the last one ended, also if that one was killed. A missing stream is
    created in the target. A stream of the target that holds other records is refused.

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
    records = target.log
    records.capabilities.require("copying")
    stream = source.log.stream(checked_name(name))
    into = _made(records, stream, checked_name(name if as_name is None else as_name))
    identity = source.log.identity
    if (identity, stream.id) == (records.identity, into.id):
        raise BadSetting(
            f"{name} would be copied onto itself: name another hub, or another stream with --as "
            "(as_name)"
        )
    with ExitStack() as stack:
        copies: list[tuple[ShardCopy, Copying]] = []
        for shard in range(len(stream.shards)):
            origin = f"{identity}/{stream.id}:{shard}"
            copying = stack.enter_context(closing(records.copying(into, shard, origin)))
            copies.append((_begun(source.log, stream, records, into, copying, shard), copying))
        found = Mirrored(stream.name, into.name, [copy for copy, _ in copies])
        mirroring = _Mirroring(source.log, stream, into, follow, skip_missing)
        progress(found)
        while not stopped():
            try:
                seen = source.log.changes()
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
                source.log.wait(seen, FOLLOW_WAIT_S)
        return found


class _Mirroring:
    def __init__(
        self,
        source: Log,
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
        """Copy some records of one shard; False if there were none to copy."""
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
                "another mirror copied the same stream there meanwhile; nothing is doubled. Run "
                "this mirror again to go on where the other one ended",
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
                "never copied; say --skip-missing (skip_missing=True) to go on after them"
            ) from None
        log.warning("shard=%s: %d offsets from %d on are missing", place, missing, copy.at)
        copy.missing += missing
        return ReadResult((), why.start)


def _made(target: Log, stream: StreamInfo, name: str) -> StreamInfo:
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
                f"stream {name!r} exists with {what} {has}, and its source has {wanted}: copy "
                "it under another name with --as (as_name)"
            )
    return there


def _begun(
    source: Log,
    stream: StreamInfo,
    target: Log,
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
            f"{stream.name}: copy it under another name with --as (as_name)"
        )
    return ShardCopy(shard, start, end, 0)


def _went_back(place: str, at: int, end: int) -> Refused:
    return Refused(
        f"{place} was copied up to offset {at} and ends at {end} now: the source went back, as "
        "after a restore; copy it under another name with --as (as_name)"
    )


def _holds_records(target: Log, into: StreamInfo, shard: int) -> bool:
    """Whether a shard of the target holds records. Its bounds alone do not say it, because aborted
    records take offsets too."""
    at, end = target.bounds(into, shard)
    while at < end:
        reading = target.read(into, shard, at, end, max_records=1, max_bytes=1)
        if any(map(len, reading.batches)):
            return True
        assert reading.next > at, f"{into.name}:{shard}: a read at {at} of {end} did not advance"
        at = reading.next
    return False


def _pieces(reading: ReadResult) -> Iterator[tuple[Batch, int]]:
    """The records of a read as batches that fit one commit each, each with the offset after it."""
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
    """The batches as one batch: records that were appended one by one are copied together."""
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return Batch.of_rows([])
    stream, shard = batches[0].stream, batches[0].shard
    offsets = list(chain.from_iterable(batch.offsets for batch in batches))
    if all(batch.is_rows for batch in batches):
        rows = [row for batch in batches for row in batch.rows]
        return Batch.of_rows(rows, stream=stream, shard=shard, offsets=offsets)
    arrow = pa.concat_batches([batch.columns for batch in batches])
    return Batch.of_arrow(arrow, stream=stream, shard=shard, offsets=offsets)
