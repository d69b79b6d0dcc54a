"""Takes from a queue with a time limit that holds."""

from __future__ import annotations

import queue
from typing import TypeVar

T = TypeVar("T")


def taken_within(queued: queue.SimpleQueue[T], timeout_s: float | None) -> T:
    """The next item; `queue.Empty` after the time, None: no limit. For one consumer.

    ``get`` alone is not enough. In CPython 3.11 it takes the queue's lock at its first try if the
    lock is free; if the time is over at its second try, it waits without a limit. A failed
    ``get_nowait`` leaves the lock taken, so that ``get`` keeps to its limit."""
    try:
        return queued.get_nowait()
    except queue.Empty:
        return queued.get(timeout=timeout_s)
