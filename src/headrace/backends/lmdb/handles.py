"""One environment per process and directory: LMDB forbids a second one, so all hubs that a process
opens on a directory share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.backends.lmdb.environment import Environment
from headrace.backends.lmdb.maintenance import Maintenance
from headrace.backends.lmdb.tables import Tables
from headrace.backends.lmdb.writer import WRITE_TIMEOUT_S, Writer


class SharedEnvironment:
    """An environment with its writer thread and its maintenance thread."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._lock = threading.RLock()
        self._committed = threading.Condition(self._lock)
        self._writer = Writer(environment, self._tell)
        self._maintenance: Maintenance | None = None
        self._users = 0

    @classmethod
    def open(
        cls, directory: Path, *, create: bool, map_bytes: int, any_filesystem: bool, maintain: bool
    ) -> SharedEnvironment:
        """The environment of a directory. Each call needs one `release`."""
        path = os.path.realpath(directory)
        with _registry_lock:
            found = _registry.get(path)
            if found is not None and not found.environment.usable():
                found._end()
                found = None
            if found is None:
                environment = Environment(
                    Path(path), map_bytes, create=create, any_filesystem=any_filesystem
                )
                found = _registry[path] = cls(environment)
            found._users += 1
            if maintain and found._maintenance is None:
                found._maintenance = Maintenance(environment=found.environment, write=found.write)
            return found

    def write(
        self, work: Callable[[Tables], Any], nbytes: int = 0, timeout_s: float = WRITE_TIMEOUT_S
    ) -> Any:
        def within(txn: Any) -> Any:
            return work(Tables(self.environment, txn))

        return self._writer.write(within, nbytes=nbytes, timeout_s=timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Wait until this process commits something, or until the time is over."""
        with self._lock:
            self._committed.wait(timeout_s)

    def release(self) -> None:
        """Give the environment back. The last user closes it and ends its threads."""
        with _registry_lock:
            self._users -= 1
            if not (self._users or self.environment.inherited()):
                self._end()

    def _end(self) -> None:
        path = str(self.environment.directory)
        if _registry.get(path) is self:
            del _registry[path]
        if self.environment.inherited():
            self.environment.close()  # the threads belong to the parent process
            return
        if self._maintenance is not None:
            self._maintenance.stop()
        self._writer.close()

    def after_fork(self) -> None:
        if self._maintenance is not None:
            self._maintenance.let_go()

    def _tell(self) -> None:
        with self._lock:
            self._committed.notify_all()


_registry: dict[str, SharedEnvironment] = {}
"""The environments of this process, by the real path of their directory."""
# Re-entrant: a signal handler may close one hub while its thread opens another.
_registry_lock = threading.RLock()


def _after_fork() -> None:
    # A thread of the parent may have held the lock at the fork. It does not exist here.
    global _registry_lock
    _registry_lock = threading.RLock()
    for shared in _registry.values():
        shared.after_fork()


os.register_at_fork(after_in_child=_after_fork)
