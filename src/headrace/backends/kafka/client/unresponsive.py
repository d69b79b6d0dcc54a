"""Clients that do not answer: calls that may never return, closing that may never end, a client
that has lost its brokers, and errors of a client that belong to no record."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError

from headrace.backends.kafka.client.clients import OnError

LOOK_S = 0.2
"""The pause between two calls of ``while_waiting``."""
REVIVE_S = 1.0
"""How long a client may keep a caller waiting before it gets its brokers' addresses again."""
RECEIVED_MAX = "receive.message.max.bytes"
_OVERSIZED = re.compile(rf"Invalid response size (\d+) \(0\.\.(\d+)\): increase {RECEIVED_MAX}")


def call_watched(call: Callable[[], object], while_waiting: Callable[[], None]) -> None:
    """Make a call in a thread of its own, and wait for its end here, where signals are answered.

    ``while_waiting`` is called now and then. If it raises, the call is left behind."""
    raised: list[BaseException] = []

    def make() -> None:
        try:
            call()
        except BaseException as why:  # raised again by the thread that waits
            raised.append(why)

    calling = threading.Thread(target=make, name="headrace-kafka-call", daemon=True)
    calling.start()
    calling.join(LOOK_S)
    while calling.is_alive():
        while_waiting()
        calling.join(LOOK_S)
    if raised:
        raise raised.pop()


def close_within(close: Callable[[], None], within_s: float) -> bool:
    """Close a client; whether it closed in time.

    A client that has met damaged data may never close: it is left behind, and ends with the
    process."""
    closing = threading.Thread(target=close, name="headrace-kafka-closing", daemon=True)
    closing.start()
    closing.join(within_s)
    return not closing.is_alive()


class Revival:
    """Gives a client that keeps a caller waiting its brokers' addresses again: after a second, and
    then after twice as long each time. Why a client loses them: `patient`.

    A healthy client pays for that with one more thread until its next answer, and a few bytes."""

    def __init__(self, revive: Callable[[], None]) -> None:
        self._revive = revive
        self._pause_s = REVIVE_S
        self._next_s = time.monotonic() + REVIVE_S

    def look(self) -> None:
        """Called now and then while a caller waits."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._revive()
            self._pause_s *= 2
            self._next_s = now_s + self._pause_s


class Complaints:
    """The errors of one client that belong to no record. Each is passed on."""

    def __init__(self, pass_on: OnError) -> None:
        self._pass_on = pass_on
        self.oversized: tuple[int, int] | None = None
        """The size of an answer that the client refused, and the largest size that it takes."""

    def on_error(self, error: KafkaError) -> None:
        """Called by the client."""
        found = _OVERSIZED.search(error.str())
        if found is not None:
            self.oversized = int(found[1]), int(found[2])
        self._pass_on(error)
