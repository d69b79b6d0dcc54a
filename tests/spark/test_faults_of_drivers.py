"""Replicas on Spark, each with a Java of its own, that are killed, stopped, and told to end."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.testing.children import until
from tests.engines import handlers_trouble
from tests.engines.handlers_trouble import noted, topology
from tests.engines.trouble import (
    REFERENCE,
    all_but,
    bills,
    children,
    command,
    descendants,
    fill,
    in_order,
    is_gone,
    is_settled,
    lanes_on_spark,
    members,
    pause_s,
    read,
    times,
    workers,
)
from tests.spark import replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

WAIT_S = 1.0
SESSION_S = 3.0
PASSWORD = "open-sesame-4711"
SETTINGS = f"""
[run]
session = "{SESSION_S}s"
heartbeat = "200ms"
max_wait_handler = "{WAIT_S}s"
[policies.default]
delay = "50ms"
[spark.conf]
"spark.hadoop.some.password" = "{PASSWORD}"
"""
WORK_S = 0.005
STARTED_S = 120.0
"""So long a Java may take to start, on a machine that others keep busy."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "headrace.toml").write_text(SETTINGS)
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", **handlers_trouble.MADE)  # type: ignore[arg-type]
        yield hub


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def _run(effects: Path, *more: str) -> list[str]:
    """What is said to ``headrace``."""
    options = ["--option", f"effects={effects}", "--option", f"work_s={WORK_S}"]
    return ["--hub", str(effects.with_name("hub")), "run", REFERENCE, *options, *more]


