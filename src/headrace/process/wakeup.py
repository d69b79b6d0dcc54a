"""A bell that one thread rings and another waits for; also rung from a signal handler.

An event would not do: a handler that interrupts its owner inside an event's lock waits for ever.
"""

from __future__ import annotations

import threading
from contextlib import suppress


class Wakeup:
    """Rung any number of times, it is heard once."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._silent.release()

    def wait(self, timeout_s: float) -> bool:
        """True as soon as it rings, or has rung since it was last heard; False after the time."""
        return self._silent.acquire(timeout=max(timeout_s, 0.0))
