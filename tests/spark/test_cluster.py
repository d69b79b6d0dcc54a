"""Lanes on a real cluster of Spark, a master and two workers: its parts die or stand still in the
middle of slices, and each order still has one bill."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.hub.hub import Hub
from headrace.spark.lanes.reach import ON_THIS_MACHINE
from headrace.testing.children import Child, until
from tests.engines import handlers_trouble
from tests.engines.handlers_trouble import noted
from tests.engines.trouble import FAST, REFERENCE, all_but, bills, fill, in_order, times
from tests.harness.spark_cluster import (
    EXECUTOR_MEMORY,
    SparkCluster,
    is_gone,
    parent,
    spark_cluster,
)
from tests.spark import cluster_driver

LANES = 3
CORES = 2
"""Of each of two workers: lanes are on both, and one of these alone has too few slots for all."""
CONF = {
    ON_THIS_MACHINE: "true",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": EXECUTOR_MEMORY,
    # So that an executor that says nothing is soon taken for lost.
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
}
SESSION_S = 3.0
WORK_S = 0.005
LAG = 100
"""So many orders wait in each shard, all the time."""
HUNG = 0
"""The shard whose sixth record is in hand when things go wrong."""
AGAIN_S_MAX = 120.0
"""Until a new executor is there, on a machine that has other things to do."""

pytestmark = pytest.mark.slow

Say = Callable[[str, object], None]
"""Notes a figure."""


class Driver:
    """What the tests say to the process that drives the cluster."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def __call__(self, call: str, **given: Any) -> Any:
        self._child.tell(json.dumps([call, given]))
        return json.loads(self._child.line())

    def start(self, hub: Hub, effects: Path, lanes: int = LANES) -> Any:
        return self(
            "start",
            hub=str(hub.describe()["directory"]),
            reference=REFERENCE,
            policy={},
            lanes=lanes,
            options={"effects": str(effects), "work_s": WORK_S},
            **FAST,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster"), cores=CORES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driving(cluster: SparkCluster) -> Iterator[Driver]:
    """One session for all tests: it takes ten seconds to start, and its executors as many."""
    told = {"master": cluster.url, "lanes": LANES, "conf": CONF}
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "PYTHONPATH") if name in os.environ}
    with Child([cluster_driver.__file__, json.dumps(told)], extra=kept) as child:
        assert json.loads(child.line()) == "ready"
        driver = Driver(child)
        until(lambda: driver("slots") == 2 * CORES, "both executors have come", AGAIN_S_MAX)
        yield driver


@pytest.fixture
def driver(driving: Driver) -> Iterator[Driver]:
    yield driving
    driving("stop")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", **handlers_trouble.MADE)  # type: ignore[arg-type]
        hub.create_stream("bills", shards=1, codec="json")
        yield hub


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    """For whoever runs this with ``--junit-xml``."""
    return lambda what, figure: request.node.user_properties.append((what, str(figure)))


@contextmanager
def load(hub: Hub) -> Iterator[None]:
    """Orders come as fast as they are handled."""
    orders, ended = hub.stream("orders"), threading.Event()

    def produce() -> None:
        while not ended.wait(0.02):
            for shard, position in hub.groups.positions(hub.groups.load("serve")).items():
                if position.lag < LAG:
                    orders.append_many([(None, None)] * LAG, shard=shard.index)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def lanes(effects: Path, since_s: float = 0.0) -> set[int]:
    """The processes that handled something since then."""
    return {pid for pid, _, _, at_s in noted(effects) if at_s >= since_s}


def check_exactly_once(hub: Hub) -> None:
    assert Counter(bills(hub)) == all_but(hub)
    assert in_order(hub)


