"""Lanes through Spark Connect: the same topologies, the same promises, without a Java in the hands
of the replica."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.hub.hub import Hub
from headrace.testing.children import Child, until
from tests.engines import handlers_trouble
from tests.engines.trouble import (
    FAST,
    REFERENCE,
    all_but,
    bills,
    descendants,
    fill,
    in_order,
    is_gone,
    times,
)
from tests.spark import cluster_driver

LANES = 2
REMOTE = "local[5]"

OURS = re.compile(
    r"starting Spark on local\[4\]$|Spark is ready after \d+\.\d s$|running serve on hub as \S+$|"
    r"[-\d]+ [:,\d]+ INFO group=serve "
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    """One session for all tests, in a process of its own: with another it would get in the way."""
    told = {"remote": REMOTE, "lanes": LANES, "conf": {"spark.sql.shuffle.partitions": "3"}}
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "PYTHONPATH") if name in os.environ}
    with Child([cluster_driver.__file__, json.dumps(told)], extra=kept) as child:
        assert json.loads(child.line()) == "ready"
        yield child


class Driver:
    def __init__(self, child: Child) -> None:
        self.pid = child.pid
        self._child = child

    def __call__(self, call: str, **given: Any) -> Any:
        self._child.tell(json.dumps([call, given]))
        return json.loads(self._child.line())

    def start(self, hub: Hub, effects: Path, **more: Any) -> Any:
        given = {
            "hub": str(hub.describe()["directory"]),
            "reference": REFERENCE,
            "policy": {},
            "lanes": LANES,
            "options": {"effects": str(effects), "work_s": 0.002},
        }
        return self("start", **{**FAST, **given, **more})


@pytest.fixture
def driver(child: Child) -> Iterator[Driver]:
    driver = Driver(child)
    yield driver
    driver("stop")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", **handlers_trouble.MADE)  # type: ignore[arg-type]
        hub.create_stream("bills", shards=1, codec="json")
        yield hub


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def test_a_topology_runs_exactly_once(driver: Driver, hub: Hub, effects: Path) -> None:
    fill(hub, 200)
    assert driver.start(hub, effects) == "started"
    assert driver("caught_up", within_s=60)
    assert Counter(bills(hub)) == all_but(hub)
    assert in_order(hub)
    assert driver("counted") == {"serve": 0}
    assert driver("stop") is True


def test_a_handler_that_hangs_is_killed_and_its_lane_replaced(
    driver: Driver, hub: Hub, effects: Path
) -> None:
    fill(hub, 20, {0: {"do": "hang", "once": True}})
    driver.start(hub, effects, policy={"timeout": "1s", "retries": 3})
    until(lambda: times(effects, 0, 5), "it hangs", 30)
    ((pid, _),) = times(effects, 0, 5)
    until(lambda: is_gone(pid), "it is killed", 10)
    assert driver("caught_up", within_s=60)
    (_, (again, _)) = times(effects, 0, 5)
    assert again != pid
    assert driver("counted") == {"serve": 1}
    assert Counter(bills(hub)) == all_but(hub)
    until(lambda: driver("open_jobs") == LANES, "Spark was told that its job is over", 20)


def test_sigterm_drains(driver: Driver, hub: Hub, effects: Path) -> None:
    fill(hub, 2_000)
    driver.start(hub, effects)
    until(lambda: len(handlers_trouble.noted(effects)) > 50, "it works", 30)
    os.kill(driver.pid, signal.SIGTERM)
    assert driver("ended", within_s=30) is True
    assert driver("stop") is True
    found = Counter(bills(hub))
    assert 0 < len(found) < 8_000
    assert set(found.values()) == {1}
    handled = Counter((shard, offset) for _, shard, offset, _ in handlers_trouble.noted(effects))
    assert handled == found, "what was begun was stored, and nothing else was begun"


def test_its_server_listens_on_this_machine_only(driver: Driver) -> None:
    assert listening(descendants(driver.pid)) == {"127.0.0.1"}


def test_a_connect_run_shows_no_line_of_spark_or_python(hub: Hub, tmp_path: Path) -> None:
    fill(hub, 5)
    ended = _run(
        tmp_path, "--remote", "local[4]", "--lanes", "2", "--until-caught-up",
        "--option", f"effects={tmp_path / 'effects'}", "--conf", "spark.executor.cores=1",
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert [line for line in ended.stderr.splitlines() if not OURS.match(line)] == []
    assert Counter(bills(hub)) == all_but(hub)


def test_a_missing_connect_server_is_one_line(hub: Hub, tmp_path: Path) -> None:
    began_s = time.monotonic()
    ended = _run(tmp_path, "--json", "--remote", "sc://127.0.0.1:9")
    assert time.monotonic() - began_s < 20
    assert ended.returncode == 2
    assert ended.stderr == (
        "headrace: sc://127.0.0.1:9 does not answer: Connection refused; is it started, and on "
        "this port?\n"
    )


def listening(pids: list[int]) -> set[str]:
    """The addresses at which these processes listen, of IPv4 and as IPv6 writes it."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                last = bytes.fromhex(local.partition(":")[0][-8:])[::-1]
                found.add(".".join(map(str, last)))
    return found


def _run(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "--hub", "hub", "run", REFERENCE, *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
