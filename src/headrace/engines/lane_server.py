"""The server that lanes of other processes call: a socket that only this run can use."""

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
from headrace.engines.connection import Connection, FromLane, listen
from headrace.engines.handshake import NoGreeting, accept
from headrace.engines.lifeline import LIFELINE
from headrace.lanes.protocol import (
    Alive,
    Ask,
    CannotWork,
    Close,
    Cut,
    DispatcherPort,
    Failed,
    Judged,
    Logged,
    Progress,
    Report,
    Work,
)
from headrace.process.queues import taken_within

log = logging.getLogger("headrace")

HANDSHAKES_MAX = 64
"""How many callers may be in their handshake at once; one more, and the first of them is turned
away."""
FRESH_S = 1.0
"""How long the last progress of a lane is believed."""
AGAIN_S = 0.1
LOG_S = 10.0
"""How often the log gets a line about callers that are turned away: not for each of them."""

_CREDENTIALS = struct.Struct("@iII")

WorkQueue = queue.SimpleQueue[Work | None]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _ConnectedLane:
    """A lane from the end of its handshake on."""

    connection: Connection
    has_asked: bool = False
    cannot_work: str | None = None
    """Why the lane cannot begin, if it has said so."""
    progress: Progress | None = None
    progress_s: float = 0.0
    """When the last progress arrived."""
    cut: int | None = None
    """The number of the slice that the lane was last told to end."""
    work: WorkQueue | None = None
    """The queue that the lane's next work comes from."""
    lifeline: Connection | None = None
    """Nothing is sent on it; it is closed when the lane shall die."""
    over: threading.Event = field(default_factory=threading.Event)
    """Everything that the lane sent is received."""


