"""Which process holds the write lock. A small file beside the store says it, as LMDB cannot."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from headrace.backends.lmdb.files import HOLDER_FILE

_WIDTH = 64
_FREE = b" " * _WIDTH


class LockHolder(NamedTuple):
    """The process that holds the write lock."""

    pid: int
    held_s: float
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) for {self.held_s:.1f} s"


class HolderFile:
    """The file in which a process says that it holds the write lock. It is written in place and
    never synced, because only living processes read it. A failure to write it is ignored: no write
    should fail for it."""

    def __init__(self, directory: Path) -> None:
        self._file = -1
        with contextlib.suppress(OSError):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._file = os.open(directory / HOLDER_FILE, flags, 0o600)
        self._me = f"{os.getpid()} {_started(os.getpid())}"

    def lock_taken(self) -> None:
        """Write that this process holds the lock from now on."""
        since = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._write(f"{self._me} {since:.3f}".ljust(_WIDTH).encode())

    def lock_released(self) -> None:
        """Write that no process holds the lock."""
        self._write(_FREE)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, text: bytes) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.pwrite(self._file, text, 0)


def holder_of(directory: Path) -> LockHolder | None:
    """The living process that says that it holds the write lock."""
    try:
        pid_text, started, since = (directory / HOLDER_FILE).read_text().split()
        pid, held_s = int(pid_text), time.clock_gettime(time.CLOCK_BOOTTIME) - float(since)
    except (OSError, ValueError):  # no holder, or the file is just being written
        return None
    return LockHolder(pid, held_s, _command(pid)) if _started(pid) == started else None


def _started(pid: int) -> str:
    """When a process started, in clock ticks. It tells a process from a later one of the same
    pid."""
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
    # Only the program: its arguments may hold secrets.
    return Path(os.fsdecode(words[0])).name or "?"
