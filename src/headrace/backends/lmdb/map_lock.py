"""The lock of LMDB's map: transactions share it, a change of the map has it alone.

A signal handler may raise between any two instructions of the main thread, or close the hub between
them. So each transaction holds the lock by an object that dies with its frame, and no thread waits
for a lock that it may hold itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_S = 0.05
"""How often a thread that waits looks whether a hold has died with its frame, which wakes no
one."""


class SharedHold:
    """One transaction's hold of the lock."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class MapLock:
    """A lock that is held shared or exclusively."""

    def __init__(self) -> None:
        # Entered directly: `Condition.__enter__` is Python code, in which a handler may raise.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._holds: dict[int, weakref.ref[SharedHold]] = {}
        self._exclusive: int | None = None
        """The thread that has the lock exclusively, or waits to have it so."""

    @contextmanager
    def shared(self) -> Iterator[SharedHold]:
        """Hold the lock together with others."""
        hold = SharedHold()
        try:
            self.enter(hold)
            yield hold
        finally:
            self.leave(hold)

    def enter(self, hold: SharedHold) -> None:
        with self._lock:
            while self._exclusive not in (None, threading.get_ident()):
                self._changed.wait()
            self._holds[id(hold)] = weakref.ref(hold)

    def leave(self, hold: SharedHold) -> None:
        with self._lock:
            self._holds.pop(id(hold), None)
            if not self._holds:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock alone, once all shared holds have ended."""
        mine = False
        try:
            with self._lock:
                while self._exclusive is not None:
                    self._changed.wait()
                mine = True
                self._exclusive = threading.get_ident()
                while self._living():
                    self._changed.wait(LOOK_S)
            yield
        finally:
            if mine:
                with self._lock:
                    self._exclusive = None
                    self._changed.notify_all()

    def held_here(self) -> bool:
        """Whether this very thread is inside a transaction. Then a signal handler asks."""
        with self._lock:
            here = threading.get_ident()
            return any(hold.thread == here for hold in self._living())

    def _living(self) -> list[SharedHold]:
        return [hold for ref in self._holds.values() if (hold := ref()) is not None]