@contextmanager
def running_apart(effects: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A replica of its own process; whatever happens, nothing of it is left."""
    run = command(*_run(effects, *more), cwd=effects.parent)
    try:
        yield run
    finally:
        theirs = descendants(run.pid)
        for pid in (run.pid, *theirs):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        run.communicate()


def until_begun(run: subprocess.Popen[str], has_begun: Callable[[], object]) -> None:
    """Java takes its time; what did not begin says why."""
    until(lambda: run.poll() is not None or has_begun(), "it is at work", STARTED_S)
    assert run.poll() is None, run.communicate()[1]


def running_here(hub: Hub, effects: Path, spark: SparkSession) -> Running:
    told = {"effects": str(effects), "work_s": WORK_S}
    return headrace.start(
        topology, hub, name="here", spark=spark, lanes=4, reference=REFERENCE, options=told,
        settings=effects.with_name("headrace.toml"),
    )  # fmt: skip


def check_once(hub: Hub) -> None:
    """Each order has its bill, once and in order, and every checkpoint is at the end."""
    assert Counter(bills(hub)) == all_but(hub)
    assert in_order(hub)
    assert is_settled(hub)


def java_of(run: subprocess.Popen[str]) -> int:
    (java,) = (
        pid for pid in descendants(run.pid) if b"SparkSubmit" in read(f"/proc/{pid}/cmdline")
    )
    return java


def listening(pids: list[int]) -> dict[int, Any]:
    """The ports that these processes listen at, and the addresses."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
            except OSError:
                continue
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                found[int(port, 16)] = _address(bytes.fromhex(address))
    return found


def _address(words: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As the kernel writes it: words of four bytes, each backwards."""
    straight = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(straight) == 4:
        return ipaddress.IPv4Address(straight)
    address = ipaddress.IPv6Address(straight)
    return address.ipv4_mapped or address


def check_ports(run: subprocess.Popen[str]) -> dict[int, Any]:
    """No other machine can call any of its processes; the ports they listen at."""
    ports = listening([run.pid, *descendants(run.pid)])
    assert ports, "Python reaches Java by one"
    assert all(address.is_loopback for address in ports.values()), ports
    return ports


def shown(pids: list[int]) -> list[bytes]:
    """What other users, and what programs they start, can see of processes."""
    return [read(f"/proc/{pid}/{what}") for pid in pids for what in ("cmdline", "environ")]


def test_another_replica_goes_on_when_one_loses_a_lane_and_then_its_process(
    hub: Hub, effects: Path, spark: SparkSession
) -> None:
    hung = 3
    fill(hub, 700, {hung: {"do": "hang", "once": True}})
    with running_apart(effects, "--name", "a") as a:
        until_begun(a, lambda: times(effects, hung, 5))
        until(lambda: len({s for _, s, _, _ in noted(effects)}) == 4, "all lanes work", 20)
        lanes = lanes_on_spark(a.pid)
        ((pid, _),) = times(effects, hung, 5)
        assert pid in lanes

        since_s = time.monotonic()
        with running_here(hub, effects, spark) as here:
            joined_s = time.monotonic()
            until(lambda: is_gone(pid), "the lane is killed", 20)
            took_s = time.monotonic() - joined_s
            assert took_s <= WAIT_S + 3
            until(lambda: len(times(effects, hung, 5)) == 2, "it is handled again", 10)
            assert times(effects, hung, 5)[1][0] in lanes_on_spark(os.getpid()), "by the new owner"
            assert lanes - {pid} <= lanes_on_spark(a.pid), "no other lane was hurt"
            assert here.wait("30s", until_caught_up=True)
            assert pause_s(effects, {0, 1, 2}, since_s) < 1, "the other shards did not pause"
            assert a.poll() is None
            check_once(hub)

            known = len(noted(effects))
            fill(hub, 20)
            assert here.wait("30s", until_caught_up=True)
            (deaf, hung) = {s for p, s, *_ in noted(effects)[known:] if p in lanes_on_spark(a.pid)}
            at = hub.stream("orders").bounds(hung).end + 5
            hangs = {"do": "ignore hang-ups and hang", "once": True}
            fill(hub, 400, {deaf: {"do": "ignore hang-ups"}, hung: hangs})
            until(lambda: times(effects, hung, at), "one hangs, and is deaf", 30)
            until(lambda: times(effects, deaf, at + 20), "another works, and is deaf", 30)
            theirs, workers_there = descendants(a.pid), set(workers(a.pid))
            a.kill()
            killed_s = time.monotonic()
            until(lambda: all(map(is_gone, workers_there)), "no orphan is left", 10)
            assert time.monotonic() - killed_s < 2
            assert here.wait("30s", until_caught_up=True)
            check_once(hub)
            until(lambda: all(map(is_gone, theirs)), "Java is gone", 20)
            assert members(hub) == ["here"]


def test_a_replica_that_stood_still_for_longer_than_a_session_doubles_nothing(
    hub: Hub, effects: Path, spark: SparkSession
) -> None:
    fill(hub, 1000)
    with running_apart(effects, "--name", "a", "--ui") as a:
        until_begun(a, lambda: len(noted(effects)) > 20)
        ports = check_ports(a)
        with running_here(hub, effects, spark) as here:
            until(lambda: members(hub) == ["a", "here"], "they share", 20)
            os.kill(a.pid, signal.SIGSTOP)
            until(lambda: members(hub) == ["here"], "it is given up", 20)
            lanes = lanes_on_spark(a.pid)
            assert here.wait("60s", until_caught_up=True)
            until(lambda: not lanes_on_spark(a.pid), "its lanes have ended", 20)
            check_once(hub)
            os.kill(a.pid, signal.SIGCONT)
            until(lambda: members(hub) == ["a", "here"], "it is back", 20)
            until(lambda: len(lanes_on_spark(a.pid)) == 4, "with new lanes", 30)
            assert not lanes & lanes_on_spark(a.pid)
            fill(hub, 300)
            until(lambda: {p for p, *_ in noted(effects)} & lanes_on_spark(a.pid), "it works", 20)

            os.kill(java_of(a), signal.SIGKILL)
            out, complaints = a.communicate(timeout=30)
            assert a.returncode == 2, complaints
            assert out == ""
            assert "Traceback" not in complaints, complaints
            last = complaints.splitlines()[-1]
            assert last.startswith("headrace: "), complaints
            assert "Java has ended by signal 9" in last, complaints
            pages = re.search(r"its pages: http://[^:]*:([0-9]+)", complaints)
            assert pages is not None
            assert int(pages[1]) in ports
            assert here.wait("60s", until_caught_up=True)
            check_once(hub)


def test_sigterm_drains_a_driver_and_leaves_nothing_behind(hub: Hub, effects: Path) -> None:
    fill(hub, 2_000)
    with running_apart(effects, "--lanes", "3") as run:
        until_begun(run, lambda: len(noted(effects)) > 50)
        check_ports(run)
        theirs = descendants(run.pid)
        seen = shown([run.pid, *theirs])
        assert len(lanes_on_spark(run.pid)) == 3
        for pid in lanes_on_spark(run.pid):
            os.kill(pid, signal.SIGTERM)
        os.killpg(run.pid, signal.SIGTERM)
        out, complaints = run.communicate(timeout=30)
        assert run.returncode == 0, complaints
        assert "Traceback" not in complaints
        assert "has ended" not in complaints
        assert "serve" in out
        until(lambda: all(map(is_gone, theirs)), "Java and all workers are gone", 10)
    done = Counter((shard, offset) for _, shard, offset, _ in noted(effects))
    assert Counter(bills(hub)) == done, "what was begun was ended and committed, once"
    assert not members(hub)
    assert [each for each in seen if b"spark.driver.host" in each or b"PYSPARK" in each]
    assert not [each for each in seen if PASSWORD.encode() in each]


def test_sigterm_ends_a_driver_whose_java_stands_still(hub: Hub, effects: Path) -> None:
    fill(hub, 2_000)
    with running_apart(effects) as run:
        until_begun(run, lambda: len(noted(effects)) > 50)
        (java,) = _java_of(run)
        os.kill(java, signal.SIGSTOP)
        run.send_signal(signal.SIGTERM)
        _, complaints = run.communicate(timeout=40)
        assert run.returncode == 0, complaints
        assert "Java does not answer for 10 s: it is killed" in complaints
        until(lambda: is_gone(java), "Java is gone", 10)
    done = Counter((shard, offset) for _, shard, offset, _ in noted(effects))
    assert Counter(bills(hub)) == done, "what was begun was ended and committed, once"


def _java_of(run: subprocess.Popen[str]) -> list[int]:
    return [pid for pid in children(run.pid) if b"spark" in read(f"/proc/{pid}/cmdline")]


@contextmanager
def one_after_the_other(effects: Path) -> Iterator[subprocess.Popen[str]]:
    apart = subprocess.Popen(
        [sys.executable, str(replica.__file__)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, cwd=effects.parent,
    )  # fmt: skip
    try:
        yield apart
    finally:
        for pid in (*descendants(apart.pid), apart.pid):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        apart.communicate()


def test_ctrl_c_once_drains_and_twice_ends_at_once(hub: Hub, effects: Path) -> None:
    patient = SETTINGS.replace(f'max_wait_handler = "{WAIT_S}s"', 'max_wait_handler = "60s"')
    effects.with_name("headrace.toml").write_text(patient)
    with one_after_the_other(effects) as apart:

        def run() -> None:
            assert apart.stdin is not None
            apart.stdin.write(json.dumps(_run(effects, "--json")) + "\n")
            apart.stdin.flush()

        def ended() -> str:
            assert apart.stdout is not None
            return next(line.strip() for line in apart.stdout if line.startswith("ended"))

        fill(hub, 2_000, {0: {"do": "hang", "once": True}})
        run()
        until_begun(apart, lambda: times(effects, 0, 5))
        until(lambda: len({shard for _, shard, _, _ in noted(effects)}) == 4, "others work", 20)
        os.killpg(apart.pid, signal.SIGINT)
        until(lambda: time.monotonic() - noted(effects)[-1][3] > 0.5, "it waits for one only", 20)
        assert len(bills(hub)) < 6_000
        os.killpg(apart.pid, signal.SIGINT)
        asked_s = time.monotonic()
        assert ended() == "ended 130"
        assert time.monotonic() - asked_s < 5
        until(lambda: not lanes_on_spark(apart.pid), "no lane is left", 10)
        before, known = Counter(bills(hub)), len(noted(effects))

        run()
        until_begun(apart, lambda: len(noted(effects)) > known + 100)
        theirs = descendants(apart.pid)
        os.killpg(apart.pid, signal.SIGINT)
        assert ended() == "ended 0"
        done = Counter((shard, offset) for _, shard, offset, _ in noted(effects)[known:])
        assert Counter(bills(hub)) == before + done, "what was begun was committed, once"
        assert in_order(hub)
        apart.communicate(timeout=20)
        until(lambda: all(map(is_gone, theirs)), "Java and all workers are gone", 10)
