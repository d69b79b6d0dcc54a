"""A private directory for files of Java: sockets that no other user may reach, libraries, blocks.
It is removed when this process ends; that of a killed process is removed by the next one."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

PREFIX = "headrace-spark-"
LOCK = "lock"


@cache
def scratch_directory() -> Path:
    """The scratch directory of this process, made at the first call."""
    sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(made)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def sweep(place: Path) -> None:
    """Remove the scratch directories of processes that have ended."""
    for found in place.glob(f"{PREFIX}*"):
        try:
            if found.stat().st_uid != os.geteuid():
                continue
            held = _lock(found)
        except OSError:  # it is in use, or another process removes it
            continue
        shutil.rmtree(found, ignore_errors=True)
        os.close(held)


def _lock(directory: Path) -> int:
    """Lock a directory as long as the returned file is open; `OSError` if it is locked already."""
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
