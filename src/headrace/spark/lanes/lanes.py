"""Lanes as tasks of Spark: each lane is a job of its own, so that a lost lane takes no other along.

A lane is killed by its lifeline, which the kernel heeds at once. Another thread cancels the job
afterwards: Spark may be slow to answer, or stopped.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.remote_lanes import RemoteLanes
from headrace.spark.lanes.task import REPORT, arrow_lane_task, lane_task
from headrace.spark.session.gateway import java_ended
from headrace.spark.session.session import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace")

STARTED_S = 120.0
"""How long a lane may take to get a free slot and load its topology."""
CANCEL_AGAIN_S = 0.5

_RECENT = "most recent failure: "
"""In an error of Spark, the reason stands behind these words; before them stands how often."""
_CANCELLED = "SPARK_JOB_CANCELLED"


class SparkLanes(RemoteLanes):
    def __init__(
        self,
        server: LaneServer,
        count: int,
        spec: LaneSpec,
        session: SparkSession,
        *,
        pickled: bytes | None,
        computations: str,
    ) -> None:
        super().__init__(
            server,
            count,
            spec,
            partial(SparkJob, session, pickled, computations),
            body_name="task",
            late=": has Spark a free slot for each lane?",
            started_s=STARTED_S,
            killed_s=0.0,
        )


class SparkJob:
    """The body of one lane, in a classic session or in one of Spark Connect."""

    def __init__(
        self, session: SparkSession, pickled: bytes | None, computations: str, spec: LaneSpec
    ) -> None:
        """``computations`` names what the lane works for, on Spark's pages."""
        self.began_s = time.monotonic()
        self._session = session
        self._lane = spec.lane
        self._tag = f"headrace-lane-{secrets.token_hex(8)}"
        self._title = f"headrace lane {spec.lane} of {spec.replica}: {computations}"
        self._given = spec.to_line(), pickled
        self._how = "its worker is gone: it crashed, was killed, or ran out of memory"
        self._is_killed = False
        self._over = threading.Event()
        self._thread(self._run, "job")

    def has_ended(self) -> bool:
        return self._over.is_set()

    def kill(self) -> None:
        if not self._is_killed and not self._over.is_set():
            self._is_killed = True
            self._thread(self._cancel, "cancel")

    def reaped(self, timeout_s: float) -> bool:
        return self._over.wait(timeout_s)

    def how(self) -> str:
        return self._how

    def _run(self) -> None:
        try:
            with _named(self._session, self._tag, self._title):
                (why,) = self._run_task()
            self._how = why or "it has ended"
        except Exception as why:
            self._how = self._why(why)
            if self._is_killed and _CANCELLED not in self._how:
                log.info("lane %d: Spark says: %s", self._lane, self._how)
        finally:
            self._over.set()

    def _run_task(self) -> list[str]:
        """What the task returns. A DataFrame is avoided where that is possible: its planner takes
        longer to load than all of Headrace."""
        if is_connect(self._session):
            task = partial(arrow_lane_task, *self._given)
            made: Any = self._session.range(0, 1, 1, 1).mapInArrow(task, REPORT)
            return [row.why for row in made.collect()]
        context = self._session.sparkContext
        # Not by `collect`, which names the stage after the file and line that called it.
        return context.runJob(context.parallelize([0], 1), partial(lane_task, *self._given), [0])

    def _why(self, error: Exception) -> str:
        text = first_line(error)
        is_cut = isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"
        gone = java_ended() if is_cut and not is_connect(self._session) else None
        return gone or text.partition(_RECENT)[2] or text

    def _cancel(self) -> None:
        """Cancel until the job is over: a job that is about to begin cannot be cancelled yet."""
        try:
            while not self._over.is_set():
                _cancel(self._session, self._tag)
                self._over.wait(CANCEL_AGAIN_S)
        except Exception as why:
            log.debug("lane %d: its job cannot be cancelled: %s", self._lane, first_line(why))

    def _thread(self, target: Callable[[], None], what: str) -> None:
        name = f"headrace-spark-{what}-{self._lane}"
        threading.Thread(target=target, name=name, daemon=True).start()


def is_connect(session: SparkSession) -> bool:
    return not hasattr(session, "_jsparkSession")


@contextmanager
def _named(session: SparkSession, tag: str, title: str) -> Iterator[None]:
    """Jobs that this thread submits can be cancelled by the tag. In classic mode they and their
    stages bear the title on Spark's pages. A tag of the session is not found in classic mode, and
    Connect has no context to tag."""
    if is_connect(session):
        session.addTag(tag)
    else:
        context = session.sparkContext
        context.addJobTag(tag)
        context.setInterruptOnCancel(True)
        context.setLocalProperty("spark.job.description", title)
        context.setLocalProperty("callSite.short", title)
    yield


def _cancel(session: SparkSession, tag: str) -> None:
    if is_connect(session):
        session.interruptTag(tag)
    else:
        session.sparkContext.cancelJobsWithTag(tag)
