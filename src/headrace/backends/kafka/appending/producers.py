"""The producers of a hub, each with a thread that takes its delivery reports."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.backends.kafka.appending.send_columns import ColumnProducer
from headrace.backends.kafka.client.failures import error_of
from headrace.core.errors import Closed

POLL_S = 0.1
CONNECT_S = 0.5
PURGE_S = 1.0


class IdempotentProducer:
    """One producer, shared by appends. When it is retired, another one takes its place; appends
    that wait for its reports still get them.

    The records in its queues are thrown away only when no append waits for them any more. What the
    client reports of thrown-away records is not to be trusted: records that it sent over a
    connection that was lost count as never sent."""

    def __init__(self, client: Producer, columns: ColumnProducer | None) -> None:
        self.client = client
        self.columns = columns
        """Sends records that consist of a key, data and a timestamp; None: it was not built."""
        self.fatal_error: KafkaError | None = None
        """Why it cannot go on; None while it can, or if it was retired for another reason."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_retired = False
        self._purge_s = 0.0
        self._polling = threading.Thread(
            target=_poll, args=(weakref.ref(self),), name="headrace-kafka-deliveries", daemon=True
        )
        self._polling.start()

    def connect(self, topic: str) -> None:
        """Get in touch with a broker. The client asks for its producer number before it has a
        connection, and waits half a second before it asks again: a connection saves that wait."""
        with suppress(KafkaException):  # no broker answers: the append waits for one
            self.client.list_topics(topic, timeout=CONNECT_S)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While an append waits for reports."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
            self._purge_if_unused()

    @property
    def is_retired(self) -> bool:
        return self._is_retired

    def retire(self, why: KafkaError | None = None) -> None:
        """Take no further append."""
        if self.fatal_error is None:
            self.fatal_error = why
        self._is_retired = True
        self._purge_if_unused()

    def revive(self) -> None:
        """Give the client its brokers' addresses again: see `patient`. Without ``columns.c`` that
        cannot be done, and appends that wait end with their patience."""
        if self.columns is not None:
            self.columns.revive()

    def close(self) -> None:
        self.retire()
        self.client.purge(blocking=False)
        self._polling.join()

    def _purge_if_unused(self) -> None:
        with self._lock:
            unused = self._is_retired and (not self._waiting or self.fatal_error is not None)
        if unused:
            self.client.purge(blocking=False)

    def poll(self) -> bool:
        """Let the client report; False when it is retired and owes no report."""
        try:
            self.client.poll(POLL_S)
        except (KafkaException, SystemError) as why:
            self.retire(error_of(why))
        # Not at each poll: a log line of the purge is one more report that the client owes.
        if self._is_retired and time.monotonic() > self._purge_s:
            self._purge_s = time.monotonic() + PURGE_S
            self._purge_if_unused()
        return not self._is_retired or len(self.client) > 0


def _poll(reference: weakref.ref[IdempotentProducer]) -> None:
    """Poll until the producer owes no report, or until its hub is gone."""
    while True:
        producer = reference()
        if producer is None or not producer.poll():
            return
        del producer


class IdempotentProducers:
    """The producers in use, each made when it is first needed: one for each size of batches, as a
    topic refuses a batch that is larger than its limit."""

    def __init__(self, make: Callable[[int], tuple[Producer, ColumnProducer | None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._by_batch_bytes: dict[int, IdempotentProducer] = {}
        self._closed = False

    def get(self, batch_bytes: int, topic: str) -> IdempotentProducer:
        """The producer for that size of batches; a new one connects to a broker of that topic."""
        with self._lock:
            if self._closed:
                raise Closed("this hub was closed")
            producer = self._by_batch_bytes.get(batch_bytes)
            if producer is not None and not producer.is_retired:
                return producer
            producer = IdempotentProducer(*self._make(batch_bytes))
            self._by_batch_bytes[batch_bytes] = producer
        producer.connect(topic)
        return producer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            producers, self._by_batch_bytes = list(self._by_batch_bytes.values()), {}
        for producer in producers:
            producer.close()
