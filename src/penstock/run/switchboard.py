"""Where lanes of other processes call their dispatcher: a socket that only this run can use."""

from __future__ import annotations

import logging
import queue
import secrets
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from penstock.core.errors import LaneLost, Refused
from penstock.run.dispatcher import Dispatcher
from penstock.run.engine import Progress as Seen
from penstock.run.protocol import Ask, Close, Cut, Failed, Progress, Report, Work
from penstock.run.wire import Wire, answered

log = logging.getLogger("penstock")


class Switchboard:
    """Listens until it is closed; one thread for each lane hears, another sends it its work."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.secret = secrets.token_bytes(32)
        self._dispatcher = dispatcher
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-"))  # for its owner only
        self.address = str(self._directory / "lanes")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(self.address)
        self._listening.listen(64)
        self._expected: set[int] = set()
        self._wires: dict[int, Wire] = {}
        self._seen: dict[int, Seen] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._accept, name="penstock-switchboard", daemon=True
        )
        self._thread.start()

    def expect(self, lane: int) -> None:
        """A lane of that number will call."""
        self._dispatcher.enter(lane)
        with self._lock:
            self._expected.add(lane)

    def cut(self, lane: int, number: int) -> None:
        wire = self._wires.get(lane)
        if wire is not None:
            with suppress(OSError):  # it is gone: that is found elsewhere
                wire.send(Cut(number))

    def progress(self, lane: int) -> Seen | None:
        return self._seen.get(lane)

    def has_called(self, lane: int) -> bool:
        return lane in self._wires

    def hang_up(self, lane: int) -> None:
        """Hear nothing of it any more."""
        with self._lock:
            self._expected.discard(lane)
            wire = self._wires.pop(lane, None)
            self._seen.pop(lane, None)
        if wire is not None:
            wire.close()

    def close(self) -> None:
        self._listening.close()
        for lane in list(self._wires):
            self.hang_up(lane)
        shutil.rmtree(self._directory, ignore_errors=True)

    # Below

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        try:
            lane, wire = answered(connected, self.secret)
        except (Refused, OSError) as why:
            log.warning("a caller was turned away: %s", why)
            connected.close()
            return
        with self._lock:
            if lane not in self._expected:
                wire.close()
                return
            self._expected.discard(lane)
            self._wires[lane] = wire
        boxes: queue.SimpleQueue[queue.SimpleQueue[Work | None] | None] = queue.SimpleQueue()
        threading.Thread(target=_send_work, args=(wire, boxes), daemon=True).start()
        try:
            while (message := wire.receive()) is not None:
                self._heard(lane, wire, message, boxes)
        except LaneLost as why:
            log.warning("lane %d: %s", lane, why)
        except OSError:
            pass  # its process is gone: that is found elsewhere
        finally:
            boxes.put(None)
            wire.close()

    def _heard(
        self,
        lane: int,
        wire: Wire,
        message: Ask | Failed | Report | Progress,
        boxes: queue.SimpleQueue[queue.SimpleQueue[Work | None] | None],
    ) -> None:
        match message:
            case Ask():
                self._seen.pop(lane, None)
                boxes.put(self._dispatcher.ask_soon(lane))
            case Report():
                self._dispatcher.report(lane, message)
            case Failed():
                wire.send(self._dispatcher.failed(lane, message))
            case Progress():
                self._seen[lane] = Seen(message.number, message.offset)


def _send_work(wire: Wire, boxes: queue.SimpleQueue[queue.SimpleQueue[Work | None] | None]) -> None:
    try:
        while (box := boxes.get()) is not None:
            work = box.get()
            wire.send(Close() if work is None else work)
    except OSError:
        pass  # its process is gone
