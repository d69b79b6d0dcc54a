"""Who may be inside LMDB: transactions together, a change of the map alone.

A signal handler may raise between any two instructions of the main thread, or close the hub from
inside them. So a place is held by an object that dies with its frame, and no lock is waited for
that the same thread may hold.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_S = 0.05
"""How often a place is looked at whose holder may have ended without a word."""


class Place:
    """One transaction's place inside."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class MapLock:
    def __init__(self) -> None:
        # Entered by itself: a condition's own way in is Python, where a handler may raise half-way.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._places: dict[int, weakref.ref[Place]] = {}
        self._alone: int | None = None
        """The thread that is, or waits to be, alone."""

    @contextmanager
    def together(self) -> Iterator[Place]:
        place = Place()
        try:
            self.enter(place)
            yield place
        finally:
            self.leave(place)

    def enter(self, place: Place) -> None:
        with self._lock:
            while self._alone not in (None, threading.get_ident()):
                self._changed.wait()
            self._places[id(place)] = weakref.ref(place)

    def leave(self, place: Place) -> None:
        with self._lock:
            self._places.pop(id(place), None)
            if not self._places:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        mine = False
        try:
            with self._lock:
                while self._alone is not None:
                    self._changed.wait()
                mine = True
                self._alone = threading.get_ident()
                while self._living():
                    self._changed.wait(LOOK_S)
            yield
        finally:
            if mine:
                with self._lock:
                    self._alone = None
                    self._changed.notify_all()

    def inside_here(self) -> bool:
        """True if a transaction of this very thread is under way, below a signal handler."""
        with self._lock:
            here = threading.get_ident()
            return any(place.thread == here for place in self._living())

    def _living(self) -> list[Place]:
        return [place for ref in self._places.values() if (place := ref()) is not None]
