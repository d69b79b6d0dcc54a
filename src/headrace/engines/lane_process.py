"""The process of one lane, told by its first line of input what to do. It ends with the process
that started it."""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial

from headrace.core.errors import HeadraceError
from headrace.engines.connection import Connection, dial
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.lifeline import Lifeline
from headrace.engines.remote_lane import run_lane

STDIN = 0

log = logging.getLogger("headrace")


def main() -> None:
    _leave_signals_to_parent()
    line = _first_line()
    if not line.endswith(b"\n"):
        sys.exit(1)  # nobody is there any more
    errand = LaneSpec.from_line(line)
    lifeline = Lifeline(_set_apart(STDIN), errand.parent)
    lifeline.hold()
    try:
        wire = dial(errand.address, errand.secret, errand.lane)
    except HeadraceError as why:
        log.warning("lane %d ends: %s", errand.lane, why)
        sys.exit(1)
    os.register_at_fork(after_in_child=partial(_forget, wire, lifeline))
    sys.exit(0 if run_lane(errand, wire) is None else 1)


def _first_line() -> bytes:
    """Not through `sys.stdin`, which would hold back what it reads."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(STDIN, 65_536)):
        line += part
    return line


def _set_apart(stdin: int) -> int:
    """Have handlers and what they start find an empty input, not the pipe of the parent."""
    control = os.dup(stdin)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, stdin)
    os.close(nothing)
    return control


def _leave_signals_to_parent() -> None:
    """Who sends SIGTERM to all processes of a service wants it to end in order: that is up to the
    parent. Handled, not ignored: ignored, they would be so in what handlers start, too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _forget(wire: Connection, lifeline: Lifeline) -> None:
    """A fork of a handler is no lane: it says nothing, and ends by the usual signals."""
    wire.forget()
    lifeline.forget()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


if __name__ == "__main__":
    main()
