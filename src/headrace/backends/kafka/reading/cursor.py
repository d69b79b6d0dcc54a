"""Reading one partition in order with a client that fetches ahead.

A read ends by the position, never by the last offset plus one: behind the last record there may be
marks of transactions, records of aborted ones, and what compaction took out.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

from confluent_kafka import KafkaError

from headrace.backends.kafka.client.clients import Clients, Hear
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
END_S = 5.0
_DAMAGED = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
_NO_SUCH_OFFSET = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)
READ_BYTES_MAX = 2**30
"""An Arrow array of bytes holds no more than twice that."""


class Cursor:
    """Used by one thread at a time."""

    def __init__(self, clients: Clients, offsets: Offsets, patience_s: float) -> None:
        self._clients = clients
        self._offsets = offsets
        self._patience_s = patience_s
        self._complaints = Complaints(clients.hear)
        self._arrivals = _arrivals(clients, self._complaints.hear)
        self.stream: StreamInfo | None = None
        self.shard = -1
        self._topic = ""
        self.next = 0
        """Where the next read begins, if it shall cost nothing."""
        self._unreadable: int | None = None
        """The offset of a record that was fetched and cannot be handed out."""
        self._troubles: list[Trouble] = []
        """What the client said behind the records ahead."""
        self._ahead: deque[ListedRecords | ColumnRecords] = deque()
        """Taken from the client and not handed out."""
        self._reached = 0
        """How far the client has come: behind what is ahead, and behind gaps."""
        self._end = 0
        """As far the partition goes at least."""
        self.used_s = self.left_s = time.monotonic()

    def place(self, stream: StreamInfo, topic: str, shard: int, start: int) -> None:
        """Begin anew at an offset, or `OffsetOutOfRange`."""
        self.leave()
        bounds = self._offsets.bounds((topic, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        check_start(stream, shard, start, bounds)
        self._stand(stream, topic, shard, start)
        self.next = start
        self._end = bounds.end

    def _stand(self, stream: StreamInfo, topic: str, shard: int, start: int) -> None:
        self._arrivals.stand(topic, shard, start)
        self._complaints.oversized = None
        self.stream, self._topic, self.shard = stream, topic, shard
        self._reached = start

    def stands_in(self, stream: StreamInfo, shard: int) -> bool:
        here = self.stream is not None and self.stream.id == stream.id
        return here and self.shard == shard

    def stands_at(self, stream: StreamInfo, shard: int, start: int) -> bool:
        return self.stands_in(stream, shard) and self.next == start

    def leave(self) -> None:
        """Fetch nothing any more."""
        if self.stream is not None:
            self._arrivals.leave()
            self.stream = None
            self._ahead.clear()
            self._troubles.clear()
            self._unreadable = None
            self.left_s = time.monotonic()

    def _renew(self) -> None:
        """Leave, and take another client: one that was in trouble may never fetch, nor end."""
        self.leave()
        # In this order: one that is closed is never used, whatever goes wrong in between.
        old, self._arrivals = self._arrivals, _arrivals(self._clients, self._complaints.hear)
        close_within(old.close, 0.0)

    def close(self) -> None:
        if not close_within(self._arrivals.close, END_S):
            log.warning("a client that read does not end: it is left behind")

    def read(
        self, end: int | None, max_records: int, max_bytes: int, check_open: Callable[[], None]
    ) -> ReadResult:
        """What follows, as much as there is and fits."""
        taken: list[ListedRecords | ColumnRecords] = []
        records, room = max_records, min(max_bytes, READ_BYTES_MAX)
        while records > 0 and room > 0:
            try:
                if not self._more(end, records, room, check_open, some_taken=bool(taken)):
                    break
            except Unreachable:
                if not taken:
                    raise
                break  # whoever goes on behind it is told
            chunk = self._ahead.popleft()
            fits = self._fitting(chunk, end, records, room, first=not taken)
            if fits < len(chunk):
                self._ahead.appendleft(chunk.part(fits, len(chunk)))
                chunk = chunk.part(0, fits)
                records = 0
            if len(chunk):
                taken.append(chunk)
                records -= len(chunk)
                room -= chunk.nbytes
        return self._reading(taken, end)

    def _more(
        self,
        end: int | None,
        records: int,
        room: int,
        check_open: Callable[[], None],
        *,
        some_taken: bool,
    ) -> bool:
        """Whether something is ahead, which may take a while; False: there is no more before the
        end, or before something that is told when it is the first of a read."""
        revival = Revival(lambda: self._arrivals.revive())  # of whichever it has by then
        until_s = time.monotonic() + self._patience_s
        while not self._ahead:
            if end is not None and self._reached >= end:
                return False
            if self._is_blocked:
                if some_taken:
                    return False
                self._hear()
            if self._fetched(records, room):
                break
            check_open()
            in_time = time.monotonic() <= until_s
            if in_time and self._is_blocked:
                continue
            if self._nothing_more():
                return False
            if not in_time:
                at = self._at
                if not some_taken:  # else that is handed out, and the next read waits once more
                    self._renew()
                raise Unreachable(f"reading {at}: no answer in time; try again")
            revival.look()
            before = self._reached
            self._fetched(1, room, WAIT_S)
            if self._reached > before:
                until_s = time.monotonic() + self._patience_s
        return True

    def _reading(
        self, taken: Sequence[ListedRecords | ColumnRecords], end: int | None
    ) -> ReadResult:
        # What lies ahead begins behind a gap, perhaps behind the end.
        behind = self._ahead[0].offsets[0] if self._ahead else self._reached
        self.next = behind if end is None else min(behind, end)
        assert self.stream is not None
        name, shard = self.stream.name, self.shard
        if end is not None and self.next >= self._end:
            self.leave()  # whoever said where to end has come to the end of all there is
        if not taken:
            return ReadResult([], self.next)
        return ReadResult([joined(taken, name, shard)], self.next)

    def _fetched(self, count: int, nbytes: int, wait_s: float = 0.0) -> bool:
        """Whether something is ahead now."""
        chunk, troubles, unreadable = self._arrivals.take(count, nbytes, wait_s)
        damaged = [t.offset for t in troubles if t.error.code() in _DAMAGED]
        if chunk is not None and damaged:
            # What comes behind damage counts as not taken: first it is told.
            whole = bisect_left(chunk.offsets, damaged[0])
            chunk = chunk.part(0, whole) if whole else None
        if chunk is not None:
            self._ahead.append(chunk)
            self._reached = max(self._reached, chunk.offsets[-1] + 1)
        if unreadable is not None:
            # What was taken behind it counts as not taken: whoever passes it begins anew.
            self._unreadable = unreadable
            self._reached = max(self._reached, unreadable)
            return chunk is not None
        if chunk is None and not troubles:
            self._reached = max(self._reached, self._arrivals.position())
        for trouble in troubles:
            if trouble.error.code() == KafkaError._PARTITION_EOF:
                self._reached = max(self._reached, trouble.offset)
            elif _matters(trouble.error):
                self._troubles.append(trouble)
        return chunk is not None

    @property
    def _is_blocked(self) -> bool:
        """Whether something stands in the way of further records."""
        found = (self._unreadable, self._complaints.oversized)
        return bool(self._troubles) or found != (None, None)

    def _hear(self) -> None:
        """Of what stands in the way."""
        if self._troubles:
            self._hear_of(self._troubles[0])  # those behind it are void
        elif self._unreadable is not None:
            self._refuse_unreadable(self._unreadable)
        elif self._complaints.oversized is not None:
            self._refuse_large(self._reached, *self._complaints.oversized, RECEIVED_MAX)

    def _hear_of(self, trouble: Trouble) -> None:
        error = trouble.error
        stream, topic, shard, at = self.stream, self._topic, self.shard, self._reached
        assert stream is not None
        doing = f"reading {self._at}"
        if error.code() in _DAMAGED:
            self._refuse_damaged(stream, topic, min(trouble.offset, at), error.str())
        self._renew()
        if error.code() not in _NO_SUCH_OFFSET:
            if error.code() in UNKNOWN_TOPIC:
                raise UnknownStream(stream.name)
            raise translated(error, self._clients.settings, doing)
        bounds = self._offsets.bounds((topic, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        if not bounds.start <= at <= bounds.end:
            raise OffsetOutOfRange(stream.name, shard, at, *bounds)
        # An answer about a topic of that name that is no more.
        self._stand(stream, topic, shard, at)

    def _refuse_damaged(self, stream: StreamInfo, topic: str, start: int, why: str) -> NoReturn:
        """The client tells where a damaged batch begins, not where it ends."""
        shard = self.shard
        (end,) = self._offsets.ends([(topic, shard)])
        bad, good = self._reached, self._reached + 1
        while good < end and not self._is_whole(stream, topic, shard, good):
            bad, good = good, min(good + 2 * (good - start), end)
        while good - bad > 1:
            between = (bad + good) // 2
            if self._is_whole(stream, topic, shard, between):
                good = between
            else:
                bad = between
        self._renew()
        raise BadBatch(stream.name, shard, start, good, why)

    def _is_whole(self, stream: StreamInfo, topic: str, shard: int, offset: int) -> bool:
        """Whether what lies at an offset, or is the next behind it, can be read."""
        self._renew()
        self._stand(stream, topic, shard, offset)
        until_s = time.monotonic() + self._patience_s
        while time.monotonic() <= until_s:
            chunk, troubles, unreadable = self._arrivals.take(1, 1, WAIT_S)
            codes = {trouble.error.code() for trouble in troubles}
            if codes & _DAMAGED:
                return False
            if chunk is not None or unreadable is not None or KafkaError._PARTITION_EOF in codes:
                return True
        raise Unreachable(f"reading {self._at}: no answer in time; try again")

    def _refuse_unreadable(self, offset: int) -> NoReturn:
        stream, shard = self.stream, self.shard
        assert stream is not None
        self.leave()
        raise BadBatch(stream.name, shard, offset, offset + 1, "a header whose name is no UTF-8")

    @property
    def _at(self) -> str:
        name = "" if self.stream is None else self.stream.name
        return f"{name}:{self.shard}+{self._reached}"

    def _nothing_more(self) -> bool:
        """Whether the client has come to the end, as of now."""
        if self._reached >= self._end:
            (end,) = self._offsets.ends([(self._topic, self.shard)])
            if end == GONE:
                assert self.stream is not None
                raise UnknownStream(self.stream.name)
            self._end = end
        return self._reached >= self._end

    def _fitting(
        self,
        chunk: ListedRecords | ColumnRecords,
        end: int | None,
        records: int,
        room: int,
        *,
        first: bool,
    ) -> int:
        """How many of the records ahead fit; the first of a read always does."""
        count = min(len(chunk), records)
        if end is not None and chunk.offsets[-1] >= end:
            count = min(count, bisect_left(chunk.offsets, end))
        if chunk.nbytes > room:
            count = min(count, max(chunk.fitting(room), 1 if first else 0))
        limit = self._clients.settings.fetch_max
        for row, size in enumerate(chunk.sizes()[:count] if limit else ()):
            if size > limit:
                if first and row == 0:
                    self._refuse_large(chunk.offsets[0], size, limit, "fetch_max")
                return row
        return count

    def _refuse_large(self, offset: int, nbytes: int, limit: int, setting: str) -> NoReturn:
        stream, shard = self.stream, self.shard
        assert stream is not None
        self.leave()
        raise RecordTooLarge(stream.name, shard, offset, nbytes, limit, setting)


def _matters(error: KafkaError) -> bool:
    """Whether it is no use to go on waiting."""
    code = error.code()
    known = code in _NO_SUCH_OFFSET or code in UNKNOWN_TOPIC
    return known or (code not in AWAY and not error.retriable())


def _arrivals(clients: Clients, hear: Hear) -> Fetched:
    # What is too large for it a client tells by a complaint alone.
    narrow = RECEIVED_MAX in clients.settings.properties
    if clients.native is None or narrow:
        return FetchedMessages(clients.consumer(hear))
    made = clients.native_consumer(clients.native)
    return FetchedColumns(clients.native, *made, clients.settings.bootstrap)
