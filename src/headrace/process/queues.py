"""Waiting for what is put into a queue."""

from __future__ import annotations

import queue
from typing import TypeVar

T = TypeVar("T")


def taken_within(queued: queue.SimpleQueue[T], timeout_s: float | None) -> T:
    """What is next; `queue.Empty` after the time, None: there is no limit. For one consumer.

    Not by ``get`` alone: that of CPython 3.11 takes the queue's lock at its first look if it is
    free, and if the time is over when it looks again, it waits without any limit. A look before it
    leaves the lock taken."""
    try:
        return queued.get_nowait()
    except queue.Empty:
        return queued.get(timeout=timeout_s)
