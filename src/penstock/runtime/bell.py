"""A bell that one thread rings and another waits for; also rung from a signal handler.

An event would not do: a handler that interrupts its owner inside an event's lock waits for ever.
"""

from __future__ import annotations

import queue


class Bell:
    """Rung any number of times, it is heard once."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float) -> bool:
        """True as soon as it rings, or has rung since it was last heard; False after the time."""
        try:
            self._rings.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return False
        return True
