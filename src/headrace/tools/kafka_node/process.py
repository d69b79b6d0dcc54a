"""A process, known by its pid and its start time: a later process with the same pid is never
mistaken for it."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_STARTED = 19
"""The field of proc(5), counted behind the name, with the start time in ticks since boot."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Process(NamedTuple):
    pid: int
    started: str
    """The boot of the machine, and the start time since then."""

    @property
    def is_alive(self) -> bool:
        return process_of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process, and to no other."""
        with suppress(ProcessLookupError):
            file = os.pidfd_open(self.pid)
            try:
                if self.is_alive:  # the file stands for one process from now on
                    signal.pidfd_send_signal(file, number)
            finally:
                os.close(file)

    def ended(self, within_s: float) -> bool:
        """Whether the process ends within the time, with all its threads: the first thread of a
        killed process may be gone while others still hold its ports."""
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
        """Reap the process, if it is a child of this one that has ended."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)


def process_of(pid: int) -> Process | None:
    """The process with that pid; None if there is none or it has ended and is not reaped yet."""
    started, state = _seen(pid)
    return None if started is None or state in "ZX" else Process(pid, started)


def _seen(pid: int) -> tuple[str | None, str]:
    """The start time and the state of a process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None, ""
    return f"{_BOOT.read_text().strip()} {fields[_STARTED]}", fields[0]
