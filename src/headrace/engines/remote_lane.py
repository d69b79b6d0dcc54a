"""The life of a lane outside its replica's process, from its spec to its end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

from headrace.core.computations.topology import Topology
from headrace.core.errors import HeadraceError, LaneLost
from headrace.engines.connection import Connection
from headrace.engines.dispatcher_client import DispatcherClient, sendable
from headrace.engines.lane_spec import LaneSpec
from headrace.lanes.protocol import CannotWork, Logged
from headrace.process import failpoints

log = logging.getLogger("headrace")

_is_lane = False


def is_lane() -> bool:
    """Whether this process is a lane now."""
    return _is_lane


def run_lane(
    spec: LaneSpec, connection: Connection, load: Callable[[], Topology] | None = None
) -> str | None:
    """Work until there is no more work; the reason, if the lane ends before that. ``load`` gives
    the topology, if the spec does not name it."""
    try:
        armed = failpoints.armed(spec.failing)
    except ValueError as why:
        return _give_up(connection, str(why))
    with _as_lane(spec, armed), _logging_to(connection, spec.level), ExitStack() as stack:
        dispatcher = DispatcherClient(connection)
        stack.callback(dispatcher.close)  # last: a lane that hangs up has ended
        try:
            # Not at the top: a lane is connected before it loads what it needs for its work, and so
            # can tell its replica what goes wrong there.
            from headrace.engines.open_lane import open_lane

            lane = open_lane(spec, dispatcher, load, stack)
        except HeadraceError as why:
            return _give_up(connection, str(why))
        except Exception as why:
            log.exception("lane %d cannot begin", spec.lane)
            return _give_up(connection, f"{type(why).__name__}: {why}")
        dispatcher.open(lane)
        try:
            lane.run()
        except (LaneLost, OSError) as why:
            log.warning("lane %d ends: %s", lane.number, why)
            return str(why)
        except BaseException as why:
            log.exception("lane %d ends by a mistake", lane.number)
            return f"a mistake: {type(why).__name__}: {why}"
    return None


def _give_up(connection: Connection, why: str) -> str:
    with suppress(OSError):
        connection.send(CannotWork(sendable(why)))
    return why


@contextmanager
def _as_lane(spec: LaneSpec, armed: failpoints.Points) -> Iterator[None]:
    """Make this process a lane, as if it had been started for that. Afterwards it is as before: a
    worker of Spark may serve others next."""
    global _is_lane
    before = list(sys.path), failpoints.armed_now()
    _is_lane = True
    sys.path += [place for place in spec.path if place not in sys.path]
    failpoints.arm(armed)
    try:
        yield
    finally:
        _is_lane = False
        sys.path[:] = before[0]
        failpoints.arm(before[1])


@contextmanager
def _logging_to(connection: Connection, level: int) -> Iterator[None]:
    handler, level_before = _ConnectionHandler(connection), log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level_before)


class _ConnectionHandler(logging.Handler):
    """Sends what is logged here to the replica's log."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the replica is gone
            self._connection.send(Logged(record.levelno, sendable(self.format(record))))
