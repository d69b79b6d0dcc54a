"""A directory for what Java leaves lying about: sockets that no other user may reach, libraries,
blocks. It goes with this process; what a killed one left, the next one removes."""

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
    """The one of this process."""
    sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    _locked(made)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def sweep(place: Path) -> None:
    """Remove those of processes that are gone."""
    for found in place.glob(f"{PREFIX}*"):
        try:
            if found.stat().st_uid != os.geteuid():
                continue
            held = _locked(found)
        except OSError:  # somebody else was quicker, or it is in use
            continue
        shutil.rmtree(found, ignore_errors=True)
        os.close(held)


def _locked(directory: Path) -> int:
    """The file that says that it is in use, as long as it is open; `OSError` if another has it."""
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
