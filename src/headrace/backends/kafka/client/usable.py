"""Whether a hub may still be used in this process. All parts of the hub ask, and none knows the
hub."""

from __future__ import annotations

import os
import threading

from headrace.core.errors import Closed, ForkedHandle


class Usable:
    """Open, and opened by this process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def check(self) -> None:
        if self._closed:
            raise Closed("this hub was closed")
        self.check_process()

    def check_process(self) -> None:
        """Refuse a fork of the process that opened the hub: the child has none of the client's
        threads."""
        if os.getpid() != self._pid:
            raise ForkedHandle(
                "this hub was opened in the parent of this process: open it again here"
            )

    def close(self) -> bool:
        """Close; whether the caller has to close the clients. A fork does not: they belong to its
        parent."""
        if os.getpid() != self._pid:
            self._closed = True
            return False
        with self._lock:
            was_open, self._closed = not self._closed, True
        return was_open
