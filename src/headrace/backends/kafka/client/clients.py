"""Making librdkafka's clients, with our settings and the caller's, and hearing their troubles."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from headrace.backends.kafka.client.native import Native, native
from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.backends.kafka.client.usable import Usable
from headrace.core.errors import BadSetting
from headrace.core.records.row import COMMIT_BYTES_MAX

log = logging.getLogger("headrace.kafka")

Hear = Callable[[KafkaError], None]

MESSAGE_BYTES_MAX = COMMIT_BYTES_MAX + 1024 * 1024
"""Room for the largest record and for what Kafka adds to it."""

BATCH_BYTES = 1_000_000

COMMON = {"log_level": 0, "allow.auto.create.topics": False, "socket.timeout.ms": 10_000}
RECONNECTING = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 1000}
"""Who comes back is found within a second, not ten. One is nothing without the other."""
READING: dict[str, Any] = {
    "group.id": "headrace-reader",  # asked for by the client; reading by assignment joins no group
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "check.crcs": True,
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 25,
    "queued.max.messages.kbytes": 4 * 1024,
}
WRITING = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,  # not every record is asked for its report
    "message.timeout.ms": 0,  # the deadline is ours: a timed out record would leave a gap unseen
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "linger.ms": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}

_CREATING = re.compile(r"^Failed to create [a-z ]+: ")
_NO_PROVIDER = "No provider for SASL mechanism"
_OPTIONS = "Current build options: "


_ALIASES = {
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
"""The client complains about its own name of a property, not about the one that was written."""


class Clients:
    """Makes clients for one hub, and hears what they complain about."""

    def __init__(self, settings: KafkaSettings, gate: Usable) -> None:
        self.settings = settings
        self.native: Native | None = native() if settings.native else None
        self._gate = gate
        self._lock = threading.Lock()
        self._down = False
        self._answered_s = 0.0
        self._hear: Hear = self._note
        _in_use.add(self)

    @property
    def message_bytes_max(self) -> int:
        """What the client itself takes for one record."""
        given = self.settings.properties.get("message.max.bytes", MESSAGE_BYTES_MAX)
        return int(given)

    @property
    def batch_bytes(self) -> int:
        """Of one request for one partition, at most."""
        return int(self.settings.properties.get("batch.size", BATCH_BYTES))

    @property
    def compresses(self) -> bool:
        """Whether the caller asked for compression."""
        given = self.settings.properties
        return any(given.get(f"compression.{name}", "none") != "none" for name in ("type", "codec"))

    def listen(self, hear: Hear | None) -> None:
        """Who hears the complaints of all clients; None: they are logged."""
        self._hear = hear or self._note

    def hear(self, error: KafkaError) -> None:
        """A complaint of a client."""
        self._hear(error)

    def admin(self) -> AdminClient:
        return self._made(AdminClient, {}, {"error_cb": self.hear})

    def consumer(self, hear: Hear | None = None, **more: Any) -> Consumer:
        """``hear`` is told its complaints, and has to tell them to `hear` here."""
        return self._made(Consumer, READING, {"error_cb": hear or self.hear, **more})

    def producer(self, **more: Any) -> Producer:
        return self._made(Producer, WRITING, {"error_cb": self.hear, **more})

    def native_consumer(self, native: Native) -> tuple[Consumer, int]:
        """With its handle in C. Nobody hears its complaints: see ``note_made`` in columns.c."""
        return native.made(lambda plugin: self._made(Consumer, READING, plugin))

    def native_producer(self, native: Native, **more: Any) -> tuple[Producer, int]:
        return native.made(lambda plugin: self.producer(**more, **plugin))

    def up(self) -> None:
        """A broker has answered."""
        with self._lock:
            was_down, self._down = self._down, False
            self._answered_s = time.monotonic()
        if was_down:
            log.warning("hub=%s: a broker answers again", self.settings)

    def down(self, why: KafkaError, asked_s: float) -> None:
        """None has answered what was asked then."""
        with self._lock:
            if self._down or self._answered_s > asked_s:
                return
            self._down = True
        told = self.settings.without_secrets(why.str())
        log.warning("hub=%s: no broker answers, going on to try: %s", self.settings, told)

    def _made(self, kind: Any, usual: dict[str, Any], more: dict[str, Any]) -> Any:
        self._gate.check_process()
        given = self.settings.properties
        common = {} if RECONNECTING.keys() & given.keys() else RECONNECTING
        properties = {
            **COMMON,
            **common,
            **usual,
            **given,
            **more,
            "bootstrap.servers": self.settings.bootstrap,
        }
        try:
            return kind(properties, logger=_Debug(self.settings))
        except (KafkaException, ValueError, TypeError) as why:
            raise BadSetting(f"kafka settings: {self._told(why)}") from None

    def _told(self, why: Exception) -> str:
        error = why.args[0] if why.args else why
        text = error.str() if isinstance(error, KafkaError) else str(error)
        if _NO_PROVIDER in text:
            return f"set sasl.mechanism: this client has {text.rpartition(_OPTIONS)[2]}"
        plain = " ".join(self.settings.without_secrets(text).replace('"', "'").split())
        for own, written in _ALIASES.items():
            if own not in self.settings.properties and written in self.settings.properties:
                plain = plain.replace(f"'{own}'", f"'{written}'")
        return "; ".join([_CREATING.sub("", plain), *self._unreadable()])

    def _unreadable(self) -> list[str]:
        """Which files cannot be read, and why: the client does not name them."""
        found = []
        for name, value in self.settings.properties.items():
            if name.startswith("ssl.") and name.endswith(".location"):
                try:
                    os.stat(str(value))
                except OSError as why:
                    found.append(f"{name} {str(value)!r}: {why.strerror}")
        return found

    def _note(self, error: KafkaError) -> None:
        # Not as a warning: clients that are not asked tell of outages that are long over.
        log.info("hub=%s: %s", self.settings, self.settings.without_secrets(error.str()))


_in_use: weakref.WeakSet[Clients] = weakref.WeakSet()


def _keep() -> None:
    """In a child, for ever: to free a client would wait for threads that are not there, or
    crash."""
    for found in gc.get_objects() if len(_in_use) else ():
        if issubclass(type(found), Consumer | Producer | AdminClient):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


os.register_at_fork(after_in_child=_keep)


class _Debug:
    """Where librdkafka logs to: while a broker is away it says one thing many times a second."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def log(self, level: int, template: str, *facts: object) -> None:
        log.debug("%s", self._settings.without_secrets(template % facts))
