"""Lanes on Spark, hurt in every way a handler can: only the lane is lost."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.core.errors import BadTopology
from headrace.engines.remote_lane import is_lane
from headrace.hub.hub import Hub
from headrace.process import failpoints
from headrace.testing.children import until
from tests.engines import handlers_trouble
from tests.engines.handlers_trouble import noted, topology
from tests.engines.trouble import (
    DEADLY,
    FAST,
    REFERENCE,
    Start,
    all_but,
    bills,
    children,
    fill,
    in_order,
    is_gone,
    is_settled,
    lanes_on_spark,
    pause_s,
    read,
    starting,
    threads,
    times,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

OURS = (
    "headrace-lane-server", "headrace-lane-connection", "headrace-work", "headrace-replica",
    "headrace-spark-job", "headrace-spark-cancel",
)  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, spark: SparkSession) -> Iterator[Hub]:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", **handlers_trouble.MADE)  # type: ignore[arg-type]
        yield hub
    until(lambda: not lanes_on_spark(os.getpid()), "no lane is left", 10, _own_lanes)
    until(lambda: not _own_threads(), "no thread is left", 10, _own_threads)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def start(hub: Hub, effects: Path, spark: SparkSession) -> Iterator[Start]:
    with starting(hub, effects, spark=spark) as start:
        yield start


def _own_lanes() -> set[int]:
    return lanes_on_spark(os.getpid())


def _java(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    pid: int = gateway.proc.pid
    return pid


def _own_threads() -> set[str]:
    return {name for name in threads() if name.startswith(OURS)}


def check_once(hub: Hub, *missing: tuple[int, int]) -> None:
    """Each order but these has its bill, once and in order, and every checkpoint is at the end."""
    assert Counter(bills(hub)) == all_but(hub, *missing)
    assert in_order(hub)
    assert is_settled(hub)


# Deaths


def test_a_dead_worker_ends_only_its_own_lane(hub: Hub, start: Start, effects: Path) -> None:
    deaths = {0: {"do": "exit"}, 1: {"do": "kill"}, 2: {"do": "segfault"}}
    fill(hub, 250, {shard: {**how, "once": True} for shard, how in deaths.items()})
    running = start(lanes=4, work_s=0.01)
    assert running.wait("40s", until_caught_up=True)
    check_once(hub)
    killed = [times(effects, shard, 5) for shard in deaths]
    assert all(len({pid for pid, _ in attempts}) == 2 for attempts in killed)
    assert pause_s(effects, {3}, noted(effects)[0][3]) < 1, "the other shard never notices"
    assert running.counters["serve"].lanes_lost == 3
    until(lambda: len(_own_lanes()) == 4, "each is replaced", 10, _own_lanes)


def test_a_record_that_kills_its_worker_is_given_up_and_other_shards_go_on(
    hub: Hub, start: Start, effects: Path
) -> None:
    fill(hub, 300, {0: {"do": "kill"}})
    running = start(lanes=4, policy=DEADLY, work_s=0.01)
    assert running.wait("40s", until_caught_up=True)
    killed = times(effects, 0, 5)
    assert len({pid for pid, _ in killed}) == len(killed) == 3, "so many deaths, not one more"
    (letter,) = hub.stream("serve.dead-letters").read(0)
    assert "killed its process 3 times" in str(dict(letter.headers))
    check_once(hub, (0, 5))
    assert pause_s(effects, {1, 2, 3}, killed[0][1]) < 1
    assert running.counters["serve"].lanes_lost == 3


def test_processes_of_a_handler_work_and_end_with_its_lane(
    hub: Hub, start: Start, effects: Path
) -> None:
    fill(hub, 10, {0: {"do": "spawn and hang", "once": True}, 1: {"do": "run a program"}})
    running = start(policy={"timeout": "500ms", "retries": 3, "then": "skip"})
    until(lambda: times(effects, 0, 5), "it hangs", 20)
    ((pid, _),) = times(effects, 0, 5)
    until(lambda: children(pid) or is_gone(pid), "it has a child", 5)
    (sleeper,) = children(pid)
    until(lambda: is_gone(sleeper), "it is gone too", 5)
    assert running.wait("20s", until_caught_up=True)
    check_once(hub)
    assert running.counters["serve"].failures == 1, "the one that hung"


def test_a_fork_of_a_handler_is_harmless(
    hub: Hub,
    start: Start,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(hub, 100, {0: {"do": "fork"}})
    running = start(work_s=0.005)
    assert running.wait("20s", until_caught_up=True)
    before = _own_lanes()
    fill(hub, 20)
    assert running.wait("20s", until_caught_up=True)
    check_once(hub)
    assert running.counters["serve"].lanes_lost == 0
    assert running.stop()
    assert "lane" not in caplog.text
    until(lambda: all(is_gone(p) or p not in _own_lanes() for p in before), "they have ended")
    assert "Traceback" not in capfd.readouterr().err


# Handlers that hang


@pytest.mark.parametrize("how", ["hang", "hold"])
def test_a_handler_that_hangs_past_the_timeout_is_killed_and_its_record_tried_again(
    hub: Hub, start: Start, effects: Path, how: str
) -> None:
    fill(hub, 400, {0: {"do": how, "once": True}})
    timeout_s = 1.5
    running = start(lanes=3, policy={"timeout": timeout_s, "retries": 3}, work_s=0.005)
    until(lambda: times(effects, 0, 5), "it hangs", 20)
    ((pid, began_s),) = times(effects, 0, 5)
    others = _own_lanes() - {pid}
    until(lambda: is_gone(pid), "it is killed", 10)
    took_s = time.monotonic() - began_s
    assert timeout_s <= took_s <= 2 * timeout_s + 1
    assert others <= _own_lanes(), "no other lane is hurt"
    assert running.wait("20s", until_caught_up=True)
    assert times(effects, 0, 5)[1][0] != pid
    assert pause_s(effects, {1, 2, 3}, began_s) < 1
    check_once(hub)
    assert running.counters["serve"].lanes_lost == 1


def test_one_record_that_blocks_holds_up_one_lane_of_a_pool(
    tmp_path: Path, effects: Path, spark: SparkSession
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", shards=8, codec="json")
        fill(hub, 50, {0: {"do": "hang", "once": True}})
        told = {"effects": str(effects), "work_s": 0.001}
        given = {**FAST, "lanes": 2, "spark": spark, "reference": REFERENCE, "options": told}
        with headrace.start(topology, hub, **given) as running:
            blocked = {(0, offset) for offset in range(51)}
            until(lambda: len(bills(hub)) >= 7 * 50, "seven shards are drained", 30)
            assert set(bills(hub)) >= set(all_but(hub, *blocked))
            assert len(times(effects, 0, 5)) == 1, "it blocks still"
            assert len({pid for pid, shard, _, _ in noted(effects) if shard}) <= 2
            assert not running.stop("100ms"), "the one that blocks is given up"
        with headrace.start(topology, hub, **given) as running:
            assert running.wait("20s", until_caught_up=True)
        check_once(hub)


def test_a_shard_that_blocks_does_not_make_others_late(
    hub: Hub, start: Start, effects: Path
) -> None:
    stream = hub.stream("orders")
    stream.append({"do": "hang", "once": True}, shard=0)
    running = start(lanes=4)
    until(lambda: times(effects, 0, 0), "it blocks", 20)
    late_s = 0.0
    for _ in range(30):
        asked_s = time.monotonic()
        offsets = [(shard, stream.append(None, shard=shard).offset) for shard in (1, 2, 3)]
        until(lambda o=offsets: all(times(effects, *one) for one in o), "handled", 10)  # type: ignore[misc]
        late_s = max([late_s, *(times(effects, *one)[0][1] - asked_s for one in offsets)])
    assert late_s < 1
    assert len(times(effects, 0, 0)) == 1
    assert not running.stop("100ms")


def test_a_stopped_worker_does_not_stop_its_replica(hub: Hub, start: Start, effects: Path) -> None:
    fill(hub, 100)
    running = start(work_s=0.005, policy={"timeout": "1s", "retries": 3})
    until(lambda: len(noted(effects)) > 50, "it is at work", 20)
    stopped = noted(effects)[-1][0]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: is_gone(stopped), "it is given up", 10)
    assert running.wait("30s", until_caught_up=True)
    check_once(hub)


# Java stands still


def test_lanes_go_on_while_java_stands_still_for_longer_than_a_session(
    hub: Hub, start: Start, effects: Path, spark: SparkSession
) -> None:
    session_s = 1.5
    fill(hub, 600)
    running = start(lanes=3, work_s=0.005, session=session_s)
    until(lambda: len(noted(effects)) > 20, "it is at work", 20)
    since_s = time.monotonic()
    os.kill(_java(spark), signal.SIGSTOP)
    try:
        victim, shard, *_ = noted(effects)[-1]
        os.kill(victim, signal.SIGKILL)
        until(lambda: time.monotonic() - since_s > 2 * session_s, "so long", 10)
        assert len(_own_lanes()) == 2, "Java cannot start another"
    finally:
        os.kill(_java(spark), signal.SIGCONT)
    went_on_s = time.monotonic()
    until(lambda: len(_own_lanes()) == 3, "the lost lane is replaced", 20, _own_lanes)
    assert running.wait("40s", until_caught_up=True)
    assert any(at_s > went_on_s for *_, at_s in noted(effects)), "there was work all the time"
    assert pause_s(effects, {0, 1, 2, 3} - {shard}, since_s) < 1
    assert running.counters["serve"].lanes_lost == 1
    check_once(hub)


# How a topology gets there


BY_HAND = """
import os
from headrace import Topology, computation

