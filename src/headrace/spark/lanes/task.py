"""A lane in the Python worker of a Spark task. The worker may have served other tasks before, and
may serve others next: the lane leaves it as it was."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.core.errors import HeadraceError
from headrace.engines.connection import Connection
from headrace.engines.handshake import dial
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.lifeline import Lifeline, dial_lifeline
from headrace.engines.remote_lane import run_lane

REPORT = "why string"


def lane_task(line: bytes, pickled: bytes | None, nothing: Iterator[object]) -> Iterator[str]:
    """Run a lane to its end; then give one text: why it ended, empty if it ended in order."""
    for _ in nothing:
        pass
    yield _run_lane(LaneSpec.from_line(line), pickled) or ""


def arrow_lane_task(
    line: bytes, pickled: bytes | None, nothing: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The same for Spark Connect, which takes Arrow batches only."""
    for why in lane_task(line, pickled, nothing):
        yield pa.RecordBatch.from_pydict({"why": [why]})


def _run_lane(spec: LaneSpec, pickled: bytes | None) -> str | None:
    from pyspark import TaskContext
    from pyspark.cloudpickle import loads

    context = TaskContext.get()
    if context is not None and context.attemptNumber() > 0:
        return "it was lost, and another is in its place"
    try:
        connection = dial(spec.address, spec.secret, spec.lane)
        file = dial_lifeline(spec.address, spec.secret, spec.lane)
    except HeadraceError as why:
        return str(why)
    if spec.lease_s is not None:
        connection.expect_within(spec.lease_s)
    own_pid = os.getpid()
    with _apart(), _held(Lifeline(file, os.getppid()), connection):
        try:
            return run_lane(spec, connection, None if pickled is None else lambda: loads(pickled))
        finally:
            if os.getpid() != own_pid:
                os._exit(1)  # a fork that went on after its handler: Spark must get nothing of it


@contextmanager
def _held(lifeline: Lifeline, connection: Connection) -> Iterator[None]:
    global _here
    lifeline.hold()
    _here = lifeline, connection
    try:
        yield
    finally:
        _here = None
        lifeline.release()
        connection.close()


@contextmanager
def _apart() -> Iterator[None]:
    """A process group of its own, so that what handlers start ends with the lane. Signals are as
    usual meanwhile: the daemon that forked this worker ignores the end of children."""
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
"""Of the lane that this process is now."""


def _forget() -> None:
    """A fork of a handler is no lane: it sends nothing, and ends by the usual signals."""
    global _here
    if _here is not None:
        (lifeline, connection), _here = _here, None
        connection.forget()
        lifeline.forget()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
