"""One node of Kafka, broker and controller in one, that listens on loopback only.

One directory holds its data, certificates, log and process, so that another program can find and
stop it. A node that is killed and started again has the same data on the same ports.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from headrace.core.errors import BadSetting, Refused
from headrace.tools.kafka_node.certificates import Certificates, certificates_in
from headrace.tools.kafka_node.formatting import make_data
from headrace.tools.kafka_node.jars import kafka_jars
from headrace.tools.kafka_node.java import java_path
from headrace.tools.kafka_node.locking import alone
from headrace.tools.kafka_node.log_tail import QUIET, tail
from headrace.tools.kafka_node.ports import LOOPBACK, check_free, free_ports
from headrace.tools.kafka_node.private_files import write_private
from headrace.tools.kafka_node.probe import answers
from headrace.tools.kafka_node.process import Process, process_of
from headrace.tools.kafka_node.properties import (
    CONTROLLER,
    LISTENERS,
    MECHANISMS,
    PLAINTEXT,
    User,
    node_properties,
    protocol,
    scram_arguments,
    security_properties,
    written,
)
from headrace.tools.kafka_node.spawning import spawn_dying_with_parent, spawn_free

HEAP = "512m"
START_S = 90.0
STOP_S = 30.0

_LOOK_S = 0.05
_LOCK = "lock"
"""The lock file is made first: a directory that has one belongs to a node."""
_SERVER = "kafka.Kafka"


class RunningNode(msgspec.Struct, frozen=True):
    """The process and the ports of a node, kept in its directory while it runs."""

    process: Process
    ports: dict[str, int]


class Broker:
    """A node of Kafka: ``with Broker(directory) as broker`` starts and stops it."""

    def __init__(
        self,
        directory: Path,
        *,
        secure: bool = False,
        ports: Mapping[str, int] | None = None,
        heap: str = HEAP,
        settings: Mapping[str, str] | None = None,
        outlives: bool = False,
    ) -> None:
        """With `secure` the broker has five listeners, else only the first. A listener without a
        port in `ports` gets a free one. `settings` are added to ``server.properties``. With
        `outlives` the broker is not killed when this process ends."""
        self.directory = directory.absolute()
        if "," in str(self.directory):
            raise BadSetting(f"{self.directory}: Kafka wants a directory without a comma")
        self.secure = secure
        self._listeners = LISTENERS if secure else (PLAINTEXT,)
        unknown = sorted(set(ports or ()) - {*self._listeners, CONTROLLER})
        if unknown:
            raise BadSetting(f"no listener {unknown[0]}: there are {', '.join(self._listeners)}")
        self._ports = dict(ports or {})
        self._heap = heap
        self._settings = dict(settings or {})
        self._outlives = outlives
        self._keeps_alive: int | None = None

    # What clients need

    @property
    def bootstrap(self) -> str:
        """The address of the listener without security."""
        return self.address(PLAINTEXT)

    def address(self, listener: str) -> str:
        if listener not in self._ports:
            raise BadSetting(f"no address of {listener}: the broker was never started, or has none")
        return f"{LOOPBACK}:{self._ports[listener]}"

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.directory / "certificates")

    @property
    def ann(self) -> User:
        """The user that PLAIN knows."""
        return self._users()["ann"]

    @property
    def bob(self) -> User:
        """The user that both kinds of SCRAM know."""
        return self._users()["bob"]

    def client(self, listener: str = PLAINTEXT, mechanism: str = MECHANISMS[0]) -> dict[str, Any]:
        """Properties of librdkafka for a client that the listener lets in."""
        kind = protocol(listener)
        found = {"bootstrap.servers": self.address(listener), "security.protocol": kind}
        if kind.startswith("SASL"):
            user = self.ann if mechanism == "PLAIN" else self.bob
            found |= {"sasl.mechanism": mechanism, "sasl.username": user.name}
            found["sasl.password"] = user.password
        if kind.endswith("SSL"):
            found["ssl.ca.location"] = str(self.certificates.ca)
        if listener == "MTLS":
            found["ssl.certificate.location"] = str(self.certificates.client)
            found["ssl.key.location"] = str(self.certificates.client_key)
        return found

    # Its life

    @property
    def log_path(self) -> Path:
        return self.directory / "broker.log"

    @property
    def pid(self) -> int | None:
        """The pid of the broker; None if it does not run."""
        running = self.running()
        return running.process.pid if running is not None else None

    @property
    def is_running(self) -> bool:
        return self.running() is not None

    @property
    def answers(self) -> bool:
        return PLAINTEXT in self._ports and answers(LOOPBACK, self._ports[PLAINTEXT])

    def running(self) -> RunningNode | None:
        """The running broker, also if another process started it; its ports are taken over."""
        found = self._remembered()
        if found is None or not found.process.is_alive:
            return None
        self._ports = dict(found.ports)
        return found

    def start(self) -> None:
        """Start the node, unless it runs, and wait until it serves. A port that is taken is refused
        before a directory is made."""
        if not (self.directory / _LOCK).exists():
            self._check_ports()
        self._make_directory()
        with self._alone():
            if not self.is_running:
                killed = self._remembered()
                if killed is not None:
                    killed.process.ended(
                        STOP_S
                    )  # threads of a killed broker may still hold its ports
                self._choose_ports()
                self._start(java_path(), kafka_jars())

    def stop(self, within_s: float = STOP_S) -> None:
        """Let the broker finish and end; kill it if that takes too long."""
        self._end_by({signal.SIGTERM: within_s, signal.SIGKILL: STOP_S})

    def kill(self) -> None:
        """End the broker at once, as a power failure would."""
        self._end_by({signal.SIGKILL: STOP_S})

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # Inside

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = {path.name for path in self.directory.iterdir()}
        except OSError as why:
            raise BadSetting(f"{self.directory} cannot be made: {why.strerror}") from None
        if found and _LOCK not in found:
            raise BadSetting(f"{self.directory} holds other files: name a directory of its own")

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    @property
    def _running(self) -> Path:
        return self.directory / "running.json"

    def _start(self, java: str, jars: Path) -> None:
        self._write_files()
        classes = ["-cp", f"{jars}/*"]
        if not (self._data / "meta.properties").exists():
            scram = scram_arguments(self.bob) if self.secure else []
            make_data([java, *QUIET, *classes], self._properties, scram)
        begun = self.log_path.stat().st_size if self.log_path.exists() else 0
        command = [java, f"-Xmx{self._heap}", *QUIET, *classes, _SERVER, str(self._properties)]
        process = self._spawned(command)
        try:
            self._remember(RunningNode(process, self._ports))
            self._wait(process, begun)
        except BaseException:
            self._end(process, signal.SIGKILL, STOP_S)
            raise

    def _users(self) -> dict[str, User]:
        path = self.directory / "users.json"
        if not path.exists():
            made = {name: User(name, secrets.token_hex(12)) for name in ("ann", "bob")}
            write_private(path, msgspec.json.encode(made))
        return msgspec.json.decode(path.read_bytes(), type=dict[str, User])

    def _choose_ports(self) -> None:
        self._check_ports()
        missing = [name for name in (*self._listeners, CONTROLLER) if name not in self._ports]
        self._ports |= dict(zip(missing, free_ports(len(missing)), strict=True))

    def _check_ports(self) -> None:
        """Refuse a given port that another program uses."""
        for port in self._ports.values():
            check_free(port)

    def _write_files(self) -> None:
        properties = node_properties(self._data, self._ports)
        if self.secure:
            certificates = certificates_in(self.certificates.directory)
            properties |= security_properties(certificates, self.ann)
        write_private(self._properties, written(properties | self._settings).encode())

    def _spawned(self, command: list[str]) -> Process:
        if self._outlives:
            pid = spawn_free(command, self.log_path)
        else:
            self._let_go()
            pid, self._keeps_alive = spawn_dying_with_parent(command, self.log_path)
        process = process_of(pid)
        if process is None:
            raise Refused(f"Kafka ended at once: {self._log_tail(0)}")
        return process

    def _wait(self, process: Process, begun: int) -> None:
        end = time.monotonic() + START_S
        while not self.answers:
            if process.ended(_LOOK_S):
                raise Refused(f"Kafka ended while it started: {self._log_tail(begun)}")
            if time.monotonic() > end:
                raise Refused(f"Kafka does not answer after {START_S:g} s: {self._log_tail(begun)}")

    def _end_by(self, signals: Mapping[signal.Signals, float]) -> None:
        """Send the signals in order until one ends the broker within its time."""
        if not self.directory.exists():
            return
        with self._alone():
            running = self.running()
            if running is not None and not any(
                self._end(running.process, *within) for within in signals.items()
            ):
                raise Refused(f"Kafka does not end: its process {running.process.pid} hangs")

    def _end(self, process: Process, number: signal.Signals, within_s: float) -> bool:
        process.send(number)
        if not process.ended(within_s):
            return False
        process.reap()
        self._let_go()
        self._running.unlink(missing_ok=True)
        return True

    def _remembered(self) -> RunningNode | None:
        try:
            return msgspec.json.decode(self._running.read_bytes(), type=RunningNode)
        except FileNotFoundError:
            return None

    def _remember(self, running: RunningNode) -> None:
        making = self._running.with_suffix(".making")
        write_private(making, msgspec.json.encode(running))
        making.rename(self._running)

    def _alone(self) -> AbstractContextManager[int]:
        return alone(self.directory / _LOCK)

    def _let_go(self) -> None:
        file, self._keeps_alive = self._keeps_alive, None
        if file is not None:
            os.close(file)

    def _log_tail(self, begun: int) -> str:
        """The last lines of the log since this start, and where the log is."""
        shown = self.log_path.read_bytes()[begun:].decode(errors="replace")
        return f"{tail(shown) or 'its log is empty'}; see {self.log_path}"
