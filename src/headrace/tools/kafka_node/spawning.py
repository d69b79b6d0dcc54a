"""Starts a process that Ctrl-C is not for, with or without a leash."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from headrace.tools.kafka_node import die_with_parent


def spawn_free(command: list[str], log: Path) -> int:
    """The number of a process that outlives this one."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return _spawned(command, nothing, log)
    finally:
        os.close(nothing)


def spawn_dying_with_parent(command: list[str], log: Path) -> tuple[int, int]:
    """The number of a process, and the file that keeps it alive: it is killed when that is closed,
    at the latest when this process ends, even by a kill."""
    end, held = os.pipe()
    try:
        pid = _spawned([sys.executable, "-I", "-S", die_with_parent.__file__, *command], end, log)
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(end)
    return pid, held


def _spawned(command: list[str], stdin: int, log: Path) -> int:
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, said, 1),
                (os.POSIX_SPAWN_DUP2, said, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGPIPE, signal.SIGTERM),
        )
    finally:
        os.close(said)
