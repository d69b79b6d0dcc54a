"""SIGTERM for commands that have started nothing yet that could end in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def end_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does, so that it cleans up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
