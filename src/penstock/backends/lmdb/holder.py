"""Who holds the write lock, told by a small file beside the store: LMDB itself cannot say."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from penstock.backends.lmdb.files import HOLDER_FILE

_WIDTH = 64


class HolderInfo(NamedTuple):
    pid: int
    held_s: float
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) for {self.held_s:.1f} s"


class Holder:
    """Written in place without a sync: it only has to be seen by the living."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HOLDER_FILE
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._me = f"{os.getpid()} {_started(os.getpid())}"

    def take(self) -> None:
        since = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.pwrite(self._file, f"{self._me} {since:.3f}".ljust(_WIDTH).encode(), 0)

    def give_back(self) -> None:
        os.pwrite(self._file, b" " * _WIDTH, 0)

    def close(self) -> None:
        os.close(self._file)


def holder_of(directory: Path) -> HolderInfo | None:
    """The living process that says it holds the write lock."""
    try:
        fields = (directory / HOLDER_FILE).read_text().split()
    except OSError:
        return None
    if len(fields) != 3:
        return None
    pid = int(fields[0])
    if _started(pid) != fields[1]:
        return None
    held_s = time.clock_gettime(time.CLOCK_BOOTTIME) - float(fields[2])
    return HolderInfo(pid, held_s, _command(pid))


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
