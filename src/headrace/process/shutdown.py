"""The end of a program that has consumers. At its normal end they are closed. A first SIGTERM ends
them in order, a second one ends the process at once.

SIGTERM is handled only if the program does not handle it, and only for consumers that were made in
the main thread.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol

ONCE_S = 0.5
"""Two signals within this time count as one: a process may be told to end directly and through its
process group."""

_first_s = 0.0
_ends: dict[int, Callable[[], None]] = {}
_open: weakref.WeakSet[Closing] = weakref.WeakSet()


class Closing(Protocol):
    def close(self) -> None: ...


def on_exit(what: Closing) -> None:
    """Close it when the program ends, if it is still in use."""
    _open.add(what)


@atexit.register
def _close_all() -> None:
    for what in list(_open):
        what.close()


def on_sigterm(end: Callable[[], None]) -> Callable[[], None]:
    """Call ``end`` at the first SIGTERM; the returned function undoes that."""
    key = id(end)
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _first, _second):
        return lambda: None
    if not _ends:
        signal.signal(signal.SIGTERM, _first)
    _ends[key] = end

    def undo() -> None:
        _ends.pop(key, None)
        ours = signal.getsignal(signal.SIGTERM) in (_first, _second)
        if not _ends and ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return undo


def _first(number: int, frame: FrameType | None) -> None:
    global _first_s
    _first_s = time.monotonic()
    signal.signal(signal.SIGTERM, _second)
    for end in list(_ends.values()):
        end()


def _second(number: int, frame: FrameType | None) -> None:
    if time.monotonic() - _first_s < ONCE_S:
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
