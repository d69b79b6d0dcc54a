"""Lanes outside the replica's process, which call the replica's lane server: started, watched,
replaced. What a lane lives in, its body, is made elsewhere: a process, or a task of Spark."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple, Protocol

import msgspec

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import BadSetting, Refused
from headrace.engines.engine import LaneWork
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.remote_lane import is_lane
from headrace.lanes.protocol import Progress
from headrace.process import failpoints

log = logging.getLogger("headrace")

NOT_BEGUN_MAX = 3
"""How many lanes may end before they ask, one after the other, while no lane works, before the
replica gives up."""
AGAIN_S = 0.1
LOOK_S = 0.005
AGAIN_S_MAX = 5.0
STARTED_S = 60.0
"""How long loading a topology may take."""
KILLED_S = 1.0
"""How long a killed body is waited for; one that takes longer is reaped later."""


class LaneBody(Protocol):
    """What a lane lives in: a process, a task of Spark."""

    began_s: float

    def has_ended(self) -> bool: ...

    def kill(self) -> None:
        """Does not wait."""

    def reaped(self, timeout_s: float) -> bool:
        """Whether the body is gone within this time."""

    def how(self) -> str:
        """How the body has ended, if that is known."""


Launch = Callable[[LaneSpec], LaneBody]
"""Starts a body; `OSError` if that is not possible now."""


class RemoteLanes:
    def __init__(
        self,
        server: LaneServer,
        count: int,
        spec: LaneSpec,
        launch: Launch,
        *,
        body_name: str,
        late: str = "",
        started_s: float = STARTED_S,
        killed_s: float = KILLED_S,
    ) -> None:
        """``body_name`` says what a lane lives in, and ``late`` why it may begin late. The thread
        that keeps the memberships waits ``killed_s`` for a lane that has worked and is killed."""
        if is_lane():
            raise Refused(
                "a lane loads the topology and must not run it: put what runs it under "
                'if __name__ == "__main__":'
            )
        self._server = server
        self._count = count
        self._spec = msgspec.structs.replace(spec, secret=server.secret)
        self._spec.to_line()  # raises if it is too long
        self._launch = launch
        self._body_name = body_name
        self._late = late
        self._started_s = started_s
        self._killed_s = killed_s
        self._bodies: dict[int, LaneBody] = {}
        self._killed: list[LaneBody] = []
        """Bodies that are killed and not reaped yet."""
        self._to_start: dict[int, float] = {}
        """When each lane is started anew."""
        self._not_begun = 0
        """How many lanes in a row ended before they asked."""
        self._again_s = AGAIN_S

    def start(self) -> None:
        try:
            self._server.open()
            for number in range(self._count):
                self._start(number)
            self._wait_for_all()
        except BaseException as why:
            self.join(0.0)
            if isinstance(why, OSError):
                raise Refused(f"the {self._body_name} of a lane cannot be started: {why}") from why
            raise

    def cut(self, lane: int, number: int) -> None:
        self._server.cut(lane, number)

    def progress(self, lane: int) -> Progress | None:
        return self._server.progress(lane)

    def kill(self, lane: int) -> None:
        body = self._bodies.pop(lane, None)
        if body is None:
            return
        self._server.disconnect(lane)
        self._end(body, self._killed_s)
        self._to_start[lane + self._count] = 0.0  # by the next call of `died`

    def died(self) -> list[int]:
        now_s = time.monotonic()
        self._killed = [body for body in self._killed if not body.reaped(0.0)]
        for lane in [lane for lane, at_s in self._to_start.items() if at_s <= now_s]:
            del self._to_start[lane]
            try:
                self._start(lane)
            except OSError as why:
                log.error("lane %d: its %s cannot be started: %s", lane, self._body_name, why)
                self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
                self._to_start[lane] = now_s + self._again_s
        return [lane for lane in list(self._bodies) if self._is_dead(lane, now_s)]

    def join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        clean = True
        self._to_start.clear()
        for lane, body in self._bodies.items():
            if not self._server.has_asked(lane):
                body.kill()  # it has nothing in hand
            elif not self._ends_by_itself(lane, body, until_s):
                log.log(
                    logging.WARNING if timeout_s else logging.DEBUG,
                    "lane %d does not end: its %s is killed", lane, self._body_name,
                )  # fmt: skip
                self._server.disconnect(lane)
                body.kill()
                clean = False
        until_s = time.monotonic() + KILLED_S
        for body in (*self._bodies.values(), *self._killed):
            body.reaped(max(until_s - time.monotonic(), 0.0))
        self._bodies.clear()
        self._killed.clear()
        self._server.close()
        return clean

    # Below

    def _ends_by_itself(self, lane: int, body: LaneBody, until_s: float) -> bool:
        """Whether the lane ends in time. Its body may take a moment longer, and is left alone: a
        worker of Spark may serve others next."""
        while not body.has_ended() and not self._server.is_disconnected(lane):
            if time.monotonic() > until_s:
                return False
            body.reaped(LOOK_S)
        return True

    def _wait_for_all(self) -> None:
        """Wait until each lane has asked for work: the shards that this replica is granted would
        lie idle before that.

        A lane that ends without a message is started again: the worker that it was to live in may
        have died before, unnoticed."""
        while waiting := [lane for lane in self._bodies if not self._server.has_asked(lane)]:
            now_s = time.monotonic()
            for lane in waiting:
                ended = self._take_ended(lane, now_s)
                if ended is None:
                    continue
                self._not_begun += 1
                if ended.is_final or self._not_begun >= NOT_BEGUN_MAX:
                    raise Refused(f"lanes cannot begin: {ended.why}")
                log.warning("the %s of lane %d has ended: %s", self._body_name, lane, ended.why)
                self._start(lane + self._count)
            time.sleep(LOOK_S)
        self._not_begun = 0

    def _is_dead(self, lane: int, now_s: float) -> bool:
        ended = self._take_ended(lane, now_s)
        if ended is None:
            return False
        log.error("the %s of lane %d has ended: %s", self._body_name, lane, ended.why)
        if ended.had_asked:
            self._not_begun, self._again_s = 0, AGAIN_S
        else:
            self._not_begun += 1
            self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
            if self._not_begun >= NOT_BEGUN_MAX and not self._works():
                raise Refused(f"{self._not_begun} lanes in a row cannot begin: {ended.why}")
        self._to_start[lane + self._count] = now_s + self._again_s
        return True

    def _works(self) -> bool:
        return any(map(self._server.has_asked, self._bodies))

    def _take_ended(self, lane: int, now_s: float) -> _Ended | None:
        """How the lane has ended, and its body is forgotten; None if the lane lives."""
        body, server = self._bodies[lane], self._server
        is_late = not server.has_asked(lane) and now_s - body.began_s > self._started_s
        if not is_late and not body.has_ended() and not server.is_disconnected(lane):
            return None
        del self._bodies[lane]
        server.cut_lifeline(lane)
        if server.has_asked(lane):
            self._end(body, self._killed_s)
        else:
            if not is_late:
                body.reaped(KILLED_S)  # it ends by itself, and then tells why
            self._end(body, KILLED_S)
        why = body.how()
        server.receive_rest(lane, KILLED_S)
        if is_late:
            why = f"it has not begun after {self._started_s:g} s{self._late}"
        cannot_work = server.cannot_work(lane)
        ended = _Ended(
            cannot_work or why, server.has_asked(lane), is_late or cannot_work is not None
        )
        server.disconnect(lane)
        return ended

    def _end(self, body: LaneBody, timeout_s: float) -> None:
        """Have the body end, with all processes that belong to it."""
        body.kill()
        if not body.reaped(timeout_s):
            self._killed.append(body)

    def _start(self, number: int) -> None:
        self._server.expect(number)
        spec = msgspec.structs.replace(
            self._spec,
            address=self._server.address,
            lane=number,
            failing=os.environ.get(failpoints.VARIABLE, ""),
        )
        try:
            self._bodies[number] = self._launch(spec)
        except OSError:
            self._server.disconnect(number)
            raise


class _Ended(NamedTuple):
    why: str
    had_asked: bool
    is_final: bool
    """Another lane would fare no better."""


def lane_spec_for(work: LaneWork, hub: str) -> LaneSpec:
    """The spec of lanes that open the hub at this address themselves."""
    return LaneSpec(
        hub=hub,
        reference=work.reference,
        settings=_plain_settings(work.settings),
        replica=work.replica,
        path=[place for place in sys.path if isinstance(place, str)],
        level=log.getEffectiveLevel(),
        codes={name: bound.code for name, bound in work.computations.items()},
        parent=os.getpid(),
    )


def _plain_settings(settings: RunSettings) -> dict[str, Any]:
    """The settings as another process gets them; `BadSetting` for a value that would not be the
    same there."""
    # Lanes need not know how Spark is started, and there may be secrets in that.
    sections = asdict(replace(settings, spark={}))
    for section, values in sections.items():
        if not _is_plain(values):
            for key, value in values.items() if isinstance(values, Mapping) else ():
                if not _is_plain(value):
                    raise BadSetting(
                        f"{section}: {key} = {value!r} cannot be told to lanes that are no threads "
                        "of this process: use text, numbers, true or false, lists, and tables with "
                        "names of text"
                    )
    return sections


def _is_plain(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
