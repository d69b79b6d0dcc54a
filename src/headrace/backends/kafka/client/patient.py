"""A client that is asked patiently, and replaced when it will never answer.

librdkafka can lose all brokers for good (its issue 5301, seen in 2.16). It knows one broker only;
that broker, fenced by its controller, says that there are no brokers, and hangs up right after.
Then the client has no address left, and asks no broker any more, though brokers are back.
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
"""How long one question waits for its answer."""
PAUSE_S = 0.05
"""How long a client is polled between two questions."""
SILENT_S = 5.0
"""How long a client may answer nothing before it is replaced: a client that still has an address
finds brokers that are back within a second or two."""


class PatientClient(Generic[C]):
    """A client, and the way to another one if it stays silent.

    A caller that takes ``client`` keeps it until the answer is there. A client that was replaced
    ends when its last caller lets go of it."""

    def __init__(
        self,
        client: C,
        make: Callable[[], C],
        rest: Callable[[C], None],
        clients: Clients,
        patience_s: float,
        check_open: Callable[[], None],
    ) -> None:
        """``rest`` polls a client that has not answered for a moment, so that it can report errors
        and try again by itself."""
        self.client = client
        self._make = make
        self._rest = rest
        self._clients = clients
        self._patience_s = patience_s
        self._check_open = check_open
        self._lock = threading.Lock()
        self._answered_s = 0.0
        self._silent_s: float | None = None
        """When the first call failed for want of an answer, since the last answer."""
        self._failed_s = 0.0
        """When the last call failed so."""
        self._patience_with_client_s = SILENT_S

    def patiently(self, ask: Callable[[C], T], doing: str, patience_s: float | None = None) -> T:
        """Ask again and again until a broker answers; `Unreachable` when patience is over."""
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
                    self._clients.note_silence(error, asked_s)
                    self._note_silence(client, asked_s)
                else:
                    self._note_answer()
                over = time.monotonic() >= until_s
                if over:
                    self._check_open()
                if over or error.code() not in AWAY:
                    # Not through a variable: it would keep the client alive in a cycle.
                    raise translated(error, self._clients.settings, doing) from None
                self._rest(client)
            else:
                self._note_answer()
                self._clients.note_answer()
                return answer

    def _note_answer(self) -> None:
        with self._lock:
            self._answered_s = time.monotonic()
            self._silent_s = None
            self._patience_with_client_s = SILENT_S

    def _note_silence(self, client: C, asked_s: float) -> None:
        """Replace the client if it has been silent for long. The next one gets twice as much time:
        it may be slow to find a broker too."""
        with self._lock:
            if client is not self.client or self._answered_s > asked_s:
                return  # replaced already, or it has answered another caller meanwhile
            now_s = time.monotonic()
            if self._silent_s is None or asked_s - self._failed_s > SILENT_S:
                self._silent_s = now_s  # the calls before are too long ago to count
            self._failed_s = now_s
            if now_s - self._silent_s >= self._patience_with_client_s:
                self._check_open()
                self.client = self._make()
                self._silent_s = None
                self._patience_with_client_s *= 2


Admin = PatientClient[AdminClient]
"""The client that asks about topics, settings and groups."""
