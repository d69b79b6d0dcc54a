"""Whether a hub may still be used here: asked by all its parts, none of which knows the hub."""

from __future__ import annotations

import os
import threading

from headrace.core.errors import Closed, ForkedHandle


class Usable:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def check(self) -> None:
        if self._closed:
            raise Closed("this hub was closed")
        self.check_process()

    def check_process(self) -> None:
        """A client does not survive a fork: its threads are not there in the child."""
        if os.getpid() != self._pid:
            raise ForkedHandle(
                "this hub was opened in the parent of this process: open it again here"
            )

    def close(self) -> bool:
        """Whether it was open until now, and is to be closed here: what belongs to the parent of
        this process is left alone."""
        if os.getpid() != self._pid:
            self._closed = True
            return False
        with self._lock:
            was_open, self._closed = not self._closed, True
        return was_open
