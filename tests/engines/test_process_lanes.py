"""Lanes that are processes, hurt in every way a handler can: only the lane is lost."""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.errors import BadSetting, Refused, Unsupported
from headrace.engines.processes import ProcessLanes
from headrace.hub.hub import Hub
from headrace.testing.children import Child, until
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
    command,
    files,
    fill,
    is_gone,
    members,
    pause_s,
    read,
    starting,
    state,
    threads,
    times,
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    open_files, before = files(), threads()
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", **handlers_trouble.MADE)  # type: ignore[arg-type]
        yield hub
    until(lambda: not _lanes(), "no lane is left", 5, _lanes)
    until(lambda: threads() <= before, "no thread is left", 5, threads)
    until(lambda: files() <= open_files, "no file is left open", 5)


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


@pytest.fixture
def start(hub: Hub, effects: Path) -> Iterator[Start]:
    with starting(hub, effects, processes=True) as start:
        yield start


def _lanes(parent: int | None = None) -> list[int]:
    """The processes of lanes, zombies too, that a process has started."""
    return [
        pid
        for pid in children(os.getpid() if parent is None else parent)
        if state(pid) == "Z" or b"lane_process" in read(f"/proc/{pid}/cmdline")
    ]


# Deaths


@pytest.mark.slow
def test_a_record_that_kills_its_process_is_given_up_and_other_shards_go_on(
    hub: Hub, start: Start, effects: Path
) -> None:
    fill(hub, 300, {0: {"do": "kill"}})
    running = start(lanes=4, policy=DEADLY, work_s=0.01)
    assert running.wait("40s", until_caught_up=True)
    assert running.is_running
    killed = times(effects, 0, 5)
    assert len({pid for pid, _ in killed}) == len(killed) == 3, "so many deaths, not one more"
    (letter,) = hub.stream("serve.dead-letters").read(0)
    assert "killed its process 3 times" in str(dict(letter.headers))
    assert Counter(bills(hub)) == all_but(hub, (0, 5)), "each other one once"
    order = [offset for shard, offset in bills(hub) if shard == 0]
    assert order == sorted(order)
    assert pause_s(effects, {1, 2, 3}, killed[0][1]) < 1
    assert running.counters["serve"].lanes_lost == 3
    assert running.stop()


@pytest.mark.slow
def test_it_does_not_matter_how_a_process_is_killed(hub: Hub, start: Start, effects: Path) -> None:
    fill(hub, 20, {0: {"do": "exit"}, 1: {"do": "segfault"}})
    running = start(policy=DEADLY)
    assert running.wait("40s", until_caught_up=True)
    assert [len(times(effects, shard, 5)) for shard in (0, 1)] == [3, 3]
    assert len(list(hub.stream("serve.dead-letters").read(0))) == 2
    assert Counter(bills(hub)) == all_but(hub, (0, 5), (1, 5))


@pytest.mark.slow
def test_what_a_handler_has_started_ends_with_its_lane(
    hub: Hub, start: Start, effects: Path
) -> None:
    fill(hub, 10, {0: {"do": "spawn and hang", "once": True}})
    running = start(policy={"timeout": "500ms", "retries": 3})
    until(lambda: times(effects, 0, 5), "it hangs", 20)
    ((pid, _),) = times(effects, 0, 5)
    until(lambda: children(pid) or is_gone(pid), "it has a child", 5)
    (sleeper,) = children(pid)
    until(lambda: is_gone(sleeper), "it is gone too", 5)
    assert running.wait("20s", until_caught_up=True)
    assert Counter(bills(hub)) == all_but(hub)


