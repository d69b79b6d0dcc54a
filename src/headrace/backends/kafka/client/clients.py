"""Makes librdkafka's clients, with our settings and the caller's, and logs their errors."""

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

from headrace.backends.kafka.client.native import Native, load_native
from headrace.backends.kafka.client.properties import load_properties
from headrace.backends.kafka.client.settings import OURS, OWN, KafkaSettings
from headrace.backends.kafka.client.usable import Usable
from headrace.core.errors import BadSetting
from headrace.core.nearest import did_you_mean
from headrace.core.records.row import COMMIT_BYTES_MAX

log = logging.getLogger("headrace.kafka")

OnError = Callable[[KafkaError], None]
"""What a client calls with an error that belongs to no record."""

MESSAGE_BYTES_MAX = COMMIT_BYTES_MAX + 1024 * 1024
"""The largest record of Headrace, and room for what Kafka adds to it."""

BATCH_BYTES = 1_000_000

COMMON = {"log_level": 0, "allow.auto.create.topics": False, "socket.timeout.ms": 10_000}
RECONNECTING = {"reconnect.backoff.ms": 100, "reconnect.backoff.max.ms": 1000}
"""A broker that is back is found within a second, not within ten. The client refuses one of the two
without the other."""
READING: dict[str, Any] = {
    "group.id": "headrace-reader",  # the client demands one; reading by assignment joins no group
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
    "enable.gapless.guarantee": True,  # not every record reports its delivery
    "message.timeout.ms": 0,  # Headrace has its own deadline: a late record would leave a gap
    "message.max.bytes": MESSAGE_BYTES_MAX,
    "linger.ms": 1,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 256 * 1024,
}

_CREATING = re.compile(r"^Failed to create [a-z ]+: ")
_NO_PROVIDER = "No provider for SASL mechanism"
_OPTIONS = "Current build options: "
_MECHANISMS = {"SASL_SCRAM": "SCRAM-SHA-256, SCRAM-SHA-512", "SASL_CYRUS": "GSSAPI"}
"""Build options of librdkafka, and the values of ``sasl.mechanism`` that they stand for."""
_UNKNOWN = re.compile(r"No such configuration property: '(.*)'")
_INVALID = re.compile(r"Invalid value (?:'.*' )?for configuration property '(.+)'")


_ALIASES = {
    "queue.buffering.max.ms": "linger.ms",
    "compression.codec": "compression.type",
    "sasl.mechanisms": "sasl.mechanism",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "message.send.max.retries": "retries",
    "max.in.flight": "max.in.flight.requests.per.connection",
}
"""The client's own names of properties, which its errors use, and the names that callers give."""