class LaneServer:
    """Listens from `open` to `close`. Each lane has two threads here: one receives, the other sends
    the lane its work.

    No method waits for a lane, except `receive_rest`, which takes a time."""

    def __init__(
        self,
        dispatcher: DispatcherPort,
        address: str = "unix:",
        *,
        beyond_this_host: bool = False,
        alive_s: float | None = None,
    ) -> None:
        """Every ``alive_s`` a lane that waits for work is told that the replica lives; None: it is
        not told."""
        self.address = address
        """From `open` on, the full address that lanes call."""
        self.secret = secrets.token_bytes(32)
        self._dispatcher = dispatcher
        self._beyond_this_host = beyond_this_host
        self._alive_s = alive_s
        self._listening: socket.socket | None = None
        self._accepting = threading.Thread(
            target=self._accept, name="headrace-lane-server", daemon=True
        )
        self._lock = threading.Lock()
        self._expected: set[int] = set()
        self._in_handshake: dict[socket.socket, None] = {}
        self._lanes: dict[int, _ConnectedLane] = {}
        self._closed = threading.Event()
        self._turned_away = 0
        self._logged_s = -LOG_S

    def open(self) -> None:
        self._listening, self.address = listen(
            self.address, beyond_this_host=self._beyond_this_host
        )
        self._accepting.start()

    def expect(self, lane: int) -> None:
        """Let a lane of this number in when it calls."""
        self._dispatcher.enter(lane)
        with self._lock:
            self._expected.add(lane)

    def cut(self, lane: int, number: int) -> None:
        """Tell the lane to end this slice behind the record in hand."""
        connected = self._lanes.get(lane)
        # Once for each slice: messages that a stopped process does not read would fill its socket,
        # and the next send would wait.
        if connected is not None and connected.cut != number:
            connected.cut = number
            with suppress(OSError):  # the lane is gone: `is_disconnected` tells
                connected.connection.send(Cut(number))

    def progress(self, lane: int) -> Progress | None:
        """The lane's last progress, if it is fresh."""
        connected = self._lanes.get(lane)
        if connected is None or time.monotonic() - connected.progress_s > FRESH_S:
            return None
        return connected.progress

    def has_asked(self, lane: int) -> bool:
        """Whether the lane has begun to work."""
        connected = self._lanes.get(lane)
        return connected is not None and connected.has_asked

    def cannot_work(self, lane: int) -> str | None:
        """Why the lane cannot begin, if it has said so."""
        connected = self._lanes.get(lane)
        return None if connected is None else connected.cannot_work

    def is_disconnected(self, lane: int) -> bool:
        """Whether the lane's connection has ended."""
        connected = self._lanes.get(lane)
        return connected is not None and connected.over.is_set()

    def receive_rest(self, lane: int, timeout_s: float) -> None:
        """Receive what a lane that has ended sent before."""
        connected = self._lanes.get(lane)
        if connected is not None:
            connected.over.wait(timeout_s)

    def cut_lifeline(self, lane: int) -> None:
        """Have the lane killed, if it still lives. What it sent before is received."""
        connected = self._lanes.get(lane)
        if connected is not None and connected.lifeline is not None:
            connected.lifeline.close()

    def disconnect(self, lane: int) -> None:
        """Receive nothing more of the lane, and have it killed."""
        with self._lock:
            self._expected.discard(lane)
            connected = self._lanes.pop(lane, None)
        if connected is not None:
            _disconnect(connected)

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            lanes, self._lanes = list(self._lanes.values()), {}
            in_handshake = list(self._in_handshake)
        for connected in lanes:
            _disconnect(connected)
        for caller in in_handshake:
            _hang_up(caller)
        if self._listening is not None:
            _hang_up(self._listening)  # closing alone would leave the thread in its accept
            self._accepting.join()
            self._listening.close()
        for connected in lanes:
            connected.over.wait(AGAIN_S)

    # Callers

    def _accept(self) -> None:
        assert self._listening is not None
        while not self._closed.is_set():
            try:
                caller, _ = self._listening.accept()
            except OSError as why:
                if not self._closed.wait(AGAIN_S):  # files may be free again by then
                    self._turn_away(why)
                continue
            if not _is_own(caller):
                self._turn_away("it is another user's")
                caller.close()
                continue
            self._take(caller)

    def _take(self, caller: socket.socket) -> None:
        with self._lock:
            if self._closed.is_set():
                caller.close()
                return
            while len(self._in_handshake) >= HANDSHAKES_MAX:
                # A lane sends its proof at once: the oldest caller is none.
                oldest = next(iter(self._in_handshake))
                del self._in_handshake[oldest]
                _hang_up(oldest)
            self._in_handshake[caller] = None
        try:
            threading.Thread(
                target=self._serve, args=(caller,), name="headrace-lane-connection", daemon=True
            ).start()
        except RuntimeError as why:  # no more threads
            self._turn_away(why)
            with self._lock:
                self._in_handshake.pop(caller, None)
            caller.close()

    def _serve(self, caller: socket.socket) -> None:
        connected: _ConnectedLane | None = None
        is_lifeline = False

        def admits(lane: int, connection: Connection) -> bool:
            nonlocal connected, is_lifeline
            with self._lock:
                self._in_handshake.pop(caller, None)
                if lane & LIFELINE:
                    known = self._lanes.get(lane ^ LIFELINE)
                    is_lifeline = known is not None and known.lifeline is None
                    if known is not None and is_lifeline:
                        known.lifeline = connection
                    return is_lifeline
                if lane not in self._expected or self._closed.is_set():
                    return False
                self._expected.discard(lane)
                connected = self._lanes[lane] = _ConnectedLane(connection)
                return True

        try:
            lane, _ = accept(caller, self.secret, admits)
        except (NoGreeting, OSError) as why:
            log.info("a caller of the dispatcher hung up: %s", why)
        except Refused as why:
            if not self._closed.is_set():
                self._turn_away(why)
        else:
            if connected is not None:
                self._receive(lane, connected)
        with self._lock:
            self._in_handshake.pop(caller, None)
        if connected is not None:
            connected.over.set()
            connected.connection.close()
        elif not is_lifeline:
            caller.close()

    def _turn_away(self, why: object) -> None:
        with self._lock:
            self._turned_away += 1
            now_s = time.monotonic()
            if now_s - self._logged_s < LOG_S:
                return
            self._logged_s = now_s
            count = self._turned_away
        log.warning("a caller of the dispatcher was turned away, the %d.: %s", count, why)

    # Lanes

    def _receive(self, lane: int, connected: _ConnectedLane) -> None:
        """Act on the messages of a lane until its connection ends."""
        to_send: queue.SimpleQueue[WorkQueue | None] = queue.SimpleQueue()
        sender = threading.Thread(
            target=_send_work,
            args=(connected.connection, to_send, self._alive_s),
            name=f"headrace-work-{lane}",
            daemon=True,
        )
        try:
            sender.start()
            while (message := connected.connection.receive()) is not None:
                self._act_on(message, lane, connected, to_send)
        except LaneLost as why:
            log.warning("lane %d: %s", lane, why)
        except OSError:
            pass  # the lane's process is gone: `is_disconnected` tells
        except Exception:
            log.exception("lane %d is lost by a mistake", lane)
        finally:
            connected.connection.hang_up()
            to_send.put(None)
            if connected.work is not None:
                connected.work.put(None)  # else the sender would wait there for ever

    def _act_on(
        self,
        message: FromLane,
        lane: int,
        connected: _ConnectedLane,
        to_send: queue.SimpleQueue[WorkQueue | None],
    ) -> None:
        match message:
            case Ask():
                connected.has_asked, connected.progress = True, None
                connected.work = self._dispatcher.ask_soon(lane)
                try:
                    _send(connected.connection, connected.work.get_nowait())
                except queue.Empty:
                    to_send.put(connected.work)
            case Report():
                self._dispatcher.report(lane, message)
            case Failed():
                connected.connection.send(Judged(self._dispatcher.failed(lane, message)))
            case Progress():
                connected.progress, connected.progress_s = message, time.monotonic()
            case CannotWork():
                connected.cannot_work = message.why
            case Logged():
                log.log(message.level, "%s", message.text)


def _send_work(
    connection: Connection,
    to_send: queue.SimpleQueue[WorkQueue | None],
    alive_s: float | None,
) -> None:
    """Send a lane its work as it comes, and signs of life meanwhile."""

    def take(queued: queue.SimpleQueue[T]) -> T:
        while True:
            try:
                return taken_within(queued, alive_s)
            except queue.Empty:
                connection.send(Alive())

    try:
        while (work := take(to_send)) is not None:
            _send(connection, take(work))
    except OSError:
        pass  # the lane's process is gone


def _send(connection: Connection, work: Work | None) -> None:
    connection.send(Close() if work is None else work)


def _disconnect(connected: _ConnectedLane) -> None:
    """The lane is killed by its lifeline, and commits no more of the slice in hand. A lane without
    a lifeline ends when it next receives or sends."""
    connected.connection.hang_up()
    if connected.lifeline is not None:
        connected.lifeline.close()


def _is_own(caller: socket.socket) -> bool:
    """Whether the caller is this user; on TCP that is not known, and only the secret counts."""
    if caller.family != socket.AF_UNIX:
        return True
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _hang_up(caller: socket.socket) -> None:
    with suppress(OSError):
        caller.shutdown(socket.SHUT_RDWR)