@pytest.mark.slow
def test_a_fork_of_a_handler_says_nothing_in_the_name_of_its_lane(
    hub: Hub, start: Start, effects: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(hub, 50, {0: {"do": "fork"}})
    running = start(work_s=0.002)
    assert running.wait("20s", until_caught_up=True)
    assert Counter(bills(hub)) == all_but(hub)
    assert running.counters["serve"].lanes_lost == 0
    assert "lane" not in caplog.text


@pytest.mark.slow
def test_an_error_of_any_kind_is_a_failure_and_no_death(hub: Hub, start: Start) -> None:
    fill(hub, 10, {0: {"do": "long"}, 1: {"do": "exit by itself"}})
    running = start(policy={"retries": 1, "then": "skip"})
    assert running.wait("20s", until_caught_up=True)
    counters = running.counters["serve"]
    assert (counters.failures, counters.skipped, counters.lanes_lost) == (4, 2, 0)
    assert Counter(bills(hub)) == all_but(hub, (0, 5), (1, 5))


@pytest.mark.slow
def test_one_that_hangs_and_one_behind_it_that_kills_are_both_given_up(
    hub: Hub, start: Start
) -> None:
    rows: list[Any] = [None] * 30
    rows[5], rows[8] = {"do": "hang"}, {"do": "kill"}
    hub.stream("orders").append_many([(row, None) for row in rows], shard=0)
    running = start(policy={"timeout": "500ms", "retries": 1, "then": "dead-letter"})
    assert running.wait("40s", until_caught_up=True)
    reasons = [str(dict(r.headers)) for r in hub.stream("serve.dead-letters").read(0)]
    assert ["TimeoutError" in reasons[0], "killed its process" in reasons[1]] == [True, True]
    assert Counter(bills(hub)) == all_but(hub, (0, 5), (0, 8))


# Handlers that hang


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "hold"])
def test_a_handler_that_hangs_past_the_timeout_is_killed_and_its_record_tried_again(
    hub: Hub, start: Start, effects: Path, how: str
) -> None:
    fill(hub, 10, {0: {"do": how, "once": True}})
    timeout_s = 1.5
    running = start(policy={"timeout": timeout_s, "retries": 3})
    until(lambda: times(effects, 0, 5), "it hangs", 20)
    ((pid, began_s),) = times(effects, 0, 5)
    until(lambda: is_gone(pid), "it is killed", 10)
    took_s = time.monotonic() - began_s
    assert timeout_s <= took_s <= 2 * timeout_s + 1
    assert running.wait("20s", until_caught_up=True)
    (_, (again, _)) = times(effects, 0, 5)
    assert again != pid
    assert Counter(bills(hub)) == all_but(hub), "nothing twice"
    assert running.counters["serve"].lanes_lost == 1


REPLICA = """
import json, logging, sys
import headrace
from headrace.lanes.loading import load_topology
from headrace.core.computations.settings import RunSettings
logging.basicConfig(level="WARNING")
told = json.loads(sys.argv[1])
if __name__ == "__main__":
    loaded = load_topology(told.pop("reference"))
    policies = {"default": {"delay": "50ms"}}
    running = headrace.start(
        loaded.topology, told.pop("hub"), processes=True, reference=loaded.reference,
        settings=RunSettings(policies=policies), **told
    )
    print("ready", flush=True)
    running.wait()
    running.stop()
    print("ended", flush=True)
"""


def replica(hub: Hub, effects: Path, **settings: Any) -> Child:
    """One of its own process: it is ready to work."""
    options = {"effects": str(effects), "work_s": settings.pop("work_s", 0.005)}
    where = {"hub": str(hub.describe()["directory"]), "reference": REFERENCE}
    told = {**FAST, "lanes": 4, "options": options, **where, **settings}
    child = Child(["-c", REPLICA, json.dumps(told)])
    assert child.line() == "ready"
    return child


@pytest.mark.slow
def test_a_handler_hung_while_another_replica_joins_loses_its_lane_alone(
    hub: Hub, start: Start, effects: Path
) -> None:
    wait_s, hung = 1.0, 3
    fill(hub, 700, {hung: {"do": "hang", "once": True}})
    with replica(hub, effects, name="a", max_wait_handler=wait_s) as a:
        until(lambda: times(effects, hung, 5), "a handler hangs", 20)
        until(lambda: len({s for _, s, _, _ in noted(effects)}) == 4, "all lanes work", 20)
        lanes = set(_lanes(a.pid))
        ((pid, _),) = times(effects, hung, 5)
        assert pid in lanes
        since_s = time.monotonic()
        running = start(name="b", lanes=4, work_s=0.005, max_wait_handler=wait_s)
        joined_s = time.monotonic()
        until(lambda: is_gone(pid), "the lane is killed", 10)
        took_s = time.monotonic() - joined_s
        until(lambda: len(times(effects, hung, 5)) == 2, "it is handled again", 10)
        owner, _ = times(effects, hung, 5)[1]
        assert took_s <= wait_s + 3
        assert owner in _lanes(), "by the new owner"
        assert lanes - {pid} <= set(_lanes(a.pid)), "no other lane was hurt"
        assert a.process.poll() is None
        assert running.wait("30s", until_caught_up=True)
        assert pause_s(effects, {0, 1, 2}, since_s) < 1, "the other shards did not pause"
        assert Counter(bills(hub)) == all_but(hub)
        assert a.process.poll() is None
        a.process.send_signal(signal.SIGTERM)
        assert a.line() == "ended"