class Clients:
    """Makes the clients of one hub, and gets the errors that belong to none of their records."""

    def __init__(self, settings: KafkaSettings, usable: Usable) -> None:
        self.settings = settings
        self.native: Native | None = load_native() if settings.native else None
        self._usable = usable
        self._lock = threading.Lock()
        self._down = False
        self._answered_s = 0.0
        self._on_error: OnError = self._log_error
        _in_use.add(self)

    @property
    def message_bytes_max(self) -> int:
        """The largest record that the client itself takes."""
        given = self.settings.properties.get("message.max.bytes", MESSAGE_BYTES_MAX)
        return int(given)

    @property
    def batch_bytes(self) -> int:
        """The most bytes that one request carries for one partition."""
        return int(self.settings.properties.get("batch.size", BATCH_BYTES))

    @property
    def compresses(self) -> bool:
        """Whether the caller asked for compression."""
        given = self.settings.properties
        return any(given.get(f"compression.{name}", "none") != "none" for name in ("type", "codec"))

    def divert_errors(self, on_error: OnError | None) -> None:
        """Give the errors of all clients to ``on_error`` from now on; None: log them."""
        self._on_error = on_error or self._log_error

    def on_error(self, error: KafkaError) -> None:
        """Called by the clients."""
        self._on_error(error)

    def admin(self) -> AdminClient:
        return self._make(AdminClient, {}, {"error_cb": self.on_error})

    def consumer(self, on_error: OnError | None = None, **more: Any) -> Consumer:
        """A consumer whose errors go to ``on_error``, which has to pass them on to `on_error` of
        this object."""
        return self._make(Consumer, READING, {"error_cb": on_error or self.on_error, **more})

    def producer(self, **more: Any) -> Producer:
        return self._make(Producer, WRITING, {"error_cb": self.on_error, **more})

    def native_consumer(self, native: Native) -> tuple[Consumer, int]:
        """A consumer and its handle in C. Its errors are dropped: see ``note_made`` in
        columns.c."""
        return native.make_client(lambda plugin: self._make(Consumer, READING, plugin))

    def native_producer(self, native: Native, **more: Any) -> tuple[Producer, int]:
        """A producer and its handle in C."""
        return native.make_client(lambda plugin: self.producer(**more, **plugin))

    def note_answer(self) -> None:
        """A broker has answered: the end of an outage is logged once."""
        with self._lock:
            was_down, self._down = self._down, False
            self._answered_s = time.monotonic()
        if was_down:
            log.warning("hub=%s: a broker answers again", self.settings)

    def note_silence(self, why: KafkaError, asked_s: float) -> None:
        """No broker has answered the question of that moment: an outage is logged once."""
        with self._lock:
            if self._down or self._answered_s > asked_s:
                return
            self._down = True
        shown = self.settings.without_secrets(why.str())
        log.warning("hub=%s: no broker answers, going on to try: %s", self.settings, shown)

    def _make(self, kind: Any, usual: dict[str, Any], more: dict[str, Any]) -> Any:
        self._usable.check_process()
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
            return kind(properties, logger=_DebugLog(self.settings))
        except (KafkaException, ValueError, TypeError) as why:
            raise BadSetting(f"kafka settings: {self._explained(why)}") from None

    def _explained(self, why: Exception) -> str:
        """Why the client refuses its properties, in one line and in the words of the caller."""
        error = why.args[0] if why.args else why
        text = error.str() if isinstance(error, KafkaError) else str(error)
        if _NO_PROVIDER in text:
            options = text.rpartition(_OPTIONS)[2].split()
            mechanisms = ", ".join(_MECHANISMS.get(option, option) for option in options)
            return f"set sasl.mechanism: this client has {mechanisms}"
        plain = " ".join(self.settings.without_secrets(text).replace('"', "'").split())
        hint = _hint(plain)
        for own, written in _ALIASES.items():
            if own not in self.settings.properties and written in self.settings.properties:
                plain = plain.replace(f"'{own}'", f"'{written}'")
        return "; ".join([_CREATING.sub("", plain) + hint, *self._unreadable_files()])

    def _unreadable_files(self) -> list[str]:
        """The files of ``ssl.*.location`` that cannot be read, and why: the client names none."""
        found = []
        for name, value in self.settings.properties.items():
            if name.startswith("ssl.") and name.endswith(".location"):
                try:
                    os.stat(str(value))
                except OSError as why:
                    found.append(f"{name} {str(value)!r}: {why.strerror}")
        return found

    def _log_error(self, error: KafkaError) -> None:
        # Not as a warning: an idle client reports outages that are long over.
        log.info("hub=%s: %s", self.settings, self.settings.without_secrets(error.str()))


def _hint(refusal: str) -> str:
    """What the caller can write instead, where the client does not say it."""
    unknown = _UNKNOWN.search(refusal)
    if unknown is not None:
        return did_you_mean(unknown[1], {*load_properties(), *OWN} - OURS.keys())
    invalid = _INVALID.search(refusal)
    values = None if invalid is None else load_properties().get(invalid[1])
    return "" if values is None else f"; it takes {values}"


_in_use: weakref.WeakSet[Clients] = weakref.WeakSet()


def _keep_clients() -> None:
    """Keep the parent's clients for ever in a child of this process: freeing a client would wait
    for threads that the child does not have, or crash."""
    for found in gc.get_objects() if len(_in_use) else ():
        if issubclass(type(found), Consumer | Producer | AdminClient):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


os.register_at_fork(after_in_child=_keep_clients)


class _DebugLog:
    """librdkafka logs here, below our own level: while a broker is away it repeats one line many
    times a second."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings

    def log(self, level: int, template: str, *facts: object) -> None:
        log.debug("%s", self._settings.without_secrets(template % facts))