def priced(value):
    return {"price": 2 * value["amount"], "by": os.getpid()}

@computation(inputs="wishes", outputs="prices")
def price(record, out):
    out.append("prices", priced(record.value), key="k")

made = {"shards": 1, "codec": "json"}
topology = Topology(price, streams={"wishes": made, "prices": made})
"""


def test_a_topology_typed_at_a_prompt_runs_on_spark(hub: Hub, spark: SparkSession) -> None:
    typed: dict[str, Any] = {"__name__": "__main__"}
    exec(BY_HAND, typed)
    with headrace.start(typed["topology"], hub, spark=spark, lanes=1, **FAST) as running:
        hub.stream("wishes").append({"amount": 21}, key="ann")
        assert running.wait("20s", until_caught_up=True)
    (record,) = hub.stream("prices").read(0)
    assert record.value["price"] == 42
    assert record.value["by"] != os.getpid()


def test_a_topology_that_cannot_be_pickled_is_one_line(hub: Hub, spark: SparkSession) -> None:
    typed: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock()}
    exec(BY_HAND.replace("2 * value", "lock and 2 * value"), typed)
    with pytest.raises(BadTopology, match=r"sent to Spark: TypeError: .*lock") as refused:
        headrace.start(typed["topology"], hub, spark=spark, lanes=1)
    assert "\n" not in str(refused.value)
    assert "reference=" in str(refused.value)


# What is left behind, and what others can see


def _workers(spark: SparkSession, count: int) -> dict[int, dict[str, Any]]:
    """What workers of Spark that are no lanes now look like from inside."""

    def look_around(nothing: Iterable[int]) -> Iterable[dict[str, Any]]:
        list(nothing)
        log = logging.getLogger("headrace")
        files = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        yield {
            "pid": os.getpid(),
            "group": os.getpgrp(),
            "path": list(sys.path),
            "directory": os.getcwd(),
            "environment": dict(os.environ),
            "handlers": list(map(repr, log.handlers)),
            "level": log.level,
            "failpoints": repr(failpoints.armed_now()),
            "is lane": is_lane(),
            "signals": [str(signal.getsignal(number)) for number in range(1, 32)],
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "files": sorted(os.readlink(file) for file in files if os.path.exists(file)),
        }

    found = spark.sparkContext.parallelize(range(count), count).mapPartitions(look_around)
    return {told["pid"]: told for told in found.collect()}


def test_a_worker_that_was_a_lane_is_left_unchanged(
    hub: Hub, start: Start, effects: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    _workers(spark, 4)
    before = _workers(spark, 4)
    monkeypatch.setenv("HEADRACE_FAIL", "trim.between:raise")
    served = []
    for _ in range(2):
        known = len(noted(effects))
        fill(hub, 100)
        running = start(lanes=3)
        assert running.wait("20s", until_caught_up=True)
        assert running.stop()
        served.append({pid for pid, *_ in noted(effects)[known:]})
    check_once(hub)
    after = _workers(spark, 4)
    looked_at = served[0] & served[1] & set(before) & set(after)
    assert looked_at, "a worker serves twice"
    for pid in looked_at:
        assert after[pid] == before[pid]


def test_jobs_and_stages_of_spark_say_which_lane_they_are(
    hub: Hub, start: Start, spark: SparkSession
) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getActiveStageIds())
    start(lanes=2, name="a")

    def names() -> list[str]:
        stages = map(tracker.getStageInfo, set(tracker.getActiveStageIds()) - before)
        return sorted(stage.name for stage in stages if stage is not None)

    expected = ["headrace lane 0 of a: serve", "headrace lane 1 of a: serve"]
    until(lambda: names() == expected, "each lane has its stage", 10, names)


def test_no_other_process_sees_the_secret_of_a_run(
    hub: Hub, start: Start, effects: Path, spark: SparkSession
) -> None:
    fill(hub, 20, {0: {"do": "exit", "once": True}})
    running = start()
    assert running.wait("20s", until_caught_up=True)
    secret = running.replica._lanes._server.secret  # type: ignore[attr-defined]
    until(lambda: len(_own_lanes()) == 2, "the one that died is replaced", 10)
    java = _java(spark)
    for pid in (*_own_lanes(), java, os.getpid()):
        for what in ("cmdline", "environ"):
            shown = read(f"/proc/{pid}/{what}")
            assert shown, "it can be looked at"
            for form in (secret, secret.hex().encode()):
                assert form not in shown


def test_a_run_works_after_idle_workers_have_died(hub: Hub, start: Start, effects: Path) -> None:
    fill(hub, 10)
    first = start()
    assert first.wait("30s", until_caught_up=True)
    assert first.stop()
    dead = {pid for pid, _, _, _ in noted(effects)}
    for pid in dead:
        os.kill(pid, signal.SIGKILL)
    fill(hub, 10)
    assert start().wait("30s", until_caught_up=True)
    check_once(hub)
    assert not dead & {pid for pid, _, offset, _ in noted(effects) if offset >= 10}
