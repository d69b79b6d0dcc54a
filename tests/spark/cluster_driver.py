"""A replica on a cluster, as a process of its own: a process has one session of Spark. It is told
what to do in lines of JSON, and answers each with one."""

from __future__ import annotations

import json
import logging
import sys
import threading
from contextlib import ExitStack
from typing import Any

import headrace
from headrace.core.computations.settings import RunSettings
from headrace.core.errors import HeadraceError
from headrace.hub.run import Running
from headrace.lanes.loading import load_topology
from headrace.spark import SparkSettings, spark_session


class Driver:
    def __init__(self, session: Any) -> None:
        self._session = session
        self._running: Running | None = None

    def start(self, *, hub: str, reference: str, policy: dict[str, Any], **given: Any) -> Any:
        loaded = load_topology(reference)
        self._running = headrace.start(
            loaded.topology,
            hub,
            spark=self._session,
            reference=loaded.reference,
            settings=RunSettings(policies={"default": {"delay": "50ms", **policy}}),
            **given,
        )
        return "started"

    def caught_up(self, within_s: float) -> Any:
        assert self._running is not None
        return self._running.wait(within_s, until_caught_up=True)

    def counted(self) -> Any:
        assert self._running is not None
        return {name: counters.lanes_lost for name, counters in self._running.counters.items()}

    def slots(self) -> Any:
        """How many tasks the executors that have come can run at once."""
        scala = self._session.sparkContext._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))

    def ended(self, within_s: float) -> Any:
        """Whether it does so by itself."""
        assert self._running is not None
        return self._running.wait(within_s)

    def open_jobs(self) -> Any:
        """How many lanes this process waits for."""
        return len([one for one in threading.enumerate() if "headrace-spark-job" in one.name])

    def stop(self) -> Any:
        running, self._running = self._running, None
        return None if running is None else running.stop("10s")


def main() -> None:
    told = json.loads(sys.argv[1])
    logging.basicConfig(level="WARNING", format="%(asctime)s %(message)s")
    with ExitStack() as stack:
        settings = SparkSettings(master=told.get("master"), remote=told.get("remote"),
                                 conf=told["conf"])  # fmt: skip
        driver = Driver(stack.enter_context(spark_session(told["lanes"], settings)))
        stack.callback(driver.stop)
        _say("ready")
        for line in sys.stdin:
            call, given = json.loads(line)
            try:
                _say(getattr(driver, call)(**given))
            except HeadraceError as why:
                _say({"refused": str(why)})


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
