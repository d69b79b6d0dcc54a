"""Lanes as processes: a handler that hangs, crashes or eats up memory takes only its lane along."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from penstock.core.errors import Refused
from penstock.run.dispatcher import Dispatcher
from penstock.run.engine import Progress
from penstock.run.settings import RunSettings
from penstock.run.switchboard import Switchboard

log = logging.getLogger("penstock")

STILLBORN_MAX = 3
"""So many that end before they call, one after the other: it does not work."""
AGAIN_S = 0.1
AGAIN_S_MAX = 5.0
STARTED_S = 60.0


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    began_s: float


class ProcessLanes:
    def __init__(
        self,
        dispatcher: Dispatcher,
        count: int,
        *,
        hub: str,
        reference: str,
        settings: RunSettings,
        replica: str,
    ) -> None:
        self._board = Switchboard(dispatcher)
        self._count = count
        self._told = {
            "hub": hub,
            "reference": reference,
            "settings": asdict(settings),
            "replica": replica,
            "address": self._board.address,
            "secret": self._board.secret.hex(),
        }
        self._children: dict[int, _Child] = {}
        self._to_start: dict[int, float] = {}
        """When lanes are started anew."""
        self._stillborn = 0
        self._again_s = AGAIN_S

    def start(self) -> None:
        for number in range(self._count):
            self._start(number)

    def cut(self, lane: int, number: int) -> None:
        self._board.cut(lane, number)

    def progress(self, lane: int) -> Progress | None:
        return self._board.progress(lane)

    def kill(self, lane: int) -> None:
        child = self._children.pop(lane, None)
        if child is None:
            return
        self._board.hang_up(lane)
        child.process.kill()
        child.process.wait()
        self._start(lane + self._count)

    def died(self) -> list[int]:
        now_s = time.monotonic()
        for lane in [lane for lane, at_s in self._to_start.items() if at_s <= now_s]:
            del self._to_start[lane]
            self._start(lane)
        return [lane for lane in list(self._children) if self._is_dead(lane, now_s)]

    def join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        clean = True
        for child in self._children.values():
            try:
                child.process.wait(max(until_s - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                clean = False
                child.process.kill()
                child.process.wait()
        self._board.close()
        return clean

    def _is_dead(self, lane: int, now_s: float) -> bool:
        child = self._children[lane]
        code = child.process.poll()
        called = self._board.has_called(lane)
        if called:
            self._stillborn = 0
        if code is None:
            return False
        del self._children[lane]
        self._board.hang_up(lane)
        log.error("the process of lane %d has ended: %s", lane, _shown(code))
        if not called:
            self._stillborn += 1
            if self._stillborn >= STILLBORN_MAX:
                raise Refused(
                    f"{self._stillborn} lanes ended one after the other before they began "
                    f"({_shown(code)}): what they wrote says why"
                )
        short_lived = now_s - child.began_s < AGAIN_S_MAX
        self._again_s = min(self._again_s * 2, AGAIN_S_MAX) if short_lived else AGAIN_S
        self._to_start[lane + self._count] = now_s + self._again_s
        return True

    def _start(self, number: int) -> None:
        self._board.expect(number)
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.run.lane_process"], stdin=subprocess.PIPE
        )
        assert process.stdin is not None
        # Through the pipe, where nobody else can read it. It stays open: its end tells the child
        # that this process is gone.
        try:
            process.stdin.write(json.dumps({**self._told, "lane": number}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended already: that is found soon
        self._children[number] = _Child(process, time.monotonic())


def _shown(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
