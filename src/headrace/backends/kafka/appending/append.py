"""Appending with an idempotent producer: an append returns when its records are acknowledged.

Only the first and the last record of a part report where they landed, unless each is asked for: a
report costs as much as sending. What lies between them cannot be missing: a producer without gaps
ends with an error instead, and another one takes its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from headrace.backends.kafka.appending.limits import check_records, too_large
from headrace.backends.kafka.appending.producers import Sender, Senders
from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import UNKNOWN_TOPIC, error_of, translated
from headrace.backends.kafka.client.unresponsive import Revival
from headrace.backends.kafka.messages import is_plain, outgoing
from headrace.backends.kafka.topics import stream_descriptions
from headrace.backends.kafka.topics.topics import Topic
from headrace.core.errors import (
    BadRecord,
    Closed,
    HeadraceError,
    Retryable,
    UnknownOutcome,
    UnknownStream,
)
from headrace.core.model import StreamInfo, even_shards
from headrace.core.ports import Append, Place
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row

LOOK_S = 1.0
"""So often a waiting append looks whether its stream is still there."""
FULL_S = 0.005
"""So long it is waited for room in the client."""
COLUMNS_MIN = 16
"""So many records are sent as columns; fewer are sent as quickly one by one."""

_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_UNKNOWN = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._FATAL,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)


class _OfNoUse(Exception):
    """A producer that took nothing: what it knows of a topic is out of date, or it has ended."""

    def __init__(self, part: _Part, error: KafkaError) -> None:
        super().__init__(error.str())
        self.part = part
        self.error = error


class _Part:
    """Records of one append on their way to one partition."""

    def __init__(self, topic: Topic, append: Append, landed: Callable[[], None]) -> None:
        self.topic = topic
        self.append = append
        self._landed = landed
        self._count = len(append.batch)
        self._offsets: list[int] = []
        """Of the records that reported, in order: one thread hears all reports."""
        self.begun = False
        """Whether the client has taken a record."""
        self.error: KafkaError | None = None
        self.done = False

    def send(self, sender: Sender, full: Callable[[], None]) -> None:
        """Give all records to the client; ``full`` is called while it takes no more."""
        batch, end, columns = self.append.batch, self._count, sender.columns
        if columns is None or not self._is_for_columns:
            self._produce(sender, batch.part(0, 1), self._reports(0, 1), full)
            self.begun = True
            if end > 1:
                self._produce(sender, batch.part(1, end), self._reports(1, end), full)
            return
        # Cut here, so that no more than two become Python objects.
        arrow = batch.columns
        first, last = Batch.of_arrow(arrow.slice(0, 1)), Batch.of_arrow(arrow.slice(end - 1))
        self._produce(sender, first, self._reports(0, 1), full)
        self.begun = True
        columns.send(self.topic.name, self.append.shard, arrow.slice(1, end - 2), full)
        self._produce(sender, last, self._reports(end - 1, end), full)

    @property
    def _is_for_columns(self) -> bool:
        return not self.append.each and self._count >= COLUMNS_MIN and is_plain(self.append.batch)

    def _reports(self, start: int, end: int) -> list[Callable[..., None] | None]:
        """Which of these records is asked for what."""
        between = self._landed_at if self.append.each else None
        reports: list[Callable[..., None] | None] = [between] * (end - start)
        if start == 0:
            reports[0] = self._landed_at
        if end == self._count:
            reports[-1] = self._end
        return reports

    def _produce(
        self,
        sender: Sender,
        batch: Batch,
        reports: Sequence[Callable[..., None] | None],
        full: Callable[[], None],
    ) -> None:
        produce = sender.producer.produce

        def again(*message: Any) -> None:
            while True:
                full()
                try:
                    produce(*message)
                    return
                except BufferError:
                    continue

        topic, shard = self.topic.name, self.append.shard
        # By position: keywords cost a third of the call.
        if is_plain(batch):
            columns = batch.data, batch.keys, batch.timestamps, reports
            for value, key, at, report in zip(*columns, strict=True):
                try:
                    produce(topic, value, key, shard, report, None, at)
                except BufferError:
                    again(topic, value, key, shard, report, None, at)
            return
        for (value, key, headers, at), report in zip(outgoing(batch), reports, strict=True):
            try:
                produce(topic, value, key, shard, report, None, at, headers)
            except BufferError:
                again(topic, value, key, shard, report, None, at, headers)

    def _landed_at(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._offsets.append(message.offset())
        elif self.error is None:
            self.error = error

    def _end(self, error: KafkaError | None, message: Message) -> None:
        self._landed_at(error, message)
        self.done = True
        self._landed()

    @property
    def has_landed(self) -> bool:
        """Whether some of it is written."""
        return bool(self._offsets)

    def place(self) -> Place:
        first, last = self._offsets[0], self._offsets[-1]
        if last - first == self._count - 1:
            return Place(self.append.shard, first)
        each = self._offsets if self.append.each else None
        return Place(self.append.shard, first, last + 1, each)


class Appending:
    def __init__(
        self,
        clients: Clients,
        senders: Senders,
        patience_s: float,
        check_open: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._senders = senders
        self._patience_s = patience_s
        self._check_open = check_open

    def check(self, appends: Sequence[tuple[Topic, Append]]) -> None:
        """Refuse what the client or the broker would refuse, before anything is sent."""
        for topic, append in appends:
            check_records(topic, append.batch, self._limit(topic))

    def append(
        self, appends: Sequence[tuple[Topic, Append]], still_there: Callable[[Topic], None]
    ) -> list[Place]:
        # A topic refuses a batch that is larger than its largest record may be.
        takes = min(topic.message_bytes_max for topic, _ in appends)
        batch_bytes = min(self._clients.batch_bytes, takes)
        until_s = time.monotonic() + self._patience_s
        topic = appends[0][0].name
        sender = self._senders.current(batch_bytes, topic)
        try:
            return self._append(sender, appends, still_there, until_s)
        except _OfNoUse:
            # To it alone: another one looks at the topic anew.
            sender.put_away()
        try:
            another = self._senders.current(batch_bytes, topic)
            return self._append(another, appends, still_there, until_s)
        except _OfNoUse as why:
            raise self._failure(why.part, why.error) from None

    def _append(
        self,
        sender: Sender,
        appends: Sequence[tuple[Topic, Append]],
        still_there: Callable[[Topic], None],
        until_s: float,
    ) -> list[Place]:
        landed = threading.Semaphore(0)
        parts = [_Part(topic, append, landed.release) for topic, append in appends]
        revival = Revival(sender.revive)

        def full() -> None:
            """It does not ask for reports: only while one thread hears them are they in order."""
            self._look(sender, parts, still_there, until_s)
            revival.look()
            time.sleep(FULL_S)

        with sender.waiting():
            for part in parts:
                try:
                    part.send(sender, full)
                except KafkaException as why:
                    raise self._not_taken(sender, parts, part, error_of(why)) from None
            left = len(parts)
            while left:
                if landed.acquire(timeout=LOOK_S):
                    left -= 1
                else:
                    self._look(sender, parts, still_there, until_s)
                    revival.look()
        wrong = [part for part in parts if part.error is not None]
        if wrong:
            raise self._not_landed(sender, parts, wrong)
        return [part.place() for part in parts]

    def describe(self, rows: Sequence[Row]) -> None:
        """Append to the topic of descriptions, which is no stream."""
        info = StreamInfo(
            name=stream_descriptions.TOPIC,
            id=0,
            codec="json",
            routing="murmur2",
            retention_s=None,
            retention_bytes=None,
            created_ms=0,
            shards=even_shards(1),
        )
        topic = Topic(info.name, info, self._clients.batch_bytes, True, 0.0)
        self.append([(topic, Append(info, 0, Batch.of_rows(rows)))], lambda _: None)

    def _limit(self, topic: Topic) -> int:
        # What a record takes on the way, once it is compressed, is known to the client only.
        if self._clients.compresses:
            return self._clients.message_bytes_max
        return min(topic.message_bytes_max, self._clients.message_bytes_max)

    def _look(
        self,
        sender: Sender,
        parts: Sequence[_Part],
        still_there: Callable[[Topic], None],
        until_s: float,
    ) -> None:
        """While an append waits: whether waiting is of any use."""
        self._check_not_closed(parts[0])
        if time.monotonic() > until_s:
            sender.put_away()
            why = f"no broker of {self._clients.settings} answered in time"
            raise self._unknown(parts[0], why)
        for part in parts:
            if not part.done:
                try:
                    still_there(part.topic)
                except UnknownStream:
                    sender.put_away()
                    raise
                except Retryable:
                    pass  # no broker answers: that is what it waits for

    def _check_not_closed(self, part: _Part) -> None:
        try:
            self._check_open()
        except Closed:
            raise self._unknown(part, "the hub was closed meanwhile") from None

    def _unknown(self, part: _Part, why: str) -> UnknownOutcome:
        told = self._clients.settings.without_secrets(why)
        return UnknownOutcome(
            f"appending to {part.append.stream.name}: {told}; look what was written",
            withdrawn=False,
        )

    def _not_taken(
        self, sender: Sender, parts: Sequence[_Part], part: _Part, error: KafkaError
    ) -> Exception:
        """The client refused a record. What others gave it still gets through, unless it ended."""
        ended = error.fatal() or error.code() == KafkaError._FATAL
        if ended:
            sender.put_away(error)
        self._check_not_closed(part)
        if any(each.begun for each in parts):
            return self._unknown(part, error.str())
        if ended or error.code() in UNKNOWN_TOPIC:
            return _OfNoUse(part, error)
        return self._failure(part, error)

    def _not_landed(
        self, sender: Sender, parts: Sequence[_Part], wrong: Sequence[_Part]
    ) -> HeadraceError:
        # What was thrown away on account of another record tells nothing of its own.
        part = min(wrong, key=lambda one: one.error is None or one.error.code() in _PURGED)
        error = part.error
        assert error is not None
        self._check_not_closed(part)
        if error.fatal():
            sender.put_away(error)
        if error.code() in _PURGED:
            return self._unknown(part, (sender.ended or error).str())
        failure = self._failure(part, error)
        if isinstance(failure, UnknownStream | UnknownOutcome):
            return failure
        begun = sum(one.has_landed for one in wrong)
        thrown_away = any(one.error is not None and one.error.code() in _PURGED for one in wrong)
        if len(wrong) == len(parts) and not begun and not thrown_away:
            return failure
        return UnknownOutcome(
            f"{failure}; of {len(parts)} shards {len(parts) - len(wrong)} were written as a whole "
            f"and {begun} in part: look what was written",
            withdrawn=False,
        )

    def _failure(self, part: _Part, error: KafkaError) -> HeadraceError:
        stream, settings = part.append.stream, self._clients.settings
        where = f"{stream.name}:{part.append.shard}"
        code = error.code()
        if code in UNKNOWN_TOPIC:
            return UnknownStream(stream.name)
        if code == KafkaError.MSG_SIZE_TOO_LARGE:
            return too_large(where, None, part.topic.message_bytes_max)
        if code in _UNKNOWN or code in _PURGED or error.fatal():
            return self._unknown(part, error.str())
        if code in (KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP):
            told = settings.without_secrets(error.str())
            return BadRecord(f"{where}: Kafka refuses a record: {told}")
        return translated(error, settings, f"appending to {where}")
