"""Starts a process that Ctrl-C does not reach; it outlives this process or dies with it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from headrace.tools.kafka_node import die_with_parent


def spawn_free(command: list[str], log: Path) -> int:
    """Start a process that outlives this one; return its pid."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        return _spawn(command, nothing, log)
    finally:
        os.close(nothing)


def spawn_dying_with_parent(command: list[str], log: Path) -> tuple[int, int]:
    """Start a process that dies with this one; return its pid and the file that keeps it alive. The
    kernel kills it when the file is closed, at the latest when this process ends, even by a
    kill."""
    end, keeps_alive = os.pipe()
    try:
        pid = _spawn([sys.executable, "-I", "-S", die_with_parent.__file__, *command], end, log)
    except BaseException:
        os.close(keeps_alive)
        raise
    finally:
        os.close(end)
    return pid, keeps_alive


def _spawn(command: list[str], stdin: int, log: Path) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGPIPE, signal.SIGTERM),
        )
    finally:
        os.close(output)
