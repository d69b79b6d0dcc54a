"""A client that is asked: patiently, and another one in its place when it will never answer.

librdkafka loses all brokers for good when the only one it knows says that there are none, as a
broker does that its controller has fenced, and hangs up right after it (its issue 5301, to be seen
in 2.16): it is left without an address, and asks nobody any more though brokers are back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import AWAY, SILENT, error_of, translated

C = TypeVar("C")
T = TypeVar("T")

ASK_S = 2.0
PAUSE_S = 0.05
SILENT_S = 5.0
"""A client that answers nothing for so long is replaced: brokers that are back are found within a
second or two by one that can find them."""


class PatientClient(Generic[C]):
    """Whoever takes ``client`` keeps it until it has answered: one that is replaced ends when
    nobody has it any more."""

    def __init__(
        self,
        client: C,
        make: Callable[[], C],
        rest: Callable[[C], None],
        clients: Clients,
        patience_s: float,
        check_open: Callable[[], None],
    ) -> None:
        """``rest`` lets a client that has not answered tell what troubles it, and try again by
        itself, for a moment."""
        self.client = client
        self._make = make
        self._rest = rest
        self._clients = clients
        self._patience_s = patience_s
        self._check_open = check_open
        self._lock = threading.Lock()
        self._answered_s = 0.0
        self._silent_s: float | None = None
        """When it was first heard that it does not answer, since it last did."""
        self._failed_s = 0.0
        """When that was heard last."""
        self._patience_with_it_s = SILENT_S

    def patiently(self, ask: Callable[[C], T], doing: str, patience_s: float | None = None) -> T:
        """What is asked for, as soon as a broker answers; `Unreachable` when patience is over."""
        patience_s = self._patience_s if patience_s is None else patience_s
        until_s = time.monotonic() + patience_s
        while True:
            self._check_open()
            client, asked_s = self.client, time.monotonic()
            try:
                answer = ask(client)
            except KafkaException as why:
                error = error_of(why)
                if error.code() in SILENT:
                    self._clients.down(error, asked_s)
                    self._note_silence(client, asked_s)
                else:
                    self._note_answer()
                over = time.monotonic() >= until_s
                if over:
                    self._check_open()
                if over or error.code() not in AWAY:
                    # Not by way of a variable: that would keep the client alive in a cycle.
                    raise translated(error, self._clients.settings, doing) from None
                self._rest(client)
            else:
                self._note_answer()
                self._clients.up()
                return answer

    def _note_answer(self) -> None:
        with self._lock:
            self._answered_s = time.monotonic()
            self._silent_s = None
            self._patience_with_it_s = SILENT_S

    def _note_silence(self, client: C, asked_s: float) -> None:
        """Replace the client if it has been silent for long; each time twice as long is waited, as
        another one may be slow to find a broker too."""
        with self._lock:
            if client is not self.client or self._answered_s > asked_s:
                return  # it is replaced already, or has answered others meanwhile
            now_s = time.monotonic()
            if self._silent_s is None or asked_s - self._failed_s > SILENT_S:
                self._silent_s = now_s  # nothing was asked for a while
            self._failed_s = now_s
            if now_s - self._silent_s >= self._patience_with_it_s:
                self._check_open()
                self.client = self._make()
                self._silent_s = None
                self._patience_with_it_s *= 2


Admin = PatientClient[AdminClient]
"""The client that topics, settings and groups are asked of."""
