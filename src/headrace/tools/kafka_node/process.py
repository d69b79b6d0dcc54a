"""A process that is known by more than its number: one that got the number later is never taken
for it."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_STARTED = 19
"""Of the fields behind the name, see proc(5): ticks since the machine was started."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Process(NamedTuple):
    pid: int
    started: str
    """When, and since which start of the machine."""

    @property
    def is_alive(self) -> bool:
        return process_of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """To this one, or to none."""
        with suppress(ProcessLookupError):
            file = os.pidfd_open(self.pid)
            try:
                if self.is_alive:  # what the file is opened on cannot be another from now on
                    signal.pidfd_send_signal(file, number)
            finally:
                os.close(file)

    def ended(self, within_s: float) -> bool:
        """Whether it has ended with all its threads, waiting so long for it: of one that is killed
        the first thread may be gone while others still hold its ports."""
        try:
            file = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if _seen(self.pid)[0] != self.started:
                return True
            watched = select.poll()
            watched.register(file, select.POLLIN)
            return bool(watched.poll(within_s * 1000))
        finally:
            os.close(file)

    def reap(self) -> None:
        """If it is a child of ours that has ended."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def process_of(pid: int) -> Process | None:
    """None: there is none, or it has ended and only waits for its parent to notice."""
    started, state = _seen(pid)
    return None if started is None or state in "ZX" else Process(pid, started)


def _seen(pid: int) -> tuple[str | None, str]:
    """When it was started, and its state."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None, ""
    return f"{_BOOT.read_text().strip()} {fields[_STARTED]}", fields[0]
