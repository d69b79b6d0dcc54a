"""Lanes as threads of this process. One that hangs cannot be killed: it is left to itself, and can
commit nothing, because its grant is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.core.errors import LaneLost
from headrace.engines.engine import LaneFactory, LaneWork, Progress
from headrace.lanes.lane import Lane
from headrace.lanes.protocol import DispatcherPort

log = logging.getLogger("headrace")


def in_threads(wanted: LaneWork) -> LaneFactory:
    def made(number: int, dispatcher: DispatcherPort) -> Lane:
        return Lane(number, dispatcher, wanted.backend, wanted.kits, wanted.replica)

    return lambda dispatcher, count: ThreadLanes(dispatcher, count, made)


class ThreadLanes:
    def __init__(
        self, dispatcher: DispatcherPort, count: int, made: Callable[[int, DispatcherPort], Lane]
    ) -> None:
        self._dispatcher = dispatcher
        self._count = count
        self._made = made
        self._lanes: dict[int, tuple[Lane, threading.Thread]] = {}
        self._ended: list[int] = []
        self._is_over = False

    def start(self) -> None:
        for number in range(self._count):
            self._start(number)

    def cut(self, lane: int, number: int) -> None:
        if lane in self._lanes:
            self._lanes[lane][0].cut(number)

    def progress(self, lane: int) -> Progress | None:
        found = self._lanes.get(lane)
        hand = None if found is None else found[0].hand
        return None if hand is None else Progress(hand.number, hand.offset)

    def kill(self, lane: int) -> None:
        self._replace(lane)

    def died(self) -> list[int]:
        dead = [lane for lane, (_, thread) in list(self._lanes.items()) if not thread.is_alive()]
        for lane in dead if not self._is_over else ():
            self._replace(lane)
        return dead if not self._is_over else []

    def join(self, timeout_s: float) -> bool:
        self._is_over = True
        until_s = time.monotonic() + timeout_s
        for _, thread in self._lanes.values():
            thread.join(max(until_s - time.monotonic(), 0.0))
        return not any(thread.is_alive() for _, thread in self._lanes.values())

    def _replace(self, lane: int) -> None:
        if self._lanes.pop(lane, None) is not None:
            # Another number, so that what the old one still says is not taken for the new one's;
            # the same place among the lanes.
            self._start(lane + self._count)

    def _start(self, number: int) -> None:
        self._dispatcher.enter(number)
        lane = self._made(number, self._dispatcher)
        thread = threading.Thread(
            target=_run, args=(lane,), name=f"headrace-lane-{number}", daemon=True
        )
        self._lanes[number] = lane, thread
        thread.start()


def _run(lane: Lane) -> None:
    try:
        lane.run()
    except LaneLost as why:
        log.warning("lane %d ends: %s", lane.number, why)
    except Exception:
        log.exception("lane %d ends by a mistake", lane.number)
