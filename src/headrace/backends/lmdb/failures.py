"""LMDB's errors as errors of Headrace."""

from __future__ import annotations

import errno
from pathlib import Path

import lmdb

from headrace.core.errors import BadStored, DiskFull, HeadraceError, NotDurable


def opening_advice(why: lmdb.Error) -> str:
    text = str(why)
    if "Read-only" in text or "Permission" in text:
        return "a hub must be writable, for its readers too"
    if "Too many" in text:
        return "is there a limit on open files (ulimit -n)?"
    if "already open" in text:
        return "something else in this process holds it, or it is still being closed"
    return "is there a limit on address space (ulimit -v)?"


def store_error(why: Exception, directory: Path) -> HeadraceError:
    """The error to raise for an error of LMDB. A full disk may come as an I/O error."""
    if isinstance(why, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.InvalidError):
        return BadStored(
            f"the index of {directory} is damaged ({why}): restore the hub from a copy"
        )
    if isinstance(why, lmdb.PanicError):
        return NotDurable(
            f"the hub {directory} is being opened again after a disk failure: try again"
        )
    text = str(why)
    full = isinstance(why, OSError) and why.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space" in text or "quota" in text.lower():
        return DiskFull(f"{directory} cannot be written: no space left; free some, reading goes on")
    return NotDurable(
        f"{directory} cannot be written ({text}): the disk may be full or failing; reading goes on"
    )
