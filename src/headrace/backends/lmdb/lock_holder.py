"""Who holds the write lock, told by a small file beside the store: LMDB itself cannot say."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from headrace.backends.lmdb.files import HOLDER_FILE

_WIDTH = 64
_NOBODY = b" " * _WIDTH


class HolderInfo(NamedTuple):
    pid: int
    held_s: float
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) for {self.held_s:.1f} s"


class LockHolder:
    """Written in place without a sync: it only has to be seen by the living, and what cannot be
    written is not worth failing for."""

    def __init__(self, directory: Path) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(directory / HOLDER_FILE, flags, 0o600)
        self._me = f"{os.getpid()} {_started(os.getpid())}"

    def take(self) -> None:
        since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._show(f"{self._me} {since:.3f}".ljust(_WIDTH).encode())

    def give_back(self) -> None:
        self._show(_NOBODY)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _show(self, text: bytes) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text, 0)


def holder_of(directory: Path) -> HolderInfo | None:
    """The living process that says it holds the write lock."""
    try:
        pid_text, started, since = (directory / HOLDER_FILE).read_text().split()
        pid, held_s = int(pid_text), time.clock_gettime(time.CLOCK_BOOTTIME) - float(since)
    except (OSError, ValueError):  # nobody, or caught while it was being written
        return None
    return HolderInfo(pid, held_s, _command(pid)) if _started(pid) == started else None


def _started(pid: int) -> str:
    """When a process started, in clock ticks: tells it from a later one with the same number."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "?"
    return stat.rpartition(")")[2].split()[19]


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    # The program only: arguments may hold secrets.
    return Path(os.fsdecode(words[0])).name or "?"