class AboutToBeHurt:
    """All lanes are at work, and one of them, on ``executor``, has a record in hand that will not
    end in time."""

    def __init__(self, cluster: SparkCluster, driver: Driver, hub: Hub, effects: Path) -> None:
        self._driver, self._hub, self._effects = driver, hub, effects
        fill(hub, 400, {HUNG: {"do": "hang", "once": True}})
        assert driver.start(hub, effects) == "started"
        until(lambda: times(effects, HUNG, 5), "a record is in hand", 30)
        ((hung, _),) = times(effects, HUNG, 5)
        until(lambda: len(lanes(effects)) == LANES, "all lanes work", 30)
        above = {pid: cluster.executor_above(pid) for pid in lanes(effects)}
        executor = above[hung]
        assert executor is not None
        self.executor = executor
        self.lost = {pid for pid, one in above.items() if one == executor}
        self.others = set(above) - self.lost
        assert self.others, "lanes are on both workers"
        self.since_s = time.monotonic()

    def wait_until_given_up(self) -> None:
        until(lambda: all(map(is_gone, self.lost)), "its lanes are gone", AGAIN_S_MAX)

    def wait_for_new_lanes(self) -> None:
        def all_work() -> bool:
            found = lanes(self._effects, self.since_s) - self.lost
            return len([pid for pid in found if not is_gone(pid)]) == LANES

        until(all_work, "all lanes work again", AGAIN_S_MAX)

    def check(self, say: Say) -> None:
        """Nothing lost, nothing twice, and nobody else noticed."""
        assert self._driver("caught_up", within_s=60)
        check_exactly_once(self._hub)
        (_, (again, again_s)) = times(self._effects, HUNG, 5)
        assert again not in self.lost
        new = lanes(self._effects, self.since_s) - self.lost - self.others
        say("the record in hand is handled again after s", round(again_s - self.since_s, 2))
        say("new lanes work after s", sorted(round(self._first_s(pid), 1) for pid in new))
        say("longest gap of other lanes s", round(gap_s := self._gap_s(), 2))
        assert len(new) == len(self.lost)
        assert gap_s < 1

    def _first_s(self, lane: int) -> float:
        return min(at_s for pid, _, _, at_s in noted(self._effects) if pid == lane) - self.since_s

    def _gap_s(self) -> float:
        longest = 0.0
        for lane in self.others:
            at = [t for pid, _, _, t in noted(self._effects) if pid == lane and t >= self.since_s]
            longest = max([longest, *(b - a for a, b in pairwise(at))])
        return longest


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # its worker has killed it meanwhile
            os.kill(pid, signal.SIGCONT)


def test_lanes_run_on_the_executors_of_both_workers(
    cluster: SparkCluster, driver: Driver, hub: Hub, effects: Path
) -> None:
    fill(hub, 100)
    assert driver.start(hub, effects) == "started"
    assert driver("caught_up", within_s=60)
    above = {pid: cluster.executor_above(pid) for pid in lanes(effects)}
    assert len(above) == LANES
    assert set(above.values()) == set(cluster.executors())
    assert len({worker.pid for worker in cluster.executors().values()}) == 2
    for pid, executor in above.items():
        daemon = parent(pid)
        assert daemon is not None
        assert parent(daemon) == executor, "it is forked by the executor's Python daemon"
    check_exactly_once(hub)


def test_an_executor_killed_in_a_slice_loses_and_doubles_nothing(
    cluster: SparkCluster, driver: Driver, hub: Hub, effects: Path, say: Say
) -> None:
    hurt = AboutToBeHurt(cluster, driver, hub, effects)
    with load(hub):
        os.kill(hurt.executor, signal.SIGKILL)
        hurt.wait_until_given_up()
        hurt.wait_for_new_lanes()
    hurt.check(say)


def test_an_executor_that_stands_still_and_goes_on_later_loses_and_doubles_nothing(
    cluster: SparkCluster, driver: Driver, hub: Hub, effects: Path, say: Say
) -> None:
    hurt = AboutToBeHurt(cluster, driver, hub, effects)
    with load(hub):
        with standing_still(hurt.executor):
            hurt.wait_until_given_up()
            assert time.monotonic() - hurt.since_s > SESSION_S
        hurt.wait_for_new_lanes()
    hurt.check(say)


def test_a_worker_killed_with_its_executor_in_a_slice_loses_and_doubles_nothing(
    cluster: SparkCluster, driver: Driver, hub: Hub, effects: Path, say: Say
) -> None:
    hurt = AboutToBeHurt(cluster, driver, hub, effects)
    with load(hub):
        cluster.executors()[hurt.executor].kill()
        os.kill(hurt.executor, signal.SIGKILL)
        hurt.wait_until_given_up()
        cluster.add_worker()
        hurt.wait_for_new_lanes()
    hurt.check(say)


def test_more_lanes_than_the_cluster_has_slots_are_refused(
    driver: Driver, hub: Hub, effects: Path
) -> None:
    refused = driver.start(hub, effects, lanes=2 * CORES + 1)["refused"]
    assert re.fullmatch(
        r"spark://127\.0\.0\.1:\d+ runs 4 tasks at once, too few for 5 lanes, which hold one each: "
        r"give it more cores, or take fewer lanes, as --lanes 4",
        refused,
    )
    assert noted(effects) == []
