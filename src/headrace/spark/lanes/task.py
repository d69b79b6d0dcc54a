"""A lane in the Python worker of a Spark task. The worker may have served others before, and may
again: it is left as it was found."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.core.errors import HeadraceError
from headrace.engines.connection import Connection, dial
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.lifeline import Lifeline, lifeline_of
from headrace.engines.remote_lane import run_lane

REPORT = "why string"


def lane_task(line: bytes, pickled: bytes | None, nothing: Iterator[object]) -> Iterator[str]:
    """Until the lane ends; then one text: why, or an empty one if that was in order."""
    for _ in nothing:
        pass
    yield _lived(LaneSpec.from_line(line), pickled) or ""


def arrow_lane_task(
    line: bytes, pickled: bytes | None, nothing: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same, for those who take batches only."""
    for why in lane_task(line, pickled, nothing):
        yield pa.RecordBatch.from_pydict({"why": [why]})


def _lived(errand: LaneSpec, pickled: bytes | None) -> str | None:
    from pyspark import TaskContext
    from pyspark.cloudpickle import loads

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        return "it was lost, and another is in its place"
    try:
        wire = dial(errand.address, errand.secret, errand.lane)
        file = lifeline_of(errand.address, errand.secret, errand.lane)
    except HeadraceError as why:
        return str(why)
    if errand.lease_s is not None:
        wire.expect_within(errand.lease_s)
    born = os.getpid()
    with _apart(), _held(Lifeline(file, os.getppid()), wire):
        try:
            return run_lane(errand, wire, None if pickled is None else lambda: loads(pickled))
        finally:
            if os.getpid() != born:
                os._exit(1)  # a fork that went on after its handler: Spark must not hear of it


@contextmanager
def _held(lifeline: Lifeline, wire: Connection) -> Iterator[None]:
    global _here
    lifeline.hold()
    _here = lifeline, wire
    try:
        yield
    finally:
        _here = None
        lifeline.release()
        wire.close()


@contextmanager
def _apart() -> Iterator[None]:
    """A process group of its own, so that what handlers start ends with the lane. Signals as usual:
    the daemon that forked this worker ignores the end of children."""
    group = os.getpgrp()
    os.setpgid(0, 0)
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in (
            (signal.SIGCHLD, signal.SIG_DFL),
            (signal.SIGTERM, _left_to_replica),
            (signal.SIGINT, _left_to_replica),
        ):
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
        os.setpgid(0, group)


def _left_to_replica(number: int, frame: object) -> None:
    pass


_here: tuple[Lifeline, Connection] | None = None


def _forget() -> None:
    """A fork of a handler is no lane: it says nothing, and ends by the usual signals."""
    global _here
    if _here is not None:
        (lifeline, wire), _here = _here, None
        wire.forget()
        lifeline.forget()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
