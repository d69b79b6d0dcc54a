"""Reads one partition in order with a client that fetches ahead.

A read ends by the client's position, never by the last offset plus one: behind the last record
there may be transaction markers, aborted records, and offsets that compaction has emptied.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from confluent_kafka import KafkaError

from headrace.backends.kafka.client.clients import Clients, OnError
from headrace.backends.kafka.client.failures import AWAY, UNKNOWN_TOPIC, translated
from headrace.backends.kafka.client.unresponsive import (
    RECEIVED_MAX,
    Complaints,
    Revival,
    close_within,
)
from headrace.backends.kafka.reading.columns import ColumnRecords, joined
from headrace.backends.kafka.reading.fetched import Fetched, FetchedMessages, Trouble
from headrace.backends.kafka.reading.fetched_columns import FetchedColumns
from headrace.backends.kafka.reading.listed import ListedRecords
from headrace.backends.kafka.topics.offsets import GONE, Offsets
from headrace.core.errors import (
    BadBatch,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownStream,
    Unreachable,
)
from headrace.core.model import StreamInfo
from headrace.core.ports import ReadResult
from headrace.core.records.limits import check_start

log = logging.getLogger("headrace.kafka")

WAIT_S = 0.05
"""How long one call waits for a record."""
CLOSE_S = 5.0
"""How long a client may take to close."""
_DAMAGED = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
_NO_SUCH_OFFSET = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
READ_BYTES_MAX = 2**30
"""The most bytes of one read: an Arrow array of bytes holds no more than twice that."""


class Cursor:
    """The place of one reader in one partition. Used by one thread at a time."""

    def __init__(self, clients: Clients, offsets: Offsets, patience_s: float) -> None:
        self._clients = clients
        self._offsets = offsets
        self._patience_s = patience_s
        self._complaints = Complaints(clients.on_error)
        self._fetched = _make_fetched(clients, self._complaints.on_error)
        self.stream: StreamInfo | None = None
        self.shard = -1
        self._topic = ""
        self.next = 0
        """The offset at which the next read can go on without a new fetch."""
        self._unreadable: int | None = None
        """The offset of a fetched record that cannot be decoded."""
        self._troubles: list[Trouble] = []
        """Errors that the client reported behind the records in ``_ahead``."""
        self._ahead: deque[ListedRecords | ColumnRecords] = deque()
        """Records that were taken from the client and not returned by a read yet."""
        self._reached = 0
        """The offset that the client has reached: behind the records in ``_ahead``, and behind
        gaps."""
        self._end = 0
        """An end of the partition; it may have grown since."""
        self.used_s = self.unassigned_s = time.monotonic()

    def begin_at(self, stream: StreamInfo, topic: str, shard: int, start: int) -> None:
        """Fetch from that offset on; `OffsetOutOfRange` if the partition does not have it."""
        self.unassign()
        bounds = self._offsets.ask_bounds((topic, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        check_start(stream, shard, start, bounds)
        self._assign(stream, topic, shard, start)
        self.next = start
        self._end = bounds.end

    def _assign(self, stream: StreamInfo, topic: str, shard: int, start: int) -> None:
        self._fetched.assign(topic, shard, start)
        self._complaints.oversized = None
        self.stream, self._topic, self.shard = stream, topic, shard
        self._reached = start

    def is_in(self, stream: StreamInfo, shard: int) -> bool:
        here = self.stream is not None and self.stream.id == stream.id
        return here and self.shard == shard

    def is_at(self, stream: StreamInfo, shard: int, start: int) -> bool:
        return self.is_in(stream, shard) and self.next == start

    def unassign(self) -> None:
        """Fetch nothing any more."""
        if self.stream is not None:
            self._fetched.unassign()
            self.stream = None
            self._ahead.clear()
            self._troubles.clear()
            self._unreadable = None
            self.unassigned_s = time.monotonic()

    def _replace_client(self) -> None:
        """Unassign, and take another client: after an error a client may never fetch or close."""
        self.unassign()
        # The old client is closed last: whatever is raised before, a closed one is never used.
        old = self._fetched
        self._fetched = _make_fetched(self._clients, self._complaints.on_error)
        close_within(old.close, 0.0)

    def close(self) -> None:
        if not close_within(self._fetched.close, CLOSE_S):
            log.warning("a client that has read does not close: it ends with this process")

    def read(
        self, end: int | None, max_records: int, max_bytes: int, check_open: Callable[[], None]
    ) -> ReadResult:
        """The records that follow, as many as there are and as fit."""
        taken: list[ListedRecords | ColumnRecords] = []
        count, nbytes = max_records, min(max_bytes, READ_BYTES_MAX)
        while count > 0 and nbytes > 0:
            try:
                if not self._fill_ahead(end, count, nbytes, check_open, some_taken=bool(taken)):
                    break
            except Unreachable:
                if not taken:
                    raise
                break  # the next read raises it
            records = self._ahead.popleft()
            fits = self._fitting(records, end, count, nbytes, first=not taken)
            if fits < len(records):
                self._ahead.appendleft(records.part(fits, len(records)))
                records = records.part(0, fits)
                count = 0
            if len(records):
                taken.append(records)
                count -= len(records)
                nbytes -= records.nbytes
        return self._read_result(taken, end)

    def _fill_ahead(
        self,
        end: int | None,
        count: int,
        nbytes: int,
        check_open: Callable[[], None],
        *,
        some_taken: bool,
    ) -> bool:
        """Wait until records are ahead. False if there are no more before the end, or before an
        error that the next read raises."""
        revival = Revival(lambda: self._fetched.revive())  # of the client it has by then
        until_s = time.monotonic() + self._patience_s
        while not self._ahead:
            if end is not None and self._reached >= end:
                return False
            if self._is_blocked:
                if some_taken:
                    return False
                self._raise_block()
            if self._take(count, nbytes):
                break
            check_open()
            in_time = time.monotonic() <= until_s
            if in_time and self._is_blocked:
                continue
            if self._is_at_end():
                return False
            if not in_time:
                at = self._shown_place
                if not some_taken:  # else the records are returned, and the next read waits
                    self._replace_client()
                raise Unreachable(f"reading {at}: no answer in time; try again")
            revival.look()
            before = self._reached
            self._take(1, nbytes, WAIT_S)
            if self._reached > before:
                until_s = time.monotonic() + self._patience_s
        return True

    def _read_result(
        self, taken: Sequence[ListedRecords | ColumnRecords], end: int | None
    ) -> ReadResult:
        # The records ahead may begin behind a gap, and behind the end.
        behind = self._ahead[0].offsets[0] if self._ahead else self._reached
        self.next = behind if end is None else min(behind, end)
        assert self.stream is not None
        name, shard = self.stream.name, self.shard
        if end is not None and self.next >= self._end:
            self.unassign()  # a read with an end has come to the end of the partition
        if not taken:
            return ReadResult([], self.next)
        return ReadResult([joined(taken, name, shard)], self.next)

    def _take(self, count: int, nbytes: int, wait_s: float = 0.0) -> bool:
        """Take records from the client; whether there were any."""
        records, troubles, unreadable = self._fetched.take(count, nbytes, wait_s)
        damaged = [t.offset for t in troubles if t.error.code() in _DAMAGED]
        if records is not None and damaged:
            # Records behind a damaged batch count as not taken: the damage is raised first.
            whole = bisect_left(records.offsets, damaged[0])
            records = records.part(0, whole) if whole else None
        if records is not None:
            self._ahead.append(records)
            self._reached = max(self._reached, records.offsets[-1] + 1)
        if unreadable is not None:
            # Records behind it count as not taken: a read that passes it begins anew.
            self._unreadable = unreadable
            self._reached = max(self._reached, unreadable)
            return records is not None
        if records is None and not troubles:
            self._reached = max(self._reached, self._fetched.position())
        for trouble in troubles:
            if trouble.error.code() == KafkaError._PARTITION_EOF:
                self._reached = max(self._reached, trouble.offset)
            elif _ends_read(trouble.error):
                self._troubles.append(trouble)
        return records is not None

    @property
    def _is_blocked(self) -> bool:
        """Whether an error stands before further records."""
        found = (self._unreadable, self._complaints.oversized)
        return bool(self._troubles) or found != (None, None)

    def _raise_block(self) -> None:
        """Raise the error that stands before further records, or get past it."""
        if self._troubles:
            self._raise_trouble(self._troubles[0])  # later ones are outdated
        elif self._unreadable is not None:
            self._raise_unreadable(self._unreadable)
        elif self._complaints.oversized is not None:
            self._raise_too_large(self._reached, *self._complaints.oversized, RECEIVED_MAX)

    def _raise_trouble(self, trouble: Trouble) -> None:
        error = trouble.error
        stream, topic, shard, at = self.stream, self._topic, self.shard, self._reached
        assert stream is not None
        doing = f"reading {self._shown_place}"
        if error.code() in _DAMAGED:
            self._raise_damaged(stream, topic, min(trouble.offset, at), error.str())
        self._replace_client()
        if error.code() not in _NO_SUCH_OFFSET:
            if error.code() in UNKNOWN_TOPIC:
                raise UnknownStream(stream.name)
            raise translated(error, self._clients.settings, doing)
        bounds = self._offsets.ask_bounds((topic, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        if not bounds.start <= at <= bounds.end:
            raise OffsetOutOfRange(stream.name, shard, at, *bounds)
        # The broker answered for an older topic of that name: begin again.
        self._assign(stream, topic, shard, at)

    def _raise_damaged(self, stream: StreamInfo, topic: str, start: int, why: str) -> NoReturn:
        """Find the end of a damaged batch, and raise `BadBatch`: the client reports its beginning
        only."""
        shard = self.shard
        (end,) = self._offsets.ask_ends([(topic, shard)])
        bad, good = self._reached, self._reached + 1
        while good < end and not self._can_read(stream, topic, shard, good):
            bad, good = good, min(good + 2 * (good - start), end)
        while good - bad > 1:
            between = (bad + good) // 2
            if self._can_read(stream, topic, shard, between):
                good = between
            else:
                bad = between
        self._replace_client()
        raise BadBatch(stream.name, shard, start, good, why)

    def _can_read(self, stream: StreamInfo, topic: str, shard: int, offset: int) -> bool:
        """Whether the record at an offset, or the next one behind it, can be read."""
        self._replace_client()
        self._assign(stream, topic, shard, offset)
        until_s = time.monotonic() + self._patience_s
        while time.monotonic() <= until_s:
            records, troubles, unreadable = self._fetched.take(1, 1, WAIT_S)
            codes = {trouble.error.code() for trouble in troubles}
            if codes & _DAMAGED:
                return False
            if records is not None or unreadable is not None or KafkaError._PARTITION_EOF in codes:
                return True
        raise Unreachable(f"reading {self._shown_place}: no answer in time; try again")

    def _raise_unreadable(self, offset: int) -> NoReturn:
        stream, shard = self.stream, self.shard
        assert stream is not None
        self.unassign()
        raise BadBatch(stream.name, shard, offset, offset + 1, "a header whose name is no UTF-8")

    @property
    def _shown_place(self) -> str:
        name = "" if self.stream is None else self.stream.name
        return f"{name}:{self.shard}+{self._reached}"

    def _is_at_end(self) -> bool:
        """Whether the client has reached the end; the brokers are asked where that is now."""
        if self._reached >= self._end:
            (end,) = self._offsets.ask_ends([(self._topic, self.shard)])
            if end == GONE:
                assert self.stream is not None
                raise UnknownStream(self.stream.name)
            self._end = end
        return self._reached >= self._end

    def _fitting(
        self,
        records: ListedRecords | ColumnRecords,
        end: int | None,
        count: int,
        nbytes: int,
        *,
        first: bool,
    ) -> int:
        """How many of the records fit; the first record of a read always does."""
        fits = min(len(records), count)
        if end is not None and records.offsets[-1] >= end:
            fits = min(fits, bisect_left(records.offsets, end))
        if records.nbytes > nbytes:
            fits = min(fits, max(records.fitting(nbytes), 1 if first else 0))
        limit = self._clients.settings.fetch_max
        for row, size in enumerate(records.sizes()[:fits] if limit else ()):
            if size > limit:
                if first and row == 0:
                    self._raise_too_large(records.offsets[0], size, limit, "fetch_max")
                return row
        return fits

    def _raise_too_large(self, offset: int, nbytes: int, limit: int, setting: str) -> NoReturn:
        stream, shard = self.stream, self.shard
        assert stream is not None
        self.unassign()
        raise RecordTooLarge(stream.name, shard, offset, nbytes, limit, setting)


def _ends_read(error: KafkaError) -> bool:
    """Whether the read has to raise the error: waiting does not help."""
    code = error.code()
    known = code in _NO_SUCH_OFFSET or code in UNKNOWN_TOPIC
    return known or (code not in AWAY and not error.retriable())


def _make_fetched(clients: Clients, on_error: OnError) -> Fetched:
    # An answer over this limit is reported by `on_error` alone, and there is none with columns.
    narrow = RECEIVED_MAX in clients.settings.properties
    if clients.native is None or narrow:
        return FetchedMessages(clients.consumer(on_error))
    consumer, handle = clients.native_consumer(clients.native)
    return FetchedColumns(clients.native, consumer, handle, clients.settings.bootstrap)
