"""Appends with an idempotent producer: an append returns when its records are acknowledged.

Only the first and the last record of a part report their offsets, unless the caller wants each: a
report costs as much as sending. No record between the two can be missing: rather than leave a gap,
the producer ends with an error, and another one takes its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from headrace.backends.kafka.appending.limits import check_records, too_large
from headrace.backends.kafka.appending.producers import IdempotentProducer, IdempotentProducers
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
"""How often an append that waits checks that its stream still exists."""
ROOM_S = 0.005
"""The pause before a client whose queue was full is tried again."""
COLUMNS_MIN = 16
"""The least number of records that is sent as columns; fewer are as quick one by one."""

_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_UNKNOWN = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._FATAL,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
    }
)


class _UselessProducer(Exception):
    """A producer that took no record: what it knows of a topic is out of date, or it has ended."""

    def __init__(self, part: _Part, error: KafkaError) -> None:
        super().__init__(error.str())
        self.part = part
        self.error = error


class _Part:
    """The records of one append that go to one partition."""

    def __init__(self, topic: Topic, append: Append, on_done: Callable[[], None]) -> None:
        self.topic = topic
        self.append = append
        self._on_done = on_done
        self._count = len(append.batch)
        self._offsets: list[int] = []
        """The offsets of the records that reported, in order: one thread takes all reports."""
        self.begun = False
        """Whether the client has taken a record."""
        self.error: KafkaError | None = None
        self.done = False

    def send(self, producer: IdempotentProducer, await_room: Callable[[], None]) -> None:
        """Give all records to the client; ``await_room`` is called while its queue is full."""
        batch, end, columns = self.append.batch, self._count, producer.columns
        if columns is None or not self._is_for_columns:
            self._produce(producer, batch.part(0, 1), self._reports(0, 1), await_room)
            self.begun = True
            if end > 1:
                self._produce(producer, batch.part(1, end), self._reports(1, end), await_room)
            return
        # Cut before they are rows, so that no more than two records become Python objects.
        arrow = batch.columns
        first, last = Batch.of_arrow(arrow.slice(0, 1)), Batch.of_arrow(arrow.slice(end - 1))
        self._produce(producer, first, self._reports(0, 1), await_room)
        self.begun = True
        columns.send(self.topic.name, self.append.shard, arrow.slice(1, end - 2), await_room)
        self._produce(producer, last, self._reports(end - 1, end), await_room)

    @property
    def _is_for_columns(self) -> bool:
        return not self.append.each and self._count >= COLUMNS_MIN and is_plain(self.append.batch)

    def _reports(self, start: int, end: int) -> list[Callable[..., None] | None]:
        """What each of these records calls when it is delivered; None: nothing."""
        between = self._on_delivery if self.append.each else None
        reports: list[Callable[..., None] | None] = [between] * (end - start)
        if start == 0:
            reports[0] = self._on_delivery
        if end == self._count:
            reports[-1] = self._on_last_delivery
        return reports

    def _produce(
        self,
        producer: IdempotentProducer,
        batch: Batch,
        reports: Sequence[Callable[..., None] | None],
        await_room: Callable[[], None],
    ) -> None:
        produce = producer.client.produce

        def again(*message: Any) -> None:
            while True:
                await_room()
                try:
                    produce(*message)
                    return
                except BufferError:
                    continue

        topic, shard = self.topic.name, self.append.shard
        # Arguments by position: keywords cost a third of the call.
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

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._offsets.append(message.offset())
        elif self.error is None:
            self.error = error

    def _on_last_delivery(self, error: KafkaError | None, message: Message) -> None:
        self._on_delivery(error, message)
        self.done = True
        self._on_done()

    @property
    def has_delivered(self) -> bool:
        """Whether a record of this part is known to be written."""
        return bool(self._offsets)

    def place(self) -> Place:
        first, last = self._offsets[0], self._offsets[-1]
        if last - first == self._count - 1:
            return Place(self.append.shard, first)
        each = self._offsets if self.append.each else None
        return Place(self.append.shard, first, last + 1, each)


class Appending:
    """The appends of one hub."""

    def __init__(
        self,
        clients: Clients,
        producers: IdempotentProducers,
        patience_s: float,
        check_open: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._producers = producers
        self._patience_s = patience_s
        self._check_open = check_open

    def check(self, appends: Sequence[tuple[Topic, Append]]) -> None:
        """Refuse records that the client or the broker would refuse, before anything is sent."""
        for topic, append in appends:
            check_records(topic, append.batch, self._limit(topic))

    def append(
        self, appends: Sequence[tuple[Topic, Append]], check_stream: Callable[[Topic], None]
    ) -> list[Place]:
        """Append, and wait until all is acknowledged; ``check_stream`` raises `UnknownStream` for
        a topic that is not the one it was."""
        # A topic refuses a batch that is larger than its largest record may be.
        takes = min(topic.message_bytes_max for topic, _ in appends)
        batch_bytes = min(self._clients.batch_bytes, takes)
        until_s = time.monotonic() + self._patience_s
        topic = appends[0][0].name
        producer = self._producers.get(batch_bytes, topic)
        try:
            return self._append(producer, appends, check_stream, until_s)
        except _UselessProducer:
            # Only this producer is out of date: another one looks at the topic anew.
            producer.retire()
        try:
            another = self._producers.get(batch_bytes, topic)
            return self._append(another, appends, check_stream, until_s)
        except _UselessProducer as why:
            raise self._failure(why.part, why.error) from None

    def _append(
        self,
        producer: IdempotentProducer,
        appends: Sequence[tuple[Topic, Append]],
        check_stream: Callable[[Topic], None],
        until_s: float,
    ) -> list[Place]:
        done = threading.Semaphore(0)
        parts = [_Part(topic, append, done.release) for topic, append in appends]
        revival = Revival(producer.revive)

        def await_room() -> None:
            # It does not poll for reports: they are in order only while one thread takes them.
            self._check_worth_waiting(producer, parts, check_stream, until_s)
            revival.look()
            time.sleep(ROOM_S)

        with producer.waiting():
            for part in parts:
                try:
                    part.send(producer, await_room)
                except KafkaException as why:
                    raise self._refusal(producer, parts, part, error_of(why)) from None
            left = len(parts)
            while left:
                if done.acquire(timeout=LOOK_S):
                    left -= 1
                else:
                    self._check_worth_waiting(producer, parts, check_stream, until_s)
                    revival.look()
        failed = [part for part in parts if part.error is not None]
        if failed:
            raise self._delivery_failure(producer, parts, failed)
        return [part.place() for part in parts]

    def describe(self, rows: Sequence[Row]) -> None:
        """Append to the topic of stream descriptions, which is no stream itself."""
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
        # Only the client knows the size of a compressed record.
        if self._clients.compresses:
            return self._clients.message_bytes_max
        return min(topic.message_bytes_max, self._clients.message_bytes_max)

    def _check_worth_waiting(
        self,
        producer: IdempotentProducer,
        parts: Sequence[_Part],
        check_stream: Callable[[Topic], None],
        until_s: float,
    ) -> None:
        """Raise if an append that waits has nothing to wait for any more."""
        self._check_not_closed(parts[0])
        if time.monotonic() > until_s:
            producer.retire()
            why = f"no broker of {self._clients.settings} answered in time"
            raise self._unknown(parts[0], why)
        for part in parts:
            if not part.done:
                try:
                    check_stream(part.topic)
                except UnknownStream:
                    producer.retire()
                    raise
                except Retryable:
                    pass  # no broker answers: the append waits for one

    def _check_not_closed(self, part: _Part) -> None:
        try:
            self._check_open()
        except Closed:
            raise self._unknown(part, "the hub was closed meanwhile") from None

    def _unknown(self, part: _Part, why: str) -> UnknownOutcome:
        shown = self._clients.settings.without_secrets(why)
        return UnknownOutcome(
            f"appending to {part.append.stream.name}: {shown}; look what was written",
            withdrawn=False,
        )

    def _refusal(
        self, producer: IdempotentProducer, parts: Sequence[_Part], part: _Part, error: KafkaError
    ) -> Exception:
        """The error for a record that the client refused. What other appends gave it is still
        delivered, unless it ended."""
        ended = error.fatal() or error.code() == KafkaError._FATAL
        if ended:
            producer.retire(error)
        self._check_not_closed(part)
        if any(each.begun for each in parts):
            return self._unknown(part, error.str())
        if ended or error.code() in UNKNOWN_TOPIC:
            return _UselessProducer(part, error)
        return self._failure(part, error)

    def _delivery_failure(
        self, producer: IdempotentProducer, parts: Sequence[_Part], failed: Sequence[_Part]
    ) -> HeadraceError:
        """The error for an append of which some parts were not delivered."""
        # A record that was thrown away because of another one has no reason of its own.
        part = min(failed, key=lambda one: one.error is None or one.error.code() in _PURGED)
        error = part.error
        assert error is not None
        self._check_not_closed(part)
        if error.fatal():
            producer.retire(error)
        if error.code() in _PURGED:
            return self._unknown(part, (producer.fatal_error or error).str())
        failure = self._failure(part, error)
        if isinstance(failure, UnknownStream | UnknownOutcome):
            return failure
        begun = sum(one.has_delivered for one in failed)
        thrown_away = any(one.error is not None and one.error.code() in _PURGED for one in failed)
        if len(failed) == len(parts) and not begun and not thrown_away:
            return failure
        return UnknownOutcome(
            f"{failure}; of {len(parts)} shards {len(parts) - len(failed)} were written as a whole "
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
            why = settings.without_secrets(error.str())
            return BadRecord(f"{where}: Kafka refuses a record: {why}")
        return translated(error, settings, f"appending to {where}")
