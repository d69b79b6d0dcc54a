"""Looking after a client that lets somebody wait: it may have no broker to ask any more, see
`asked`."""

from __future__ import annotations

import time
from collections.abc import Callable

REVIVE_S = 1.0


class Revival:
    """For one that waits: after a second, and then after twice as long each time. A healthy client
    has a thread more until its next answer, and keeps a few bytes."""

    def __init__(self, revive: Callable[[], None]) -> None:
        self._revive = revive
        self._pause_s = REVIVE_S
        self._next_s = time.monotonic() + REVIVE_S

    def look(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._revive()
            self._pause_s *= 2
            self._next_s = now_s + self._pause_s
