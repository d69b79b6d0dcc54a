"""The process of one lane, told by its first line of input what to do. It ends with the process
that started it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from penstock.core.errors import LaneLost, PenstockError
from penstock.runtime import processes
from penstock.runtime.hub import Hub
from penstock.runtime.kit import Kit, kits
from penstock.runtime.lane import Lane
from penstock.runtime.loading import load_topology
from penstock.runtime.opening import open as open_hub
from penstock.runtime.protocol import Ask, Close, Cut, Failed, Progress, Report, Verdict, Work
from penstock.runtime.settings import RunSettings
from penstock.runtime.wire import Unfit, Wire, called

PROGRESS_S = 0.02
BEAT_S = 0.2
"""As long as it works it says so at least so often."""
REASON_CHARS_MAX = 10_000
STDIN = 0

log = logging.getLogger("penstock")


class RemoteDesk:
    """The dispatcher at the other end of a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Verdict | None] = queue.SimpleQueue()
        self._is_closed = False
        self._busy = threading.Event()
        self._to_cut: int | None = None
        self.lane: Lane | None = None

    def open(self, lane: Lane) -> None:
        self.lane = lane
        threading.Thread(target=self._hear, daemon=True).start()
        threading.Thread(target=self._tell_progress, daemon=True).start()

    def ask(self, lane: int) -> Work | None:
        self._busy.clear()
        self._wire.send(Ask())
        work = self._work.get()
        if work is None and not self._is_closed:
            raise LaneLost("the dispatcher is gone")
        if work is not None:
            self._busy.set()
        return work

    def failed(self, lane: int, failed: Failed) -> Verdict:
        self._wire.send(failed)
        verdict = self._verdicts.get()
        if verdict is None:
            raise LaneLost("the dispatcher is gone")
        return verdict

    def report(self, lane: int, report: Report) -> None:
        if report.reason:
            report = msgspec.structs.replace(report, reason=_tellable(report.reason))
        self._wire.send(report)

    def _hear(self) -> None:
        while (message := self._wire.receive()) is not None:
            match message:
                case Work():
                    self._work.put(message)
                case Verdict():
                    self._verdicts.put(message)
                case Cut():
                    self._to_cut = message.number
                    self._cut()
                case Close():
                    self._is_closed = True
                    break
                case _:
                    pass  # nothing else comes
        self._work.put(None)
        self._verdicts.put(None)

    def _cut(self) -> None:
        if self.lane is not None and self._to_cut is not None:
            self.lane.cut(self._to_cut)

    def _tell_progress(self) -> None:
        said, said_s = None, 0.0
        while self._busy.wait():
            time.sleep(PROGRESS_S)
            self._cut()  # it may have come before the lane had the slice in hand
            hand = None if self.lane is None else self.lane.hand
            now_s = time.monotonic()
            now = None if hand is None else (hand.number, hand.offset)
            if now is not None and (now != said or now_s - said_s > BEAT_S):
                try:
                    self._wire.send(Progress(*now))
                except OSError:
                    return
                said, said_s = now, now_s


def main() -> None:
    _leave_signals_to_parent()
    line = _first_line()
    if not line.endswith(b"\n"):
        sys.exit(1)  # nobody is there any more
    told: dict[str, Any] = json.loads(line)
    processes.in_lane = True
    control = _set_apart(STDIN)
    _end_with_parent(control, told["parent"])
    _log_like_parent(told["level"])
    sys.path += [place for place in told["path"] if place not in sys.path]
    try:
        wire = called(told["address"], bytes.fromhex(told["secret"]), told["lane"])
    except PenstockError as why:
        log.warning("lane %d ends: %s", told["lane"], why)
        sys.exit(1)
    os.register_at_fork(after_in_child=partial(_forget, wire, control))
    sys.exit(_worked(told, wire))


def _worked(told: dict[str, Any], wire: Wire) -> int:
    """The exit code."""
    try:
        topology = load_topology(told["reference"]).topology
        settings = RunSettings(**told["settings"])
        hub = open_hub(told["hub"], create=False)
    except PenstockError as why:
        return _unfit(wire, why)
    with hub:
        desk = RemoteDesk(wire)
        try:
            lane = _lane(told, desk, hub, kits(hub.backend, topology, settings))
        except PenstockError as why:
            return _unfit(wire, why)
        desk.open(lane)
        try:
            lane.run()
        except (LaneLost, OSError) as why:
            log.warning("lane %d ends: %s", lane.number, why)
            return 1
        except BaseException:
            log.exception("lane %d ends by a mistake", lane.number)
            return 1
    return 0


def _lane(told: dict[str, Any], desk: RemoteDesk, hub: Hub, found: dict[str, Kit]) -> Lane:
    return Lane(told["lane"], desk, hub.backend, found, told["replica"])


def _unfit(wire: Wire, why: PenstockError) -> int:
    with suppress(OSError):
        wire.send(Unfit(_tellable(str(why))))
    return 2


def _tellable(text: str) -> str:
    """Messages of errors may be of any length, and hold what is no text."""
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()


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


def _end_with_parent(control: int, parent: int) -> None:
    """The kernel kills this group when the pipe ends, even if a handler never lets a thread run.
    The thread is for where it does not, and for a fork of the parent that keeps the pipe open."""
    watched = select.poll()
    watched.register(control, select.POLLIN)
    with suppress(OSError):
        watched.register(os.pidfd_open(parent), select.POLLIN)
    if os.getpgrp() == os.getpid():
        with suppress(OSError):
            fcntl.fcntl(control, fcntl.F_SETOWN, -os.getpid())
            fcntl.fcntl(control, fcntl.F_SETSIG, signal.SIGKILL)
            flags = fcntl.fcntl(control, fcntl.F_GETFL)
            fcntl.fcntl(control, fcntl.F_SETFL, flags | os.O_ASYNC)
    if os.getppid() != parent:
        _end()  # it has ended before
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()


def _watch(watched: select.poll) -> None:
    watched.poll()
    _end()


def _end() -> None:
    """With all that handlers have started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _leave_signals_to_parent() -> None:
    """Who sends SIGTERM to all processes of a service wants it to end in order: that is up to the
    parent. Handled, not ignored: ignored, they would be so in what handlers start, too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)


def _forget(wire: Wire, control: int) -> None:
    """A fork of a handler is no lane: it says nothing, and ends by the usual signals."""
    wire.forget()
    os.close(control)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _log_like_parent(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(level)


if __name__ == "__main__":
    main()
