"""A lane in another process ends when its replica wants that, or is gone, whatever its handler does
meanwhile."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
from contextlib import suppress

from headrace.engines.handshake import dial

LIFELINE = 1 << 63
"""Added to the number of a lane that calls for its lifeline."""


class Lifeline:
    """An open file on which nothing arrives as long as all is well. When its other end is closed,
    the kernel kills the process group of this lane, even if a handler never lets a thread run, or
    ignores signals. A thread does the same where the kernel does not, and when the parent ends."""

    def __init__(self, file: int, parent: int) -> None:
        self._file = file
        self._parent = parent
        self._released = os.eventfd(0)
        self._files: tuple[int, ...] = (file, self._released)
        self._watching = threading.Thread(target=self._watch, name="headrace-lifeline", daemon=True)
        self._watched = select.poll()

    def hold(self) -> None:
        self._watched.register(self._file, select.POLLIN)
        self._watched.register(self._released, select.POLLIN)
        with suppress(OSError):
            watched = os.pidfd_open(self._parent)
            self._files += (watched,)
            self._watched.register(watched, select.POLLIN)
        self._have_kernel_kill()
        if os.getppid() != self._parent:
            end()  # the parent has ended before
        self._watching.start()

    def release(self) -> None:
        """This process is no lane any more, and lives on."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_ASYNC)
        os.eventfd_write(self._released, 1)
        self._watching.join()
        self.forget()

    def forget(self) -> None:
        """In a fork of a handler, which is no lane: close the files."""
        files, self._files = self._files, ()
        for file in files:  # once: their numbers may be given to other files later
            os.close(file)

    def _have_kernel_kill(self) -> None:
        leads = os.getpgrp() == os.getpid()
        with suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETOWN, -os.getpid() if leads else os.getpid())
            fcntl.fcntl(self._file, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_ASYNC)

    def _watch(self) -> None:
        if all(file != self._released for file, _ in self._watched.poll()):
            end()


def end() -> None:
    """End this process and all processes that handlers have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def dial_lifeline(address: str, secret: bytes, lane: int) -> int:
    """Open a connection for a `Lifeline`; `Refused` as for `dial`."""
    return dial(address, secret, lane | LIFELINE).detach()
