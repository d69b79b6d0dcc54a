"""Lanes as threads of this process. A hung lane cannot be killed: it is left alone, and cannot
commit, because its grant is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headrace.core.errors import LaneLost
from headrace.engines.engine import Engine, LaneFactory, LaneWork
from headrace.groups.home import home_of
from headrace.lanes.lane import Lane
from headrace.lanes.protocol import DispatcherPort, Progress

log = logging.getLogger("headrace")


class ThreadLanes:
    def __init__(
        self,
        dispatcher: DispatcherPort,
        count: int,
        make_lane: Callable[[int, DispatcherPort], Lane],
    ) -> None:
        self._dispatcher = dispatcher
        self._count = count
        self._make_lane = make_lane
        self._lanes: dict[int, tuple[Lane, threading.Thread]] = {}
        self._is_over = False

    def start(self) -> None:
        for number in range(self._count):
            self._start(number)

    def cut(self, lane: int, number: int) -> None:
        if lane in self._lanes:
            self._lanes[lane][0].cut(number)

    def progress(self, lane: int) -> Progress | None:
        found = self._lanes.get(lane)
        return None if found is None else found[0].progress()

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
            # Another number, so that reports of the old lane are not taken for the new one's; but
            # the same place among the lanes.
            self._start(lane + self._count)

    def _start(self, number: int) -> None:
        self._dispatcher.enter(number)
        lane = self._make_lane(number, self._dispatcher)
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


def _thread_lanes(work: LaneWork) -> LaneFactory:
    home = home_of(work.backend)

    def make_lane(number: int, dispatcher: DispatcherPort) -> Lane:
        return Lane(number, dispatcher, work.backend.log, home, work.computations, work.replica)

    return lambda dispatcher, count: ThreadLanes(dispatcher, count, make_lane)


IN_THREADS = Engine("threads", _thread_lanes, shares_a_process=True)
