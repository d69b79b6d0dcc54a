"""The process of one lane. The first line of its input is the lane's spec; it ends with the process
that started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial

from headrace.core.errors import HeadraceError
from headrace.engines.connection import Connection
from headrace.engines.handshake import dial
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.lifeline import Lifeline
from headrace.engines.remote_lane import run_lane

STDIN = 0

log = logging.getLogger("headrace")


def main() -> None:
    _leave_signals_to_parent()
    line = _first_line()
    if not line.endswith(b"\n"):
        sys.exit(1)  # the parent is gone
    spec = LaneSpec.from_line(line)
    lifeline = Lifeline(_set_apart(STDIN), spec.parent)
    lifeline.hold()
    try:
        connection = dial(spec.address, spec.secret, spec.lane)
    except HeadraceError as why:
        log.warning("lane %d ends: %s", spec.lane, why)
        sys.exit(1)
    os.register_at_fork(after_in_child=partial(_forget, connection, lifeline))
    sys.exit(0 if run_lane(spec, connection) is None else 1)


def _first_line() -> bytes:
    """Not through `sys.stdin`, which would hold back what it reads."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(STDIN, 65_536)):
        line += part
    return line


def _set_apart(stdin: int) -> int:
    """Give handlers, and the processes they start, an empty input instead of the parent's pipe;
    the new file number of the pipe."""
    control = os.dup(stdin)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, stdin)
    os.close(nothing)
    return control


def _leave_signals_to_parent() -> None:
    """A service manager that sends SIGTERM to all processes wants an orderly end, and that is the
    parent's task. The signals are handled, not ignored: processes that handlers start would inherit
    ignored ones."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _forget(connection: Connection, lifeline: Lifeline) -> None:
    """A fork of a handler is no lane: it sends nothing, and ends by the usual signals."""
    connection.forget()
    lifeline.forget()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    main()
