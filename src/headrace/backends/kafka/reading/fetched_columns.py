"""Records taken from librdkafka as columns.

They come from the partition's own queue, which is split off from the client's. The client's errors
and log stay in its own queue, where librdkafka calls Python for them.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from ctypes import byref
from itertools import pairwise

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError

from headrace.backends.kafka.client.native import Column, Columns, Message, Native, Sizes
from headrace.backends.kafka.reading.columns import ColumnRecords
from headrace.backends.kafka.reading.fetched import FetchedMessages, Taken, Trouble
from headrace.backends.kafka.reading.listed import ListedRecords
from headrace.core.errors import BadSetting
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.row import ROW_OVERHEAD

RECORDS = 8192
"""The most records that one call takes."""
_COLUMN_BYTES_MAX = 2**31 - 1


class FetchedColumns:
    """Takes records through ``columns.c``: no Python object for each."""

    def __init__(self, native: Native, consumer: Consumer, handle: int, bootstrap: str) -> None:
        self._native = native
        self._handle = handle
        self._bootstrap = bootstrap
        self._client = FetchedMessages(consumer)
        self._queue: int | None = None
        self._taken = (ctypes.c_void_p * RECORDS)()
        self._sizes = Sizes()

    def assign(self, topic: str, shard: int, start: int) -> None:
        self._drop_queue()
        # In this order: else what is fetched between the two calls goes to the client's queue.
        self._queue = self._native.split_off(self._handle, topic, shard)
        self._client.assign(topic, shard, start)

    def unassign(self) -> None:
        self._client.unassign()
        self._drop_queue()

    def take(self, count: int, nbytes: int, wait_s: float) -> Taken:
        most = min(count, RECORDS, nbytes // ROW_OVERHEAD + 1)
        if self._queue is not None:
            try:
                self._take(self._queue, most, nbytes, wait_s)
                if self._sizes.records or self._sizes.troubles:
                    return self._converted()
            finally:
                self._give_back()
        # This lets the client report errors, and finds records that it has put into its own queue
        # all the same.
        return self._client.take(count, nbytes, 0.0)

    def _take(self, queue: int, most: int, nbytes: int, wait_s: float) -> None:
        """Take from the queue. Messages of an earlier call that were not given back are given back
        first: a signal handler may raise between any two lines, and a client that closes waits for
        all its messages."""
        self._native.take(
            queue, round(wait_s * 1000), most, nbytes, self._taken, byref(self._sizes)
        )

    def _give_back(self) -> None:
        self._native.drop(self._taken, byref(self._sizes))

    def _drop_queue(self) -> None:
        self._give_back()
        # In this order: a call that is interrupted does not drop the queue twice.
        queue, self._queue = self._queue, None
        if queue is not None:
            # Records fetched ahead would stay in the queue. librdkafka marks them as outdated, so
            # one call throws all of them away.
            self._take(queue, RECORDS, _COLUMN_BYTES_MAX, 0.0)
            self._give_back()
            self._native.forget_queue(queue)

    def revive(self) -> None:
        self._native.revive(self._handle, self._bootstrap)

    def position(self) -> int:
        return self._client.position()

    def close(self) -> None:
        self.unassign()
        self._client.close()

    def _converted(self) -> Taken:
        """The messages that ``_take`` took."""
        sizes = self._sizes
        troubles = [
            self._trouble(self._taken[i])
            for i in range(sizes.records, sizes.records + sizes.troubles)
        ]
        records, unreadable = self._records() if sizes.records else (None, None)
        return Taken(records, troubles, unreadable)

    def _trouble(self, address: int | None) -> Trouble:
        assert address is not None
        message = Message.from_address(address)
        why = self._native.why(address) or b""
        return Trouble(message.offset, KafkaError(message.error, why.decode(errors="replace")))

    def _records(self) -> tuple[ListedRecords | ColumnRecords | None, int | None]:
        """The records taken, and the offset of the first that cannot be decoded."""
        sizes, count = self._sizes, self._sizes.records
        if sizes.nbytes > _COLUMN_BYTES_MAX:
            raise BadSetting("more than 2 GiB at once: lower queued.max.messages.kbytes")
        offsets, times = pa.allocate_buffer(8 * count), pa.allocate_buffer(8 * count)
        keys = _Room(count, sizes.key_bytes)
        data = _Room(count, sizes.data_bytes)
        columns = Columns(offsets.address, times.address, keys.column, data.column)
        ends = pa.allocate_buffer(4 * (count + 1))
        names = _Room(sizes.headers, sizes.name_bytes)
        headers = _Room(sizes.headers, sizes.header_bytes)
        if sizes.headers:
            columns.header_ends = ends.address
            columns.names, columns.headers = names.column, headers.column
        self._native.fill(self._taken, byref(sizes), TIMESTAMP_MS_MAX, byref(columns))
        found = ColumnRecords(
            _offsets(memoryview(offsets).cast("q")),
            keys.array(),
            data.array(),
            pa.Array.from_buffers(pa.int64(), count, [None, times]),
        )
        # Only the last record can be one whose headers cannot be decoded.
        readable = count - sizes.unreadable
        unreadable = found.offsets[readable] if sizes.unreadable else None
        if sizes.unreadable:
            found = found.part(0, readable)
        if not sizes.headers or not readable:
            return (found if readable else None), unreadable
        listed, undecodable = _with_headers(found, memoryview(ends).cast("i"), names, headers)
        return listed, unreadable if undecodable is None else undecodable


class _Room:
    """Buffers that C fills with a column of bytes."""

    def __init__(self, count: int, nbytes: int) -> None:
        self._count = count
        self._buffers = [
            pa.allocate_buffer((count + 7) // 8),
            pa.allocate_buffer(4 * (count + 1)),
            pa.allocate_buffer(nbytes),
        ]
        self.column = Column(*(buffer.address for buffer in self._buffers))

    def array(self) -> pa.Array:
        return pa.Array.from_buffers(pa.binary(), self._count, self._buffers)


def _offsets(found: memoryview[int]) -> Sequence[int]:
    first, last = found[0], found[-1]
    return range(first, last + 1) if last - first == len(found) - 1 else found.tolist()


def _with_headers(
    found: ColumnRecords, ends: Sequence[int], names: _Room, values: _Room
) -> tuple[ListedRecords | None, int | None]:
    """The records up to one with a header whose name is no UTF-8, and the offset of that one."""
    texts: list[str] = []
    readable, unreadable = len(found), None
    try:
        texts.extend(map(bytes.decode, names.array().to_pylist()))
    except UnicodeDecodeError:
        readable = bisect_right(ends, len(texts)) - 1
        unreadable = found.offsets[readable]
    pairs = list(zip(texts, values.array().to_pylist(), strict=False))
    records = found.part(0, readable).listed()
    headers = [pairs[start:end] or None for start, end in pairwise(ends[: readable + 1])]
    return (records.with_headers(headers) if readable else None), unreadable
