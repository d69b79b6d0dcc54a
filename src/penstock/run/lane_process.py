"""The process of one lane: ``python -m penstock.run.lane_process``, told by its first line of input
what to do. It ends with the process that started it."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import socket
import threading
import time
from typing import Any

from penstock.core.errors import LaneLost
from penstock.run.kit import kits
from penstock.run.lane import Lane
from penstock.run.loading import load_topology
from penstock.run.opening import open as open_hub
from penstock.run.protocol import Ask, Close, Cut, Failed, Progress, Report, Verdict, Work
from penstock.run.settings import RunSettings
from penstock.run.wire import Wire, greeted

PROGRESS_S = 0.02
STDIN = 0

log = logging.getLogger("penstock")


class RemoteDesk:
    """The dispatcher at the other end of a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Verdict | None] = queue.SimpleQueue()
        self.lane: Lane | None = None
        threading.Thread(target=self._hear, daemon=True).start()
        threading.Thread(target=self._tell_progress, daemon=True).start()

    def ask(self, lane: int) -> Work | None:
        self._wire.send(Ask())
        return self._work.get()

    def failed(self, lane: int, failed: Failed) -> Verdict:
        self._wire.send(failed)
        verdict = self._verdicts.get()
        if verdict is None:
            raise LaneLost("the dispatcher is gone")
        return verdict

    def report(self, lane: int, report: Report) -> None:
        self._wire.send(report)

    def _hear(self) -> None:
        while (message := self._wire.receive()) is not None:
            match message:
                case Work():
                    self._work.put(message)
                case Verdict():
                    self._verdicts.put(message)
                case Cut() if self.lane is not None:
                    self.lane.cut(message.number)
                case Close():
                    break
                case _:
                    pass  # a cut that comes before there is anything to cut
        self._work.put(None)
        self._verdicts.put(None)

    def _tell_progress(self) -> None:
        said = None
        while True:
            time.sleep(PROGRESS_S)
            hand = None if self.lane is None else self.lane.hand
            now = None if hand is None else (hand.number, hand.offset)
            if now is not None and now != said:
                try:
                    self._wire.send(Progress(*now))
                except OSError:
                    return
            said = now


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the one that started this
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    told: dict[str, Any] = json.loads(_first_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    loaded = load_topology(told["reference"])
    settings = RunSettings(**told["settings"])
    with open_hub(told["hub"], create=False) as hub:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connected.connect(told["address"])
        desk = RemoteDesk(greeted(connected, bytes.fromhex(told["secret"]), told["lane"]))
        found = kits(hub.backend, loaded.topology, settings)
        lane = desk.lane = Lane(told["lane"], desk, hub.backend, found, told["replica"])
        try:
            lane.run()
        except (LaneLost, OSError) as why:
            log.warning("lane %d ends: %s", lane.number, why)


def _first_line() -> bytes:
    """Not through `sys.stdin`, whose lock the thread that waits for its end would hold for ever."""
    line = b""
    while not line.endswith(b"\n") and (char := os.read(STDIN, 1)):
        line += char
    return line


def _end_with_parent() -> None:
    while os.read(STDIN, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
