"""A stream of a hub: append records to it and read them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from headrace.core.errors import BadSetting, Unreachable
from headrace.core.model import OFFSET_MAX, Bounds, Record, RecordId, Slice, StreamInfo
from headrace.core.ports import Append, Backend, Codec, Place, Producer
from headrace.core.quantities import Duration, Instant, Size, seconds, size_bytes
from headrace.core.records.batch import Batch
from headrace.core.records.build import keyed_batch
from headrace.core.records.conform import conformed
from headrace.core.records.limits import check_shard
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.core.records.schema import read_schema
from headrace.process.clock import now_ms
from headrace.streams.appender import Appender
from headrace.streams.encoding import Headers, Key, encoded_pairs, key_bytes, row_of
from headrace.streams.sharding import CommitPart, Sharding
from headrace.streams.start import Where, offset_of

READ_RECORDS = 10_000
READ_BYTES = 1024 * 1024
FOLLOW_WAIT_S = 0.5


class Stream:
    """Made by `Hub.create_stream` and `Hub.stream`; safe to use from several threads."""

    def __init__(self, backend: Backend, info: StreamInfo, codec: Codec) -> None:
        self._backend = backend
        self._codec = codec
        self.info = info
        self._sharding = Sharding(info)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def shards(self) -> int:
        """How many shards there are, open and closed."""
        return len(self.info.shards)

    def __repr__(self) -> str:
        return f"<Stream {self.name} shards={self.shards} codec={self.info.codec}>"

    # Appending

    def append(
        self,
        value: Any,
        key: Key = None,
        *,
        headers: Headers = (),
        timestamp: Instant | None = None,
        sequence: int = 0,
        flags: int = 0,
        trace: bytes | str | None = None,
        shard: int | None = None,
        producer: str | None = None,
        producer_seq: int | None = None,
    ) -> RecordId:
        """Append one record. It is durable on return.

        A value of None is a tombstone. An append with the same ``producer`` and ``producer_seq`` as
        an earlier one appends nothing and returns the earlier id.

        >>> import headrace
        >>> orders = headrace.open("memory:").create_stream("shop/orders", shards=1, codec="json")
        >>> str(orders.append({"id": 1}, key="ann"))
        'shop/orders:0+0'
        """
        by = producer_of(producer, producer_seq)
        row = row_of(self._codec, value, key, headers, timestamp, sequence, flags, trace)
        target = self._sharding.shard_for(row.key, shard, by)
        place = self._backend.append([Append(self.info, target, Batch.of_rows([row]))], by)[0]
        return RecordId(self.name, place.shard, place.base)

    def append_many(
        self,
        pairs: Iterable[tuple[Any, Key]],
        *,
        shard: int | None = None,
        producer: str | None = None,
        producer_seq: int | None = None,
    ) -> list[RecordId]:
        """Append ``(value, key)`` pairs; returns their ids in the same order, once all are durable.

        Up to 4 MiB are one commit: all or nothing, where the backend offers ``atomic_append``. More
        than that is several commits, in order; with a producer it is refused."""
        by = producer_of(producer, producer_seq)
        keys, data = encoded_pairs(self._codec, pairs)
        ids: list[RecordId] = []
        if keys:
            batch = keyed_batch(keys, data, now_ms())
            parts = self._sharding.parts(batch, keys, shard, by, each=True)
            for part, places in self._append_parts(parts, by):
                ids += self._ids(part, places)
        return ids

    def append_arrow(
        self,
        batch: pa.RecordBatch | pa.Table,
        *,
        shard: int | None = None,
        producer: str | None = None,
        producer_seq: int | None = None,
    ) -> list[Slice]:
        """Append an Arrow batch; returns the slices that it became, once all are durable.

        The column ``data`` holds encoded values. The other columns of `headrace.SCHEMA` are
        optional. Without ``shard`` the keys choose the shards. Up to 4 MiB are one commit. A row
        that is too large is refused by its number, before anything is written."""
        by = producer_of(producer, producer_seq)
        taken = conformed(batch, now_ms())
        done: list[Slice] = []
        for part, places in self._append_parts(self._sharding.parts(taken, None, shard, by), by):
            for append, place in zip(part.appends, places, strict=True):
                end = place.behind(len(append.batch))
                done.append(Slice(self.name, place.shard, place.base, end))
        return done

    def appender(
        self,
        *,
        linger: Duration = "5ms",
        max_records: int = 1_000,
        max_bytes: Size = "1MiB",
    ) -> Appender:
        """Append in the background: records are gathered for up to ``linger``. Use it in a ``with``
        block.

        >>> import headrace
        >>> orders = headrace.open("memory:").create_stream("shop/orders", shards=1, codec="json")
        >>> with orders.appender(linger="5ms") as out:
        ...     pending = out.append({"id": 2}, key="bob")
        >>> pending.result()
        RecordId(stream='shop/orders', shard=0, offset=0)
        """
        _check_count(max_records)
        limit = size_bytes(max_bytes, what="max_bytes")
        if not 1 <= limit <= COMMIT_BYTES_MAX:
            raise BadSetting(f"max_bytes {max_bytes}: 1 to {COMMIT_BYTES_MAX}")
        linger_s = seconds(linger, what="linger")
        return Appender(
            self._backend,
            self.info,
            self._codec,
            self._sharding.shard_for,
            linger_s,
            max_records,
            limit,
        )

    # Reading

    def read(
        self,
        shard: int,
        start: Where = "earliest",
        end: int | None = None,
        *,
        follow: bool = False,
        max_records: int = READ_RECORDS,
        max_bytes: Size = READ_BYTES,
    ) -> Iterator[Record]:
        """The records of a shard in order, up to its end of now; with ``follow`` also those that
        come later, for ever.

        ``start`` is "earliest", "latest", an offset, or a time (the first record not earlier).
        ``max_records`` and ``max_bytes`` bound what one read of the log takes into memory.

        >>> import headrace
        >>> orders = headrace.open("memory:").create_stream("shop/orders", shards=1, codec="json")
        >>> ids = orders.append_many([({"id": 1}, "ann"), ({"id": 2}, "bob")])
        >>> [record.value["id"] for record in orders.read(0, start=1)]
        [2]
        """
        batches = self._batches(shard, start, end, follow, max_records, size_bytes(max_bytes))
        decode, decode_many = self._codec.decode, getattr(self._codec, "decode_many", None)
        # Not itertools.chain: if two threads share one, it frees a generator while that runs.
        return (
            record
            for batch in batches
            for record in batch.decoded_by(decode, decode_many).records()
        )

    def read_arrow(
        self,
        shard: int,
        start: Where = "earliest",
        end: int | None = None,
        *,
        max_records: int = READ_RECORDS,
        max_bytes: Size = READ_BYTES,
    ) -> pa.RecordBatchReader:
        """The records of `read` as Arrow batches, read as they are asked for. ``.read_all()`` makes
        a table of them."""
        batches = self._batches(shard, start, end, False, max_records, size_bytes(max_bytes))
        schema = read_schema(self.name, shard)
        return pa.RecordBatchReader.from_batches(schema, (batch.arrow for batch in batches))

    def bounds(self, shard: int) -> Bounds:
        """The first kept offset of a shard, and the offset that its next record will get."""
        check_shard(self.info, shard)
        return self._backend.bounds(self.info, shard)

    def trim(self, shard: int, before: int) -> None:
        """Drop the records of a shard before an offset, for good."""
        self._backend.capabilities.require("trim")
        _check_offset("before", before)
        self._backend.trim(self.info, shard, before)

    def split(self, shard: int) -> NoReturn:
        """Close a shard and open two in its place, each with half of its keys. No backend can do
        that yet: raises `Unsupported` with the reason that ``hub.capabilities`` gives."""
        check_shard(self.info, shard)
        raise self._backend.capabilities.refusal("split")

    def merge(self, shard: int, neighbour: int) -> NoReturn:
        """Close two shards and open one in their place. No backend can do that yet."""
        check_shard(self.info, shard)
        check_shard(self.info, neighbour)
        raise self._backend.capabilities.refusal("merge")

    def changes(self) -> int:
        """A number that changes with everything that any process writes to the hub."""
        return self._backend.changes()

    def wait(self, seen: int, timeout: Duration) -> int:
        """Wait until `changes` differs from ``seen``, or for ``timeout``; returns `changes`."""
        return self._backend.wait(seen, seconds(timeout))

    # Private

    def _batches(
        self,
        shard: int,
        start: Where,
        end: int | None,
        follow: bool,
        max_records: int,
        max_bytes: int,
    ) -> Iterator[Batch]:
        _check_count(max_records)
        if max_bytes < 1:
            raise BadSetting(f"max_bytes {max_bytes}: at least 1")
        bounds = self.bounds(shard)
        at = offset_of(self._backend, self.info, shard, start, "start")
        if end is not None:
            _check_offset("end", end)
        if end is not None and end < at:
            raise BadSetting(f"end {end} lies before start {at}")
        stop = end if follow else min(bounds.end, bounds.end if end is None else end)
        return self._read_on(shard, at, stop, follow, max_records, max_bytes)

    def _read_on(
        self, shard: int, at: int, stop: int | None, follow: bool, max_records: int, max_bytes: int
    ) -> Iterator[Batch]:
        """The batches from ``at`` up to ``stop``; None means for ever."""
        backend = self._backend
        limits = {"max_records": max_records, "max_bytes": max_bytes}
        while stop is None or at < stop:
            try:
                found = backend.read(self.info, shard, at, stop, **limits)
                if found.next == at:
                    # The number first, then one more read: else a record could slip in between.
                    seen = backend.changes()
                    found = backend.read(self.info, shard, at, stop, **limits)
                    if found.next == at:
                        backend.wait(seen, FOLLOW_WAIT_S)
            except Unreachable:
                if not follow:
                    raise
                continue  # a follower waits for a backend that does not answer, too
            yield from found.batches
            at = found.next

    def _append_parts(
        self, parts: Iterator[CommitPart], producer: Producer | None
    ) -> Iterator[tuple[CommitPart, list[Place]]]:
        """Append one part after the other; yields each with its places. While a part is being
        written, the next one is prepared, and written after it."""
        first, second = next(parts, None), next(parts, None)
        if first is None:
            return
        if second is None:
            yield first, self._append_all(first.appends, producer)
            return
        with ThreadPoolExecutor(1, "headrace-append") as pool:
            before, written = first, pool.submit(self._append_all, first.appends, producer)
            for part in itertools.chain((second,), parts):
                yield before, written.result()
                before, written = part, pool.submit(self._append_all, part.appends, producer)
            yield before, written.result()

    def _append_all(self, appends: Sequence[Append], producer: Producer | None) -> list[Place]:
        places = self._backend.append(appends, producer)
        if producer and [place.shard for place in places] != [append.shard for append in appends]:
            raise BadSetting(
                f"producer {producer.name!r} gave producer_seq {producer.seq} to another append "
                "before"
            )
        return places

    def _ids(self, part: CommitPart, places: Sequence[Place]) -> list[RecordId]:
        """The ids of a part's records, in the order in which they were given."""
        following = {
            place.shard: itertools.count(place.base)
            if place.offsets is None
            else iter(place.offsets)
            for place in places
        }
        offsets = [next(following[target]) for target in part.targets]
        fields = zip(itertools.repeat(self.name), part.targets, offsets, strict=False)
        return list(map(_record_id, fields))


_record_id = partial(tuple.__new__, RecordId)
"""Makes a `RecordId` of a tuple without a Python frame for each."""


def producer_of(producer: str | None, producer_seq: int | None) -> Producer | None:
    if (producer is None) != (producer_seq is None):
        raise BadSetting("producer and producer_seq go together")
    if producer is None or producer_seq is None:
        return None
    if not isinstance(producer, str) or not producer or not _is_offset(producer_seq):
        raise BadSetting(
            f"producer {producer!r}, producer_seq {producer_seq!r}: a name, 0 to 2**63 - 1"
        )
    key_bytes(producer)
    return Producer(producer, producer_seq)


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= OFFSET_MAX


def _check_count(max_records: object) -> None:
    if not _is_offset(max_records) or not max_records:
        raise BadSetting(f"max_records {max_records!r}: a whole number, at least 1")


def _check_offset(what: str, value: object) -> None:
    if not _is_offset(value):
        raise BadSetting(f"{what} {value!r}: an offset, 0 to {OFFSET_MAX}")
