"""The producers of a hub and the threads that hear their reports, as long as they are of use."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.backends.kafka.appending.send_columns import ColumnSending
from headrace.backends.kafka.client.failures import error_of
from headrace.core.errors import Closed

POLL_S = 0.1
CONNECT_S = 0.5
CLEAR_S = 1.0


class Sender:
    """One idempotent producer. When it is put away, another one takes its place; appends that wait
    for its reports still get them.

    What it holds is thrown away only when nobody waits for it any more: what the client says of
    records it throws away is not to be trusted, as those it sent over a lost connection count as
    never sent."""

    def __init__(self, producer: Producer, columns: ColumnSending | None) -> None:
        self.producer = producer
        self.columns = columns
        """For records that are all alike; None: that was not built."""
        self.ended: KafkaError | None = None
        """Why it cannot go on."""
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_put_away = False
        self._clear_s = 0.0
        self._hearing = threading.Thread(
            target=_hear, args=(weakref.ref(self),), name="headrace-kafka-deliveries", daemon=True
        )
        self._hearing.start()

    def connect(self, topic: str) -> None:
        """Else the client, which asks for a number before it has a connection, waits for half a
        second before it asks again."""
        with suppress(KafkaException):  # no broker answers: whoever appends waits for one
            self.producer.list_topics(topic, timeout=CONNECT_S)

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
            self._clear_if_done()

    @property
    def is_put_away(self) -> bool:
        return self._is_put_away

    def put_away(self, why: KafkaError | None = None) -> None:
        """No further append is given to it."""
        if self.ended is None:
            self.ended = why
        self._is_put_away = True
        self._clear_if_done()

    def revive(self) -> None:
        """In case that the client has no broker to ask any more; where columns cannot be sent,
        that is out of reach, and what waits for it ends with its patience."""
        if self.columns is not None:
            self.columns.revive()

    def close(self) -> None:
        self.put_away()
        self.producer.purge(blocking=False)
        self._hearing.join()

    def _clear_if_done(self) -> None:
        with self._lock:
            done = self._is_put_away and (not self._waiting or self.ended is not None)
        if done:
            self.producer.purge(blocking=False)

    def hear(self) -> bool:
        """Let the client report; False when it was put away and owes nothing."""
        try:
            self.producer.poll(POLL_S)
        except (KafkaException, SystemError) as why:
            self.put_away(error_of(why))
        # Not each time: what the client logs of it is owed as well.
        if self._is_put_away and time.monotonic() > self._clear_s:
            self._clear_s = time.monotonic() + CLEAR_S
            self._clear_if_done()
        return not self._is_put_away or len(self.producer) > 0


def _hear(of: weakref.ref[Sender]) -> None:
    """Until it has no more to say, or nobody uses it any more."""
    while True:
        sender = of()
        if sender is None or not sender.hear():
            return
        del sender


class Senders:
    """The senders in use, made when they are first needed: one for each size of batches, as a
    topic refuses batches larger than it takes."""

    def __init__(self, make: Callable[[int], tuple[Producer, ColumnSending | None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._senders: dict[int, Sender] = {}
        self._closed = False

    def current(self, batch_bytes: int, topic: str) -> Sender:
        """A new one gets in touch with the brokers of that topic."""
        with self._lock:
            if self._closed:
                raise Closed("this hub was closed")
            sender = self._senders.get(batch_bytes)
            if sender is not None and not sender.is_put_away:
                return sender
            sender = self._senders[batch_bytes] = Sender(*self._make(batch_bytes))
        sender.connect(topic)
        return sender

    def close(self) -> None:
        with self._lock:
            self._closed = True
            senders, self._senders = list(self._senders.values()), {}
        for sender in senders:
            sender.close()