@pytest.mark.slow
def test_a_stopped_lane_does_not_stop_its_replica(hub: Hub, start: Start, effects: Path) -> None:
    fill(hub, 100)
    running = start(work_s=0.005, policy={"timeout": "1s", "retries": 3})
    until(lambda: len(noted(effects)) > 50, "it is at work", 20)
    stopped = noted(effects)[-1][0]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: is_gone(stopped), "it is given up", 10)
    assert running.wait("30s", until_caught_up=True)
    assert Counter(bills(hub)) == all_but(hub)


# The end of a replica


@pytest.mark.slow
def test_lanes_end_with_a_replica_that_is_killed_and_commit_nothing_more(
    hub: Hub, effects: Path
) -> None:
    fill(hub, 2_000, {0: {"do": "hold"}, 1: {"do": "spawn and hang"}})
    with replica(hub, effects) as a:
        until(lambda: times(effects, 0, 5) and times(effects, 1, 5), "two of them hang", 20)
        until(lambda: times(effects, 2, 20), "others are at work", 20)
        lanes = _lanes(a.pid)
        until(lambda: children(times(effects, 1, 5)[0][0]), "a handler has a child", 5)
        theirs = children(times(effects, 1, 5)[0][0])
        assert len(lanes) == 4
        a.process.send_signal(signal.SIGKILL)
        a.process.wait(10)
        began_s = time.monotonic()
        until(lambda: all(map(is_gone, [*lanes, *theirs])), "all are gone", 5)
        assert time.monotonic() - began_s < 2
    known = bills(hub)
    assert len(known) == len(set(known)), "nothing twice"
    done = {(shard, offset) for _, shard, offset, _ in noted(effects)}
    assert set(known) <= done
    with pytest.raises(AssertionError, match="not within"):
        until(lambda: bills(hub) != known, "something more", 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_told_to_end_with_all_its_processes_it_drains(
    hub: Hub, effects: Path, number: signal.Signals
) -> None:
    fill(hub, 2_000)
    place = str(hub.describe()["directory"])
    options = ("--option", f"effects={effects}", "--option", "work_s=0.005", "--lanes", "3")
    with command(
        "--hub", place, "run", REFERENCE, "--engine", "local", "--processes", *options
    ) as run:
        until(lambda: len(noted(effects)) > 50, "it is at work", 20)
        lanes = _lanes(run.pid)
        assert len(lanes) == 3
        for pid in lanes:
            os.kill(pid, number)
        os.killpg(run.pid, number)
        out, complaints = run.communicate(timeout=20)
    assert run.returncode == 0, complaints
    assert "Traceback" not in complaints
    assert "has ended" not in complaints
    assert all(map(is_gone, lanes))
    done = Counter((shard, offset) for _, shard, offset, _ in noted(effects))
    assert Counter(bills(hub)) == done, "what was begun was ended and committed, once"
    assert "serve" in out


@pytest.mark.slow
def test_what_was_started_is_gone_after_the_end(hub: Hub, start: Start, effects: Path) -> None:
    fill(hub, 20, {0: {"do": "exit", "once": True}})
    open_files = files()
    running = start()
    assert running.wait("20s", until_caught_up=True)
    assert running.stop()
    assert not _lanes()
    ours = ("headrace-lane-server", "headrace-lane-connection", "headrace-work", "headrace-replica")
    until(lambda: not [n for n in threads() if n.startswith(ours)], "no thread", 5, threads)
    until(lambda: files() <= open_files, "no file is left open", 5)


# What does not begin


@pytest.mark.slow
def test_a_topology_that_a_lane_cannot_load_is_one_line(hub: Hub) -> None:
    place = Path(handlers_trouble.__file__).with_name("handlers_unloadable.py")
    directory = str(hub.describe()["directory"])
    with command("--hub", directory, "run", str(place), "--engine", "local", "--processes") as run:
        out, complaints = run.communicate(timeout=30)
    assert run.returncode == 2
    assert out == ""
    assert complaints == (
        "headrace: lanes cannot begin: handlers_unloadable.py:9: ValueError: "
        "no table of prices here\n"
    )
    assert not members(hub)


@pytest.mark.slow
def test_a_program_that_runs_its_topology_when_it_is_loaded_is_told_so(hub: Hub) -> None:
    place = Path(handlers_trouble.__file__).with_name("handlers_unguarded.py")
    env = {**os.environ, "UNGUARDED_HUB": str(hub.describe()["directory"])}
    done = subprocess.run(
        [sys.executable, str(place)], env=env, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert 'if __name__ == "__main__"' in done.stderr.splitlines()[-1]


def test_lanes_that_die_before_they_begin_are_refused(
    hub: Hub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Refused, match="lanes cannot begin: exit code 1"):
        start()


@pytest.mark.slow
def test_a_replica_none_of_whose_lanes_begin_again_ends(
    hub: Hub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for pid in _lanes():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(Refused, match="3 lanes in a row cannot begin: exit code 1"):
        running.wait("30s")
    assert not running.is_running
    assert not members(hub)


def test_a_process_that_cannot_be_started_leaves_none_behind(
    hub: Hub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.Popen
    started: list[Any] = []

    def popen(*args: Any, **more: Any) -> Any:
        if len(started) == 2:
            raise BlockingIOError(11, "no more processes")
        started.append(real(*args, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Refused, match=r"cannot be started: .*no more processes"):
        start(lanes=4)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    assert not _lanes()


def test_a_hub_in_memory_is_refused_because_no_other_process_sees_it() -> None:
    with pytest.raises(Unsupported, match="memory"):
        headrace.start(topology, "memory:", processes=True, reference=REFERENCE)


def test_without_a_place_to_load_it_from_it_is_refused(hub: Hub) -> None:
    with pytest.raises(BadSetting, match="reference="):
        headrace.start(topology, hub, processes=True)


@pytest.mark.parametrize(
    "value", [datetime.date(2026, 11, 16), {1: "one"}, (1, 2), object(), b"x", {"a": {3}}]
)
def test_an_option_that_would_not_arrive_as_it_is_is_refused(start: Start, value: object) -> None:
    with pytest.raises(BadSetting, match="options: price = "):
        start(options={"price": value})


def test_options_longer_than_a_pipe_are_refused(start: Start) -> None:
    with pytest.raises(BadSetting, match="too long"):
        start(options={"text": "x" * 1_100_000})


# What others can see


@pytest.mark.slow
def test_nobody_sees_the_secret(
    hub: Hub, start: Start, effects: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("headrace").setLevel(logging.DEBUG)
    fill(hub, 20, {0: {"do": "exit", "once": True}})
    running = start(options={"text": "x" * 500_000})
    assert running.wait("20s", until_caught_up=True)
    lanes = running.replica._lanes
    assert isinstance(lanes, ProcessLanes)
    secret = lanes._server.secret
    until(lambda: len(_lanes()) == 2, "the one that died is replaced", 10)
    pids = _lanes()
    for pid in pids:
        until(lambda p=pid: os.readlink(f"/proc/{p}/fd/0") == "/dev/null", "it was told", 10)  # type: ignore[misc]
    for pid in (*pids, os.getpid()):
        for what in ("cmdline", "environ"):
            shown = read(f"/proc/{pid}/{what}")
            assert shown, "it can be looked at"
            assert secret not in shown
            assert secret.hex().encode() not in shown
    running.stop()
    written = "".join(capfd.readouterr())
    assert secret.hex() not in written
    logging.getLogger("headrace").setLevel(logging.NOTSET)


@pytest.mark.slow
def test_a_lane_that_would_run_other_code_refuses_and_the_others_go_on(
    hub: Hub, start: Start, effects: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "handlers_copied.py"
    file.write_text(Path(handlers_trouble.__file__).read_text())
    fill(hub, 50, {0: {"do": "exit", "once": True}})
    running = start(reference=f"{file}:topology", work_s=0.01, session="10s")
    file.write_text(file.read_text() + "\nNEW = True\n")
    until(lambda: "the code of serve has changed" in caplog.text, "it refuses", 20)
    assert running.wait("30s", until_caught_up=True)
    assert Counter(bills(hub)) == all_but(hub)
