"""The lane's end of the wire to its dispatcher."""

from __future__ import annotations

import queue
import threading
import time

import msgspec

from headrace.core.errors import LaneLost
from headrace.engines.connection import Connection
from headrace.lanes.lane import Lane
from headrace.lanes.protocol import Ask, Close, Cut, Failed, Judged, Progress, Report, Work

PROGRESS_S = 0.1
BEAT_S = 0.2
"""As long as it works it says so at least so often."""
REASON_CHARS_MAX = 10_000


class DispatcherClient:
    """The dispatcher at the other end of a wire."""

    def __init__(self, wire: Connection) -> None:
        self._wire = wire
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Judged | None] = queue.SimpleQueue()
        self._is_closed = False
        self._is_over = False
        self._busy = threading.Event()
        self._to_cut: int | None = None
        self._threads = [
            threading.Thread(target=self._hear, name="headrace-desk", daemon=True),
            threading.Thread(target=self._tell_progress, name="headrace-progress", daemon=True),
        ]
        self.lane: Lane | None = None

    def open(self, lane: Lane) -> None:
        self.lane = lane
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """The lane has ended, and with it the wire."""
        self._is_over = True
        self._busy.set()
        self._wire.hang_up()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._wire.close()

    def ask(self, lane: int) -> Work | None:
        self._busy.clear()
        self._wire.send(Ask())
        work = self._work.get()
        if work is None and not self._is_closed:
            raise LaneLost("the dispatcher is gone")
        if work is not None:
            self._busy.set()
        return work

    def failed(self, lane: int, failed: Failed) -> Judged:
        self._wire.send(failed)
        verdict = self._verdicts.get()
        if verdict is None:
            raise LaneLost("the dispatcher is gone")
        return verdict

    def report(self, lane: int, report: Report) -> None:
        if report.reason:
            report = msgspec.structs.replace(report, reason=tellable(report.reason))
        self._wire.send(report)

    def _hear(self) -> None:
        while (message := self._wire.receive()) is not None:
            match message:
                case Work():
                    self._work.put(message)
                case Judged():
                    self._verdicts.put(message)
                case Cut():
                    self._to_cut = message.number
                    self._cut()
                case Close():
                    self._is_closed = True
                    break
                case _:
                    pass  # a beat: it was heard
        self._work.put(None)
        self._verdicts.put(None)

    def _cut(self) -> None:
        if self.lane is not None and self._to_cut is not None:
            self.lane.cut(self._to_cut)

    def _tell_progress(self) -> None:
        said, said_s = None, 0.0
        while self._busy.wait() and not self._is_over:
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


def tellable(text: str) -> str:
    """Messages of errors may be of any length, and hold what is no text."""
    return text[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()
