"""The life of a lane outside its replica's process, from its errand to its end."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from headrace.backends.opening import open_backend
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadTopology, HeadraceError, LaneLost, Refused
from headrace.engines import lane_spec as errands
from headrace.engines.connection import Connection, Unfit
from headrace.engines.dispatcher_client import DispatcherClient, tellable
from headrace.engines.lane_spec import LaneSpec
from headrace.lanes.bound import BoundComputation, bound_computations
from headrace.lanes.lane import Lane
from headrace.lanes.loading import load_topology
from headrace.lanes.protocol import Logged
from headrace.process import failpoints

log = logging.getLogger("headrace")


def run_lane(
    errand: LaneSpec, wire: Connection, brought: Callable[[], Topology] | None = None
) -> str | None:
    """Work until there is no more; why it ended before, if it did. The topology is brought
    along, or the errand says where it is."""
    try:
        armed = failpoints.armed(errand.failing)
    except ValueError as why:
        return _unfit(wire, str(why))
    with _as_lane(errand, armed), _logging_to(wire, errand.level), ExitStack() as stack:
        desk = DispatcherClient(wire)
        stack.callback(desk.close)  # last: who hangs up has ended
        try:
            lane = _lane(errand, desk, brought, stack)
        except HeadraceError as why:
            return _unfit(wire, str(why))
        except Exception as why:
            log.exception("lane %d cannot begin", errand.lane)
            return _unfit(wire, f"{type(why).__name__}: {why}")
        desk.open(lane)
        try:
            lane.run()
        except (LaneLost, OSError) as why:
            log.warning("lane %d ends: %s", lane.number, why)
            return str(why)
        except BaseException as why:
            log.exception("lane %d ends by a mistake", lane.number)
            return f"a mistake: {type(why).__name__}: {why}"
    return None


def _lane(
    errand: LaneSpec,
    desk: DispatcherClient,
    brought: Callable[[], Topology] | None,
    stack: ExitStack,
) -> Lane:
    _check_machine(errand)
    topology = _topology(errand, brought)
    backend = open_backend(errand.hub, create=False)
    stack.callback(backend.close)
    known = errand.codes if brought is not None else None
    found = bound_computations(backend, topology, errand.run_settings(), known)
    _check_code(errand, found)
    pa.array([b""])  # whatever that loads, it loads before the first slice
    return Lane(errand.lane, desk, backend, found, errand.replica)


def _check_code(errand: LaneSpec, found: Mapping[str, BoundComputation]) -> None:
    """That of the replica: two kinds of it side by side would be nobody's wish."""
    for name, code in errand.codes.items():
        if name not in found or found[name].code != code:
            raise Refused(f"the code of {name} has changed since this replica began: start it anew")


def _topology(errand: LaneSpec, brought: Callable[[], Topology] | None) -> Topology:
    if brought is None:
        assert errand.reference is not None, "nothing names a topology"
        return load_topology(errand.reference).topology
    try:
        return brought()
    except Exception as why:
        raise BadTopology(f"the topology does not load here: {type(why).__name__}: {why}") from why


def this_machine() -> str:
    """The same in all processes on this machine, as long as it runs."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _check_machine(errand: LaneSpec) -> None:
    if errand.machine is not None and errand.machine != this_machine():
        raise Refused(
            f"the lane runs on {os.uname().nodename}, another machine than the hub {errand.hub}: "
            "an embedded hub is for the processes of one machine"
        )


def _unfit(wire: Connection, why: str) -> str:
    with suppress(OSError):
        wire.send(Unfit(tellable(why)))
    return why


@contextmanager
def _as_lane(errand: LaneSpec, armed: failpoints.Points) -> Iterator[None]:
    """As if this process had been made for it; afterwards it may serve others."""
    before = list(sys.path), failpoints.armed_now()
    errands.in_lane = True
    sys.path += [place for place in errand.path if place not in sys.path]
    failpoints.arm(armed)
    try:
        yield
    finally:
        errands.in_lane = False
        sys.path[:] = before[0]
        failpoints.arm(before[1])


@contextmanager
def _logging_to(wire: Connection, level: int) -> Iterator[None]:
    handler, level_before = _ToConnection(wire), log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level_before)


class _ToConnection(logging.Handler):
    def __init__(self, wire: Connection) -> None:
        super().__init__()
        self._wire = wire

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # nobody is there to read it
            self._wire.send(Logged(record.levelno, tellable(self.format(record))))
