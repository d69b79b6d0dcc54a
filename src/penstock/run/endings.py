"""SIGTERM, once: whoever consumes ends in order. Twice: the process ends at once.

Only where nobody else handles the signal, and only from the main thread, where Python does.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_ends: dict[int, Callable[[], None]] = {}


def on_sigterm(end: Callable[[], None]) -> Callable[[], None]:
    """Have ``end`` called at the first SIGTERM; the answer undoes it."""
    key = id(end)
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _first):
        return lambda: None
    if not _ends:
        signal.signal(signal.SIGTERM, _first)
    _ends[key] = end

    def undo() -> None:
        _ends.pop(key, None)
        ours = signal.getsignal(signal.SIGTERM) is _first
        if not _ends and ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return undo


def _first(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, _second)
    for end in list(_ends.values()):
        end()


def _second(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
