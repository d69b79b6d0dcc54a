"""Lanes outside the replica's process. They call its switchboard; where they live is another's."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from headrace.core.errors import Refused
from headrace.engines import lane_spec as errands
from headrace.engines.engine import Progress
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import LaneSpec
from headrace.process import failpoints

log = logging.getLogger("headrace")

STILLBORN_MAX = 3
"""So many that end before they ask, one after the other, and none that works: it is of no use."""
AGAIN_S = 0.1
LOOK_S = 0.005
AGAIN_S_MAX = 5.0
STARTED_S = 60.0
"""So long loading a topology may take."""
KILLED_S = 1.0
"""So long a killed one is waited for; what is kept longer is reaped later."""


class LaneBody(Protocol):
    """What a lane lives in: a process, a task of Spark."""

    began_s: float

    def has_ended(self) -> bool: ...

    def kill(self) -> None:
        """Without waiting."""

    def reaped(self, timeout_s: float) -> bool:
        """Whether it is gone by then."""

    def how(self) -> str:
        """How it has ended, as far as that is known."""


Launch = Callable[[LaneSpec], LaneBody]
"""Starts one; `OSError` if that is not possible now."""


class RemoteLanes:
    def __init__(
        self,
        board: LaneServer,
        count: int,
        errand: LaneSpec,
        launch: Launch,
        *,
        what: str,
        late: str = "",
        started_s: float = STARTED_S,
        killed_s: float = KILLED_S,
    ) -> None:
        """``what`` a lane lives in, and why it may be ``late``; one that has worked and is killed
        is waited for ``killed_s``, by the thread that keeps the memberships."""
        if errands.in_lane:
            raise Refused(
                "a lane loads the topology and must not run it: put what runs it under "
                'if __name__ == "__main__":'
            )
        self._board = board
        self._count = count
        self._errand = msgspec.structs.replace(errand, secret=board.secret)
        self._errand.to_line()  # not too long
        self._launch = launch
        self._what = what
        self._late = late
        self._started_s = started_s
        self._killed_s = killed_s
        self._bodies: dict[int, LaneBody] = {}
        self._killed: list[LaneBody] = []
        """They were not seen to end yet."""
        self._to_start: dict[int, float] = {}
        """When lanes are started anew."""
        self._stillborn = 0
        self._again_s = AGAIN_S

    def start(self) -> None:
        try:
            self._board.open()
            for number in range(self._count):
                self._start(number)
            self._wait_for_all()
        except BaseException as why:
            self.join(0.0)
            if isinstance(why, OSError):
                raise Refused(f"the {self._what} of a lane cannot be started: {why}") from why
            raise

    def cut(self, lane: int, number: int) -> None:
        self._board.cut(lane, number)

    def progress(self, lane: int) -> Progress | None:
        return self._board.progress(lane)

    def kill(self, lane: int) -> None:
        body = self._bodies.pop(lane, None)
        if body is None:
            return
        self._board.hang_up(lane)
        self._end(body, self._killed_s)
        self._to_start[lane + self._count] = 0.0  # by the next look at those that died

    def died(self) -> list[int]:
        now_s = time.monotonic()
        self._killed = [body for body in self._killed if not body.reaped(0.0)]
        for lane in [lane for lane, at_s in self._to_start.items() if at_s <= now_s]:
            del self._to_start[lane]
            try:
                self._start(lane)
            except OSError as why:
                log.error("lane %d: its %s cannot be started: %s", lane, self._what, why)
                self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
                self._to_start[lane] = now_s + self._again_s
        return [lane for lane in list(self._bodies) if self._is_dead(lane, now_s)]

    def join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        clean = True
        self._to_start.clear()
        for lane, body in self._bodies.items():
            if not self._board.has_asked(lane):
                body.kill()  # it has nothing in hand
            elif not self._ends_by_itself(lane, body, until_s):
                log.log(
                    logging.WARNING if timeout_s else logging.DEBUG,
                    "lane %d does not end: its %s is killed", lane, self._what,
                )  # fmt: skip
                self._board.hang_up(lane)
                body.kill()
                clean = False
        until_s = time.monotonic() + KILLED_S
        for body in (*self._bodies.values(), *self._killed):
            body.reaped(max(until_s - time.monotonic(), 0.0))
        self._bodies.clear()
        self._killed.clear()
        self._board.close()
        return clean

    # Below

    def _ends_by_itself(self, lane: int, body: LaneBody, until_s: float) -> bool:
        """Whether the lane has ended by then. What it lives in may take a moment longer, and must
        not be disturbed: it may serve others next."""
        while not body.has_ended() and not self._board.is_over(lane):
            if time.monotonic() > until_s:
                return False
            body.reaped(LOOK_S)
        return True

    def _wait_for_all(self) -> None:
        """Until each has asked for work: so long what this replica is granted would lie idle.

        One that ends without a word is started again: what it was to live in may have died before,
        unnoticed."""
        while waiting := [lane for lane in self._bodies if not self._board.has_asked(lane)]:
            now_s = time.monotonic()
            for lane in waiting:
                over = self._over(lane, now_s)
                if over is None:
                    continue
                self._stillborn += 1
                if over.is_final or self._stillborn >= STILLBORN_MAX:
                    raise Refused(f"lanes cannot begin: {over.why}")
                log.warning("the %s of lane %d has ended: %s", self._what, lane, over.why)
                self._start(lane + self._count)
            time.sleep(LOOK_S)
        self._stillborn = 0

    def _is_dead(self, lane: int, now_s: float) -> bool:
        over = self._over(lane, now_s)
        if over is None:
            return False
        log.error("the %s of lane %d has ended: %s", self._what, lane, over.why)
        if over.had_asked:
            self._stillborn, self._again_s = 0, AGAIN_S
        else:
            self._stillborn += 1
            self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
            if self._stillborn >= STILLBORN_MAX and not self._works():
                raise Refused(f"{self._stillborn} lanes in a row cannot begin: {over.why}")
        self._to_start[lane + self._count] = now_s + self._again_s
        return True

    def _works(self) -> bool:
        return any(map(self._board.has_asked, self._bodies))

    def _over(self, lane: int, now_s: float) -> _Over | None:
        """How it has ended, if it has: it is forgotten."""
        body, board = self._bodies[lane], self._board
        is_late = not board.has_asked(lane) and now_s - body.began_s > self._started_s
        if not is_late and not body.has_ended() and not board.is_over(lane):
            return None
        del self._bodies[lane]
        board.sever(lane)
        if board.has_asked(lane):
            self._end(body, self._killed_s)
        else:
            if not is_late:
                body.reaped(KILLED_S)  # by itself: then it tells why
            self._end(body, KILLED_S)
        why = body.how()
        board.hear_out(lane, KILLED_S)
        if is_late:
            why = f"it has not begun after {self._started_s:g} s{self._late}"
        unfit = board.unfit(lane)
        over = _Over(unfit or why, board.has_asked(lane), is_late or unfit is not None)
        board.hang_up(lane)
        return over

    def _end(self, body: LaneBody, timeout_s: float) -> None:
        """Have it end with all that belongs to it."""
        body.kill()
        if not body.reaped(timeout_s):
            self._killed.append(body)

    def _start(self, number: int) -> None:
        self._board.expect(number)
        errand = msgspec.structs.replace(
            self._errand,
            address=self._board.address,
            lane=number,
            failing=os.environ.get(failpoints.VARIABLE, ""),
        )
        try:
            self._bodies[number] = self._launch(errand)
        except OSError:
            self._board.hang_up(number)
            raise


class _Over(NamedTuple):
    why: str
    had_asked: bool
    is_final: bool
    """Another would fare no better."""
