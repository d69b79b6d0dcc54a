"""Wakes a thread that waits, from another thread or from a signal handler.

An event would not do: a handler that interrupts its owner inside an event's lock waits for ever.
"""

from __future__ import annotations

import threading
from contextlib import suppress


class Wakeup:
    """Several rings before a wait count as one."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it was rung already
            self._silent.release()

    def wait(self, timeout_s: float) -> bool:
        """True as soon as it is rung, or was rung since the last wait; False after the time."""
        return self._silent.acquire(timeout=max(timeout_s, 0.0))
