"""The dispatcher as a lane in another process sees it: behind a connection."""

from __future__ import annotations

import queue
import threading
import time

import msgspec

from headrace.core.computations.verdict import Verdict
from headrace.core.errors import LaneLost
from headrace.engines.connection import Connection
from headrace.lanes.protocol import (
    Ask,
    Close,
    Cut,
    Failed,
    Judged,
    LaneAtWork,
    Progress,
    Report,
    Work,
)

PROGRESS_S = 0.1
UNCHANGED_S = 0.2
"""How often a lane at work sends its progress, even if it has made none."""
REASON_CHARS_MAX = 10_000


class DispatcherClient:
    """One thread receives, another sends the lane's progress; the lane's own thread asks and
    reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Verdict | None] = queue.SimpleQueue()
        self._is_closed = False
        """The dispatcher has said that there is no more work."""
        self._is_over = False
        self._busy = threading.Event()
        self._to_cut: int | None = None
        """The number of the slice that the dispatcher last wanted to end."""
        self._threads = [
            threading.Thread(target=self._receive, name="headrace-dispatcher-client", daemon=True),
            threading.Thread(target=self._send_progress, name="headrace-progress", daemon=True),
        ]
        self._lane: LaneAtWork | None = None

    def open(self, lane: LaneAtWork) -> None:
        self._lane = lane
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The lane has ended; the connection ends with it."""
        self._is_over = True
        self._busy.set()
        self._connection.hang_up()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._connection.close()

    def ask(self, lane: int) -> Work | None:
        self._busy.clear()
        self._connection.send(Ask())
        work = self._work.get()
        if work is None and not self._is_closed:
            raise LaneLost("the dispatcher is gone")
        if work is not None:
            self._busy.set()
        return work

    def failed(self, lane: int, failed: Failed) -> Verdict:
        self._connection.send(failed)
        verdict = self._verdicts.get()
        if verdict is None:
            raise LaneLost("the dispatcher is gone")
        return verdict

    def report(self, lane: int, report: Report) -> None:
        if report.reason:
            report = msgspec.structs.replace(report, reason=sendable(report.reason))
        self._connection.send(report)

    def _receive(self) -> None:
        while (message := self._connection.receive()) is not None:
            match message:
                case Work():
                    self._work.put(message)
                case Judged():
                    self._verdicts.put(message.verdict)
                case Cut():
                    self._to_cut = message.number
                    self._cut()
                case Close():
                    self._is_closed = True
                    break
                case _:
                    pass  # Alive: that it arrived is enough
        self._work.put(None)
        self._verdicts.put(None)

    def _cut(self) -> None:
        if self._lane is not None and self._to_cut is not None:
            self._lane.cut(self._to_cut)

    def _send_progress(self) -> None:
        sent: Progress | None = None
        sent_s = 0.0
        while self._busy.wait() and not self._is_over:
            time.sleep(PROGRESS_S)
            self._cut()  # the message may have come before the lane had the slice in hand
            progress = None if self._lane is None else self._lane.progress()
            now_s = time.monotonic()
            if progress is not None and (progress != sent or now_s - sent_s > UNCHANGED_S):
                try:
                    self._connection.send(progress)
                except OSError:
                    return
                sent, sent_s = progress, now_s


def sendable(text: str) -> str:
    """The text of an error as it can be sent: errors may be of any length, and may hold characters
    that cannot be encoded."""
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
