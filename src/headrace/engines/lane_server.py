"""Where lanes of other processes call their dispatcher: a socket that only this run can use."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.core.errors import LaneLost, Refused
from headrace.engines.connection import Connection, FromLane, Unfit, Wordless, accept, listen
from headrace.engines.engine import Progress as Seen
from headrace.engines.lifeline import LIFELINE
from headrace.lanes.protocol import (
    Ask,
    Beat,
    Close,
    Cut,
    DispatcherPort,
    Failed,
    Logged,
    Progress,
    Report,
    Work,
)
from headrace.process.queues import taken_within

log = logging.getLogger("headrace")

GREETINGS_MAX = 64
"""So many may be about to say who they are; one more, and the first of them has to go."""
FRESH_S = 1.0
"""A lane that works and has said nothing for so long: nothing is known of it."""
AGAIN_S = 0.1
SAY_S = 10.0
"""Callers that are turned away get a line in the log so often, not each of them."""

_CREDENTIALS = struct.Struct("@iII")

Box = queue.SimpleQueue[Work | None]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _LaneConnection:
    """To one lane, from its first word on."""

    wire: Connection
    has_asked: bool = False
    unfit: str | None = None
    seen: Seen | None = None
    seen_s: float = 0.0
    cut: int | None = None
    """The slice that was last told to end."""
    box: Box | None = None
    """Where its next work comes from."""
    lifeline: Connection | None = None
    """Nothing is said there: it is cut when the lane shall die."""
    over: threading.Event = field(default_factory=threading.Event)
    """All it said was heard."""


class LaneServer:
    """Listens from `open` to `close`; one thread for each lane hears, another sends it its work.

    Nothing here waits for a lane, but `hear_out` by the given time."""

    def __init__(
        self,
        dispatcher: DispatcherPort,
        address: str = "unix:",
        *,
        beyond_this_host: bool = False,
        beat_s: float | None = None,
    ) -> None:
        """With ``beat_s`` lanes that wait for work hear that often that somebody is there."""
        self.address = address
        """From `open` on, where lanes call."""
        self.secret = secrets.token_bytes(32)
        self._dispatcher = dispatcher
        self._beyond_this_host = beyond_this_host
        self._beat_s = beat_s
        self._listening: socket.socket | None = None
        self._accepting = threading.Thread(
            target=self._accept, name="headrace-switchboard", daemon=True
        )
        self._lock = threading.Lock()
        self._expected: set[int] = set()
        self._greeting: dict[socket.socket, None] = {}
        self._lines: dict[int, _LaneConnection] = {}
        self._closed = threading.Event()
        self._turned_away = 0
        self._said_s = -SAY_S

    def open(self) -> None:
        self._listening, self.address = listen(
            self.address, beyond_this_host=self._beyond_this_host
        )
        self._accepting.start()

    def expect(self, lane: int) -> None:
        """A lane of that number will call."""
        self._dispatcher.enter(lane)
        with self._lock:
            self._expected.add(lane)

    def cut(self, lane: int, number: int) -> None:
        line = self._lines.get(lane)
        # Once for each slice: what a stopped process does not read would fill its socket, and
        # whoever sends would wait.
        if line is not None and line.cut != number:
            line.cut = number
            with suppress(OSError):  # it is gone: that is found elsewhere
                line.wire.send(Cut(number))

    def progress(self, lane: int) -> Seen | None:
        line = self._lines.get(lane)
        if line is None or time.monotonic() - line.seen_s > FRESH_S:
            return None
        return line.seen

    def has_asked(self, lane: int) -> bool:
        line = self._lines.get(lane)
        return line is not None and line.has_asked

    def unfit(self, lane: int) -> str | None:
        """Why it cannot work, if it said so."""
        line = self._lines.get(lane)
        return None if line is None else line.unfit

    def is_over(self, lane: int) -> bool:
        """Whether its connection has broken."""
        line = self._lines.get(lane)
        return line is not None and line.over.is_set()

    def hear_out(self, lane: int, timeout_s: float) -> None:
        """Hear the last words of one that has ended."""
        line = self._lines.get(lane)
        if line is not None:
            line.over.wait(timeout_s)

    def sever(self, lane: int) -> None:
        """Have it killed, if it still lives; what it said before is heard."""
        line = self._lines.get(lane)
        if line is not None and line.lifeline is not None:
            line.lifeline.close()

    def hang_up(self, lane: int) -> None:
        """Hear nothing of it any more."""
        with self._lock:
            self._expected.discard(lane)
            line = self._lines.pop(lane, None)
        if line is not None:
            _cut_off(line)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            lines, self._lines = list(self._lines.values()), {}
            greeting = list(self._greeting)
        for line in lines:
            _cut_off(line)
        for connected in greeting:
            _hang_up(connected)
        if self._listening is not None:
            _hang_up(self._listening)  # closing alone would leave the thread in its accept
            self._accepting.join()
            self._listening.close()
        for line in lines:
            line.over.wait(AGAIN_S)

    # Callers

    def _accept(self) -> None:
        assert self._listening is not None
        while not self._closed.is_set():
            try:
                connected, _ = self._listening.accept()
            except OSError as why:
                if not self._closed.wait(AGAIN_S):  # there may be files to open again
                    self._turn_away(why)
                continue
            if not _is_own(connected):
                self._turn_away("it is another user's")
                connected.close()
                continue
            self._take(connected)

    def _take(self, connected: socket.socket) -> None:
        with self._lock:
            if self._closed.is_set():
                connected.close()
                return
            while len(self._greeting) >= GREETINGS_MAX:
                # Who knows the secret says so at once.
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]
                _hang_up(oldest)
            self._greeting[connected] = None
        try:
            threading.Thread(
                target=self._serve, args=(connected,), name="headrace-line", daemon=True
            ).start()
        except RuntimeError as why:  # no more threads
            self._turn_away(why)
            with self._lock:
                self._greeting.pop(connected, None)
            connected.close()

    def _serve(self, connected: socket.socket) -> None:
        line: _LaneConnection | None = None
        is_kept = False

        def admits(lane: int, wire: Connection) -> bool:
            nonlocal line, is_kept
            with self._lock:
                self._greeting.pop(connected, None)
                if lane & LIFELINE:
                    known = self._lines.get(lane ^ LIFELINE)
                    is_kept = known is not None and known.lifeline is None
                    if known is not None and is_kept:
                        known.lifeline = wire
                    return is_kept
                if lane not in self._expected or self._closed.is_set():
                    return False
                self._expected.discard(lane)
                line = self._lines[lane] = _LaneConnection(wire)
                return True

        try:
            lane, _ = accept(connected, self.secret, admits)
        except (Wordless, OSError) as why:
            log.info("a caller of the dispatcher hung up: %s", why)
        except Refused as why:
            if not self._closed.is_set():
                self._turn_away(why)
        else:
            if line is not None:
                self._hear(lane, line)
        with self._lock:
            self._greeting.pop(connected, None)
        if line is not None:
            line.over.set()
            line.wire.close()
        elif not is_kept:
            connected.close()

    def _turn_away(self, why: object) -> None:
        with self._lock:
            self._turned_away += 1
            now_s = time.monotonic()
            if now_s - self._said_s < SAY_S:
                return
            self._said_s = now_s
            count = self._turned_away
        log.warning("a caller of the dispatcher was turned away, the %d.: %s", count, why)

    # Lanes

    def _hear(self, lane: int, line: _LaneConnection) -> None:
        boxes: queue.SimpleQueue[Box | None] = queue.SimpleQueue()
        sender = threading.Thread(
            target=_send_work,
            args=(line.wire, boxes, self._beat_s),
            name=f"headrace-work-{lane}",
            daemon=True,
        )
        try:
            sender.start()
            while (message := line.wire.receive()) is not None:
                self._heard(lane, line, message, boxes)
        except LaneLost as why:
            log.warning("lane %d: %s", lane, why)
        except OSError:
            pass  # its process is gone: that is found elsewhere
        except Exception:
            log.exception("lane %d is lost by a mistake", lane)
        finally:
            line.wire.hang_up()
            boxes.put(None)
            if line.box is not None:
                line.box.put(None)  # else the sender would wait there for ever

    def _heard(
        self,
        lane: int,
        line: _LaneConnection,
        message: FromLane,
        boxes: queue.SimpleQueue[Box | None],
    ) -> None:
        match message:
            case Ask():
                line.has_asked, line.seen = True, None
                line.box = self._dispatcher.ask_soon(lane)
                try:
                    _send(line.wire, line.box.get_nowait())
                except queue.Empty:
                    boxes.put(line.box)
            case Report():
                self._dispatcher.report(lane, message)
            case Failed():
                line.wire.send(self._dispatcher.failed(lane, message))
            case Progress():
                line.seen, line.seen_s = Seen(message.number, message.offset), time.monotonic()
            case Unfit():
                line.unfit = message.why
            case Logged():
                log.log(message.level, "%s", message.text)


def _send_work(
    wire: Connection, boxes: queue.SimpleQueue[Box | None], beat_s: float | None
) -> None:
    def taken(queued: queue.SimpleQueue[T]) -> T:
        while True:
            try:
                return taken_within(queued, beat_s)
            except queue.Empty:
                wire.send(Beat())

    try:
        while (box := taken(boxes)) is not None:
            _send(wire, taken(box))
    except OSError:
        pass  # its process is gone


def _send(wire: Connection, work: Work | None) -> None:
    wire.send(Close() if work is None else work)


def _cut_off(line: _LaneConnection) -> None:
    """What it still has in hand, it will not commit, if it let this reach it."""
    line.wire.hang_up()
    if line.lifeline is not None:
        line.lifeline.close()


def _is_own(connected: socket.socket) -> bool:
    """Whether this user calls; on TCP there is no telling, only the secret."""
    if connected.family != socket.AF_UNIX:
        return True
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.geteuid())


def _hang_up(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
