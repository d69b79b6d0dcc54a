"""Signs of life beside the store: one small file per member, locked while its process lives.

The counter in the file is written in place and never synced, so that a full or slow disk does not
look like death. A lock that is gone proves that the process is gone. A counter that stands still
only tells that the member is silent.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
import weakref
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import DiskFull
from headrace.core.ports import Sign
from headrace.core.store_keys import digest

_BEAT = struct.Struct(">Q")
OLD_S = 3600.0
_LOOKS = 10

MemberKey = tuple[str, str, int]
"""A group, a member of it, and its incarnation."""


class _Own(NamedTuple):
    """The open file of a member of this process. Closing it releases its lock."""

    file: int
    path: str


class FileLiveness:
    """The signs of life of members, as files in a directory of the hub."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own: dict[MemberKey, _Own] = {}
        self._is_tidy = False
        self._lock = threading.RLock()
        _all.add(self)

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None:
        key = group, member, incarnation
        with self._lock:
            own = self._own.get(key)
            if own is None or not os.fstat(own.file).st_nlink:
                # This is the first beat, or another process has removed the file.
                if own is not None:
                    os.close(own.file)
                own = self._own[key] = self._claimed(self._path(key))
            try:
                os.pwrite(own.file, _BEAT.pack(beat), 0)
            except OSError as why:
                raise DiskFull(f"{own.path} cannot be written: {why}") from None

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        key = group, member, incarnation
        for _ in range(_LOOKS):
            try:
                file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                content = os.pread(file, _BEAT.size, 0)
                alive = key in self._own or not _unlocked(file)
                now = os.fstat(file)
            finally:
                os.close(file)
            # A file that was removed since it was opened may exist anew under its name.
            if alive or now.st_nlink:
                beat = _BEAT.unpack(content)[0] if len(content) == _BEAT.size else 0
                return Sign(alive, beat, max(time.time() - now.st_mtime, 0.0))
        return None

    def leave(self, group: str, member: str, incarnation: int) -> None:
        key = group, member, incarnation
        with self._lock:
            own = self._own.pop(key, None)
            if own is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(own.path)
                os.close(own.file)
                return
        self._tidied(self._path(key))

    def let_go(self) -> None:
        """Called in a forked child: the locks belong to the parent, and must end with it."""
        self._lock = threading.RLock()
        for own in self._own.values():
            os.close(own.file)
        self._own.clear()

    def _path(self, key: MemberKey) -> str:
        group, member, incarnation = key
        name = f"{digest(group).hex()}-{digest(member).hex()}-{incarnation:x}"
        return os.path.join(self._directory, name)

    def _claimed(self, path: str) -> _Own:
        """Make the file of a member. It is made under another name, and locked before it gets its
        own, so that no observer ever finds it unlocked."""
        making = f"{path}.{os.getpid()}-{threading.get_ident()}"
        try:
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            self._tidy()
            file = os.open(making, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(file, _BEAT.pack(0), 0)
            os.rename(making, path)
        except OSError as why:
            raise DiskFull(f"{path} cannot be made: {why}") from None
        return _Own(file, path)

    def _tidy(self) -> None:
        """Remove old files of members that died while no observer was there."""
        if self._is_tidy:
            return
        self._is_tidy = True
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed, or renamed by its owner
                    if time.time() - entry.stat().st_mtime > OLD_S:
                        self._tidied(entry.path)

    def _tidied(self, path: str) -> None:
        """Remove the file of a dead member. A living member's file stays."""
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _unlocked(file, fcntl.LOCK_EX):
                    os.unlink(path)
            finally:
                os.close(file)


def _unlocked(file: int, kind: int = fcntl.LOCK_SH) -> bool:
    """Whether no process has locked the file. The only way to know is to lock it; closing it gives
    the lock back. Observers lock it shared, so that they do not take each other for the owner."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_all: weakref.WeakSet[FileLiveness] = weakref.WeakSet()


def _after_fork() -> None:
    for liveness in list(_all):
        liveness.let_go()


os.register_at_fork(after_in_child=_after_fork)
