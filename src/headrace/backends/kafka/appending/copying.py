"""Copies into a partition: records and the position in the source are one Kafka transaction.

The transactional id stands for the source and the partition, so a new copy fences the one before.
The position is a committed offset on the target partition, of a group without members whose name
stands for the source.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace.backends.kafka.appending.limits import check_headers
from headrace.backends.kafka.appending.send_columns import ColumnProducer
from headrace.backends.kafka.client.clients import BATCH_BYTES
from headrace.backends.kafka.client.failures import AWAY, UNKNOWN_TOPIC, error_of
from headrace.backends.kafka.client.unresponsive import Revival, call_watched
from headrace.backends.kafka.messages import Outgoing
from headrace.core.errors import Closed, Fenced, HeadraceError, UnknownOutcome, UnknownStream
from headrace.core.model import Header, StreamInfo
from headrace.core.records.batch import Batch
from headrace.core.records.limits import check_shard, too_large
from headrace.core.store_keys import digest

log = logging.getLogger("headrace.kafka")

PREFIX = "headrace-copy."
TRANSACTION_S = 60
"""How long the open transaction of a copy that was killed may hide later records from readers. A
copy that begins again ends it at once. The broker aborts an older transaction by itself, and fences
its producer."""
CALL_S = 5.0
"""How long one call of the client may take: Python handles no signal during a call."""
STUCK_S = 2 * CALL_S
"""How long a call may take before it counts as one that never returns: see `unresponsive`."""
SETTLE_S = 10.0
"""How long a copy that is closed waits for the broker."""
PATIENCE_S = 120.0
"""How long one call is repeated while no broker answers."""
ABORTS_MAX = 3
OPENINGS_MAX = 3

Properties = dict[str, Any]

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
_RAISED = (KafkaException, SystemError)
"""The client raises `SystemError` if a `KafkaException` comes up in one of its callbacks."""


class KafkaCopying:
    """The copy of one source into one partition, of one process at a time."""

    def __init__(
        self,
        stream: StreamInfo,
        shard: int,
        origin: str,
        *,
        topic: str,
        message_bytes_max: int,
        make_producer: Callable[[Properties], tuple[Producer, ColumnProducer | None]],
        make_consumer: Callable[[Properties], Consumer],
        outgoing: Callable[[Batch], Iterable[Outgoing]],
        translated: Callable[[KafkaError, str], HeadraceError],
    ) -> None:
        """``message_bytes_max`` is ``max.message.bytes`` of the topic; ``translated`` turns an
        error of the client, and what was being done, into an error of ours."""
        check_shard(stream, shard)
        self._stream = stream
        self._shard = shard
        self._topic = topic
        self._message_bytes_max = message_bytes_max
        self._group = PREFIX + digest(origin).hex()
        self._id = PREFIX + digest(f"{origin} into {topic} {shard}").hex()
        self._make_producer = make_producer
        self._make_consumer = make_consumer
        self._outgoing = outgoing
        self._translated = translated
        self._producer: Producer | None = None
        self._columns: ColumnProducer | None = None
        self._ended: HeadraceError | None = None
        self._begun = False
        self._begun_s = 0.0
        self._unsettled = 0
        """The position of the last commit of this producer; 0: it has made none."""
        self._metadata: Any = None
        self.at: int | None = None
        self._open()

    def append(self, batch: Batch, next: int) -> None:
        assert self.at is None or next > self.at, f"{next} after {self.at}"
        check_headers(batch)
        for aborted in range(ABORTS_MAX + 1):
            try:
                self._transact(batch, next)
                break
            except _RAISED as why:
                error = error_of(why)
            if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._abort()
                raise too_large(batch, f"max.message.bytes of the topic {self._topic}")
            if aborted == ABORTS_MAX:
                raise self._give_up(error)
            if self._settle_outcome(error, next):
                break
        self.at = next

    def close(self) -> None:
        if self._producer is not None:
            try:
                self._settle(self._producer, time.monotonic() + SETTLE_S)
            except _RAISED as why:
                if error_of(why).code() not in _FENCED:
                    log.warning("%s: the broker has to end the transaction: %s", self._what, why)
        self._end(Closed(f"{self._what}: this copy was closed"))

    def _settle(self, producer: Producer, until_s: float) -> None:
        """Abort an open transaction, and wait until the records of the last commit can be read."""

        def look() -> None:
            if time.monotonic() > until_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        if not self._begun and self._unsettled:
            # The broker answers a commit before its records can be read. Only afterwards it lets
            # the same producer begin another transaction.
            producer.begin_transaction()
            self._begun = True
            behind = self._as_offsets(self._unsettled)
            call_watched(
                lambda: producer.send_offsets_to_transaction(behind, self._metadata, CALL_S), look
            )
        if self._begun:
            call_watched(lambda: producer.abort_transaction(CALL_S), look)

    # One transaction

    def _transact(self, batch: Batch, next: int) -> None:
        producer = self._used
        self._begun_s = time.monotonic()
        producer.begin_transaction()
        self._begun = True
        for value, key, headers, timestamp_ms in self._outgoing(batch):
            self._produce(producer, value, key, headers, timestamp_ms)
        behind = self._as_offsets(next)
        self._call(lambda: producer.send_offsets_to_transaction(behind, self._metadata, CALL_S))
        self._call(lambda: producer.commit_transaction(CALL_S))
        self._begun = False
        self._unsettled = next

    def _as_offsets(self, next: int) -> list[TopicPartition]:
        return [TopicPartition(self._topic, self._shard, next, metadata=self._id)]

    def _produce(
        self,
        producer: Producer,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[Header] | None,
        timestamp_ms: int,
    ) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                producer.produce(
                    self._topic,
                    value,
                    key,
                    self._shard,
                    timestamp=timestamp_ms,
                    headers=list(headers) if headers else None,
                )
                return
            except BufferError:
                if time.monotonic() > until_s:
                    raise self._end_unknown() from None
                producer.poll(0.05)

    def _abort(self) -> None:
        """Abort the open transaction; afterwards the producer, or a new one, can be used."""
        try:
            self._call(lambda: self._used.abort_transaction(CALL_S))
            self._begun = False
            return
        except _RAISED as why:
            error = error_of(why)
        if error.code() in _FENCED:
            self._check_overdue()
        self._reopen(self.at)

    def _call(self, call: Callable[[], object]) -> None:
        """Call the client, again while no broker answers: that resumes a commit or an abort. A call
        that takes longer than its timeout may never return, and its producer is lost."""
        until_s = time.monotonic() + PATIENCE_S
        revival = Revival(self._revive)

        def look() -> None:
            revival.look()
            if time.monotonic() - called_s > STUCK_S:
                log.warning("%s: a call of the client does not return: beginning again", self._what)
                raise KafkaException(KafkaError(KafkaError._FAIL))

        while True:
            called_s = time.monotonic()
            try:
                call_watched(call, look)
                return
            except _RAISED as why:
                error = error_of(why)
                again = error.retriable() or error.code() in AWAY
                if error.fatal() or error.txn_requires_abort() or not again:
                    raise
            if time.monotonic() > until_s:
                raise self._end_unknown()
            revival.look()

    def _revive(self) -> None:
        if self._columns is not None:
            self._columns.revive()

    # After an error

    def _settle_outcome(self, error: KafkaError, next: int) -> bool:
        """Whether the last transaction was committed after all; if not, it can be tried again."""
        if error.code() in _FENCED:
            self._check_overdue()
            # The broker aborted it: a position at ``next`` would be that of another copy.
            self._reopen(self.at)
            return False
        if error.txn_requires_abort():
            self._abort()
            return False
        return self._reopen(self.at, next) == next

    def _check_overdue(self) -> None:
        """A fence comes from another copy, unless the transaction is so old that the broker may
        have aborted it by itself.

        So two copies do not fence each other for ever: a fenced one begins again only if nothing
        was copied for `TRANSACTION_S`."""
        if time.monotonic() - self._begun_s < TRANSACTION_S:
            raise self._end_fenced()

    def _reopen(self, *known: int | None) -> int | None:
        """Make a new producer for one that broke, unless another copy has gone on meanwhile; the
        position."""
        before = self.at
        self._producer = self._columns = None
        # A new producer fences any other copy, so look first whether there is one. Another copy
        # has a later position; an earlier one is that of a commit that a killed broker has yet to
        # finish.
        seen = self._ask_position(pending=True)
        if seen is not None and seen > (-1 if before is None else before) and seen not in known:
            raise self._end_fenced()
        self._open()
        found, self.at = self.at, before
        if found not in known:
            raise self._end_fenced()
        return found

    def _give_up(self, error: KafkaError) -> HeadraceError:
        if error.code() in _FENCED:
            return self._end_fenced()
        if error.txn_requires_abort():
            self._abort()
        return self._end(self._translated(error, self._what))

    # Beginning

    def _open(self) -> None:
        """Fence the copy before, which aborts its transaction; then ask for its position."""
        for opening in range(1, OPENINGS_MAX + 1):
            try:
                self._producer = self._initialise_producer()
                break
            except _RAISED as why:
                error = error_of(why)
            # Two copies began at once: the other may be gone already.
            if error.code() not in _FENCED or opening == OPENINGS_MAX:
                raise (
                    self._end_fenced()
                    if error.code() in _FENCED
                    else self._end(self._translated(error, self._what))
                )
        self._begun = False
        self._unsettled = 0
        self.at = self._ask_position()

    def _initialise_producer(self) -> Producer:
        producer, self._columns = self._make_producer(
            {
                "transactional.id": self._id,
                "transaction.timeout.ms": TRANSACTION_S * 1000,
                "message.timeout.ms": TRANSACTION_S * 1000,
                "retry.backoff.ms": 1,  # else a transaction waits long for the one before
                "linger.ms": 0,
                "batch.size": min(BATCH_BYTES, self._message_bytes_max),
            }
        )
        # This makes a connection: without one the next call waits for half a second.
        found = producer.list_topics(self._topic, timeout=CALL_S).topics[self._topic]
        if found.error is not None and found.error.code() in UNKNOWN_TOPIC:
            raise UnknownStream(self._stream.name)
        self._call(lambda: producer.init_transactions(CALL_S))
        return producer

    def _ask_position(self, *, pending: bool = False) -> int | None:
        """The committed position; with ``pending`` at once, even while a transaction is open."""
        properties = {
            "group.id": self._group,
            # Without it the answer passes over a transaction that is still open.
            "isolation.level": "read_uncommitted" if pending else "read_committed",
            "enable.auto.commit": False,
        }
        found: list[TopicPartition] = []

        def ask() -> None:
            consumer = self._make_consumer(properties)  # a new one for each question: see `patient`
            try:
                asked = [TopicPartition(self._topic, self._shard)]
                found[:] = consumer.committed(asked, CALL_S)
                self._metadata = consumer.consumer_group_metadata()
            finally:
                consumer.close()

        try:
            self._call(ask)
        except _RAISED as why:
            raise self._translated(error_of(why), self._what) from None
        if found[0].error is not None:
            raise self._translated(found[0].error, self._what)
        return found[0].offset if found[0].offset >= 0 else None

    # Ends

    @property
    def _used(self) -> Producer:
        if self._producer is None:
            assert self._ended is not None, "a copy without a producer has ended"
            raise self._ended
        return self._producer

    @property
    def _what(self) -> str:
        return f"copying into {self._stream.name}:{self._shard}"

    def _end(self, why: HeadraceError) -> HeadraceError:
        """Let go of the producer; later calls raise the same error."""
        self._producer = self._columns = None
        self._begun = False
        self._ended = self._ended or why
        return why

    def _end_fenced(self) -> HeadraceError:
        return self._end(Fenced(self._group, self._stream.name, self._shard, copying=True))

    def _end_unknown(self) -> HeadraceError:
        return self._end(
            UnknownOutcome(
                f"{self._what}: no answer from the broker within {PATIENCE_S:g} s; what was begun "
                "may have happened, the next copy goes on where it is known to have come to",
                withdrawn=False,
            )
        )
