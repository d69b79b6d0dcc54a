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

from penstock.backends.kafka.clients import Clients
from penstock.backends.kafka.failures import AWAY, SILENT, error_of, raised, translated
from penstock.core.errors import Unreachable

C = TypeVar("C")
T = TypeVar("T")

ASK_S = 2.0
PAUSE_S = 0.05
SILENT_S = 5.0
"""A client that answers nothing for so long is replaced: brokers that are back are found within a
second or two by one that can find them."""


class Asked(Generic[C]):
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
        self._silent_since_s: float | None = None

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
                if error.code() not in AWAY:
                    raise translated(error, self._clients.settings, doing) from None
                if error.code() in SILENT:
                    self._clients.down(error, asked_s)
                    self._replace_if_silent(client, asked_s)
                if time.monotonic() >= until_s:
                    self._check_open()
                    wrong = raised(why, self._clients.settings, doing)
                    assert isinstance(wrong, Unreachable)
                    raise wrong from None
                self._rest(client)
            else:
                self._silent_since_s = None
                self._clients.up()
                return answer

    def _replace_if_silent(self, client: C, asked_s: float) -> None:
        with self._lock:
            if client is not self.client:
                return  # somebody else has
            since_s = self._silent_since_s = self._silent_since_s or asked_s
            if time.monotonic() - since_s >= SILENT_S:
                self.client = self._make()
                self._silent_since_s = None


Admin = Asked[AdminClient]
