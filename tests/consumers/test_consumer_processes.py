"""Consumers as real processes: killed, stopped, told to end, forked, and started all at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.hub.hub import Hub
from headrace.testing.children import Child, until
from headrace.testing.contracts.consumer_tools import checkpoints, filled, held, taken

STREAM = "orders"
FAST: dict[str, Any] = {"group": "billing", "session": "1s", "heartbeat": "200ms"}

WORK = """
import json, os, sys, time
import headrace
settings = json.loads(sys.argv[2])
work_s, effects = settings.pop("work_s", 0), settings.pop("effects", None)
effects = effects and os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with headrace.open(sys.argv[1]) as hub:
    print("ready", flush=True)
    if settings.pop("waits", False):
        sys.stdin.readline()
    with hub.consumer("orders", **settings) as consumer:
        print("joined", flush=True)
        for record in consumer:
            if effects:
                os.write(effects, f"{os.getpid()} {record.shard} {record.offset}\\n".encode())
            time.sleep(work_s)
print("ended", flush=True)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with headrace.open(tmp_path / "hub") as hub:
        yield hub


Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that consumes, and returns when it has joined; one that waits to be told
    to join says when it is ready."""
    children: list[Child] = []

    def start(name: str, **settings: Any) -> Child:
        told = json.dumps({**FAST, "name": name, "effects": str(tmp_path / "effects"), **settings})
        child = Child(["-c", WORK, str(tmp_path / "hub"), told])
        children.append(child)
        if not settings.get("waits"):
            assert (child.line(), child.line()) == ("ready", "joined")
        return child

    yield start
    for child in children:
        with child:
            if child.stopped():
                child.process.send_signal(signal.SIGCONT)


def effects(tmp_path: Path) -> list[tuple[int, int, int]]:
    """Process, shard and offset of what was handled, in order."""
    try:
        lines = (tmp_path / "effects").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def members(hub: Hub) -> list[str]:
    return sorted(hub.groups.load("billing").members)


def halted(child: Child, seconds: float) -> float:
    """Stop a process for so long, and how long that was."""
    child.process.send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    until(lambda: time.monotonic() >= began_s + seconds, "so long")
    child.process.send_signal(signal.SIGCONT)
    return time.monotonic() - began_s


def test_a_killed_member_is_removed_at_once_and_its_work_goes_on_at_the_checkpoint(
    hub: Hub, start: Start, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=3, each=2_000)
    killed = start("a", commit_every="100ms", work_s=0.0005, session="60s", heartbeat="10s")
    until(lambda: sum(filter(None, checkpoints(hub).values())) > 50, "some are committed", 10)
    killed.kill()
    stored = {shard: at or 0 for shard, at in checkpoints(hub).items()}
    seen = effects(tmp_path)
    began_s = time.monotonic()
    with hub.consumer(STREAM, **{**FAST, "name": "b"}) as consumer:
        until(lambda: members(hub) == ["b"], "the killed one is gone", 10)
        until(lambda: len(consumer.granted) == 3, "its shards are taken over", 10)
        assert time.monotonic() - began_s < 3, "long before its session ends"
        first: dict[int, int] = {}
        again = taken(consumer, 6_000 - sum(stored.values()))
    for record in again:
        first.setdefault(record.shard, record.offset)
    assert first == stored
    done = {(shard, offset) for _, shard, offset in seen}
    repeated = {(r.shard, r.offset) for r in again} & done
    assert all(offset >= stored[shard] for shard, offset in repeated)
    assert done | {(r.shard, r.offset) for r in again} == {
        (shard, offset) for shard in range(3) for offset in range(2_000)
    }


def test_a_record_whose_handler_is_killed_comes_again(
    hub: Hub, start: Start, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=1, each=3)
    child = start("a", commit_every="50ms", work_s=0.2)
    until(lambda: len(effects(tmp_path)) == 2, "the second record is being handled", 10)
    until(lambda: checkpoints(hub) == {0: 1}, "the first one is committed", 10)
    child.kill()
    assert checkpoints(hub) == {0: 1}, "committed after the work, never before"
    with hub.consumer(STREAM, **{**FAST, "name": "b"}) as consumer:
        assert [record.offset for record in taken(consumer, 2)] == [1, 2]


def test_a_killed_process_started_again_has_its_shards_back_at_once(hub: Hub, start: Start) -> None:
    filled(hub, STREAM, shards=4, each=10)
    slow = {"session": "60s", "heartbeat": "10s"}
    with hub.consumer(STREAM, **{**FAST, **slow, "name": "b"}) as other:
        killed = start("a", **slow)
        until(lambda: len(other.granted) == 2, "2 each", 10)
        successor = start("a", waits=True, **slow)
        assert successor.line() == "ready"
        killed.kill()
        began_s = time.monotonic()
        successor.tell()
        assert successor.line() == "joined"
        until(lambda: sorted(map(len, held(hub).values())) == [2, 2], "2 each again", 10)
        assert time.monotonic() - began_s < 2, "half of it without other work on the machine"
        assert members(hub) == ["a", "b"]


@pytest.mark.slow
def test_of_two_processes_of_one_name_the_older_ends_with_an_error(hub: Hub, start: Start) -> None:
    stream = filled(hub, STREAM, shards=2, each=0)
    older, newer = start("ann"), start("ann")
    assert older.ended(within_s=20) == 1
    assert older.process.stderr is not None
    assert "headrace.core.errors.Replaced" in older.process.stderr.read()
    stream.append(b"x", shard=0)
    until(lambda: checkpoints(hub)[0] == 1, "the newer one works", 10)
    assert newer.process.poll() is None


def test_a_commit_in_one_process_is_seen_in_another_at_once(hub: Hub, tmp_path: Path) -> None:
    filled(hub, STREAM, shards=1, each=20)
    commit = """
import headrace, sys
with headrace.open(sys.argv[1]) as hub:
    with hub.consumer("orders", group="billing", commit_every="1h") as consumer:
        for record in consumer:
            consumer.commit()
            print(record.offset, flush=True)
            sys.stdin.readline()
"""
    with Child(["-c", commit, str(tmp_path / "hub")]) as child:
        for offset in range(20):
            assert child.line() == str(offset)
            assert checkpoints(hub) == {0: offset + 1}
            child.tell()


def test_a_process_told_to_end_commits_what_is_done_and_exits_well(
    hub: Hub, start: Start, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=2, each=5_000)
    child = start("a", commit_every="1h", work_s=0.001)
    until(lambda: len(effects(tmp_path)) > 50, "it is at work", 10)
    child.process.send_signal(signal.SIGTERM)
    assert child.line() == "ended"
    assert child.ended(within_s=10) == 0
    assert members(hub) == []
    done = defaultdict(list)
    for _, shard, offset in effects(tmp_path):
        done[shard].append(offset)
    assert {s: at for s, at in checkpoints(hub).items() if at} == {
        shard: len(offsets) for shard, offsets in done.items()
    }, "every record that was handled counts as done, and no other"
    with hub.consumer(STREAM, **FAST) as consumer:
        rest = taken(consumer, 10_000 - sum(map(len, done.values())))
    everything = Counter((s, o) for s, offsets in done.items() for o in offsets)
    everything += Counter((record.shard, record.offset) for record in rest)
    assert set(everything.values()) == {1}


@pytest.mark.slow
def test_an_idle_process_ends_by_sigterm_and_a_stuck_one_by_the_second(
    hub: Hub, start: Start, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=1, each=0)
    idle = start("a", session="10s", heartbeat="3s")
    idle.process.send_signal(signal.SIGTERM)
    assert idle.ended(within_s=10) == 0
    hub.stream(STREAM).append(b"x")
    stuck = start("b", work_s=60)
    until(lambda: effects(tmp_path), "it is stuck in its handler", 10)
    stuck.process.send_signal(signal.SIGTERM)
    until(
        lambda: (
            "SigCgt" in Path(f"/proc/{stuck.pid}/status").read_text()
            and _hears_of_no_signal(stuck.pid)
        ),
        "the first one was heard",
        10,
    )
    assert stuck.process.poll() is None, "the first one waits for the handler"

    def told_again() -> bool:
        """At once it is the same: who tells a process and its group tells it twice."""
        stuck.process.send_signal(signal.SIGTERM)
        return stuck.process.poll() is not None

    assert not told_again()
    until(told_again, "the second one ends it", 10)
    assert stuck.ended(within_s=10) == -signal.SIGTERM
    with hub.consumer(STREAM, **{**FAST, "name": "c"}) as consumer:
        assert taken(consumer, 1)[0].offset == 0


def _hears_of_no_signal(pid: int) -> bool:
    """Whether no signal waits for the process to take it."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return int(fields["ShdPnd"], 16) == int(fields["SigPnd"], 16) == 0


TERMINATED = """
import os, random, signal, sys, threading, time
import headrace
dice = random.Random(sys.argv[1])
for round in range(150):
    # As a program does that has just begun: here the same one begins again and again.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hub = headrace.open("memory:")
    stream = hub.create_stream("orders", shards=1)
    stream.append_many([(b"x", None)] * 50)
    with hub.consumer("orders", group="billing") as consumer:
        threading.Timer(dice.uniform(0, 0.03), os.kill, (os.getpid(), signal.SIGTERM)).start()
        for record in consumer:
            pass
    hub.close()
    print(round, flush=True)
"""


@pytest.mark.slow
def test_a_signal_to_end_is_heard_whatever_it_interrupts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, "7"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == [str(round) for round in range(150)], done.stderr


FORKING = """
import os, signal, sys, warnings
import headrace
warnings.simplefilter("ignore", DeprecationWarning)
with headrace.open(sys.argv[1]) as hub:
    settings = dict(group="billing", name="a", session="1s", heartbeat="200ms")
    with hub.consumer("orders", **settings) as consumer:
        for record in consumer:
            if record.offset == 3:
                child = os.fork()
                if not child:
                    if sys.argv[2] == "exits":
                        consumer.close()
                        hub.close()
                        os._exit(0)
                    signal.pause()
                print(child, flush=True)
                if sys.argv[2] == "exits":
                    os.waitpid(child, 0)
            if record.offset == 9:
                consumer.commit()
                print("done", flush=True)
"""


def test_a_child_forked_in_a_handler_does_not_end_its_parents_place(
    hub: Hub, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=2, each=10)
    with (
        hub.consumer(STREAM, **{**FAST, "name": "watching"}),
        Child(["-c", FORKING, str(tmp_path / "hub"), "exits"]) as parent,
    ):
        child = int(parent.line())
        group = hub.groups.load("billing")
        until(lambda: not Path(f"/proc/{child}").exists(), "the child has ended", 10)
        assert parent.line() == "done"
        beats: set[int] = set()

        def beaten() -> bool:
            sign = hub.groups.signs(group)["a"]
            assert sign is not None
            assert sign.alive
            beats.add(sign.beat)
            return len(beats) > 5

        until(beaten, "the parent gives signs of life", 10)
        assert hub.groups.load("billing").members["a"] == group.members["a"]
        assert sorted(filter(None, checkpoints(hub).values())) == [10]


def test_a_child_that_outlives_its_parent_does_not_keep_its_place(hub: Hub, tmp_path: Path) -> None:
    filled(hub, STREAM, shards=1, each=10)
    with Child(["-c", FORKING, str(tmp_path / "hub"), "stays"]) as parent:
        child = int(parent.line())
        assert parent.line() == "done"
        parent.kill()
        try:
            with hub.consumer(STREAM, **{**FAST, "name": "b"}) as consumer:
                began_s = time.monotonic()
                until(lambda: consumer.granted, "the dead one's shard is taken over", 10)
                assert time.monotonic() - began_s < 0.9, "by its lost lock, not by its silence"
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.slow
def test_a_stopped_member_is_removed_after_a_session_and_not_before(hub: Hub, start: Start) -> None:
    filled(hub, STREAM, shards=2, each=0)
    session = {"session": "2s", "heartbeat": "100ms"}
    with hub.consumer(STREAM, **{**FAST, **session, "name": "a"}) as consumer:
        child = start("b", **session)
        until(lambda: len(consumer.granted) == 1, "1 each", 10)

        def member() -> Any:
            return hub.groups.load("billing").members.get("b")

        for _ in range(3):
            before = member()
            if halted(child, 0.8 * 2) < 0.83 * 2:
                assert member() == before
                until(lambda: len(consumer.granted) == 1, "nothing has changed", 10)
                break
        before = member()
        assert halted(child, 1.5 * 2) >= 3
        assert member() != before
        until(lambda: member() is not None and len(consumer.granted) == 1, "it comes back", 10)
        assert member().incarnation > before.incarnation


@pytest.mark.slow
def test_a_hung_member_is_evicted_after_the_groups_timeout(hub: Hub, start: Start) -> None:
    filled(hub, STREAM, shards=4, each=0)
    session = {"session": "2s", "heartbeat": "1s"}
    with hub.consumer(STREAM, **{**FAST, **session, "name": "a"}) as consumer:
        child = start("b", **session)
        until(lambda: len(consumer.granted) == 2, "2 each", 10)
        child.process.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        until(lambda: members(hub) == ["a"], "it is evicted", 10)
        evicted_s = time.monotonic() - began_s
        until(lambda: len(consumer.granted) == 4, "its shards are here", 10)
        moved_s = time.monotonic() - began_s
    assert 1.7 < evicted_s < 3.3
    assert moved_s < evicted_s + 0.5


ZOMBIE = """
import json, sys
import headrace
settings = json.loads(sys.argv[2])
with headrace.open(sys.argv[1]) as hub, hub.consumer("orders", **settings) as consumer:
    record = consumer.read(timeout="10s")
    print(record.offset, flush=True)
    sys.stdin.readline()
    try:
        consumer.commit()
        print("stored", flush=True)
    except headrace.Fenced as why:
        print(type(why).__name__, flush=True)
    print(sum(1 for _ in iter(lambda: consumer.read(timeout="100ms"), None)), flush=True)
"""


def test_a_stopped_process_cannot_commit_what_another_has_taken_over(
    hub: Hub, tmp_path: Path
) -> None:
    filled(hub, STREAM, shards=1, each=5)
    told = {**FAST, "session": "600ms", "name": "a", "commit_every": "1h"}
    with Child(["-c", ZOMBIE, str(tmp_path / "hub"), json.dumps(told)]) as zombie:
        assert zombie.line() == "0"
        zombie.process.send_signal(signal.SIGSTOP)
        with hub.consumer(STREAM, **{**told, "name": "b"}) as consumer:
            assert [record.offset for record in taken(consumer, 5)] == list(range(5))
            consumer.commit()
            zombie.process.send_signal(signal.SIGCONT)
            zombie.tell()
            assert zombie.line() == "Fenced"
            assert checkpoints(hub) == {0: 5}
            assert zombie.line() == "0"


@pytest.mark.slow
def test_a_place_left_by_a_killed_process_is_taken_by_a_new_one(hub: Hub, start: Start) -> None:
    filled(hub, STREAM, shards=12, each=0)
    children = {name: start(name) for name in ("a", "b", "c")}
    until(lambda: sorted(map(len, held(hub).values())) == [4, 4, 4], "4 each", 10)
    children["b"].kill()
    start("d")
    until(
        lambda: (
            {name: len(shards) for name, shards in held(hub).items()} == {"a": 4, "c": 4, "d": 4}
        ),
        "4 each again",
        10,
        state=lambda: held(hub),
    )


@pytest.mark.slow
def test_twenty_processes_join_at_once(hub: Hub, start: Start) -> None:
    filled(hub, STREAM, shards=40, each=0)
    patient = {"session": "20s", "heartbeat": "2s"}
    children = [start(f"m{number}", waits=True, **patient) for number in range(20)]
    for child in children:
        assert child.line() == "ready"
    began_s = time.monotonic()
    for child in children:
        child.tell()
    for child in children:
        assert child.line() == "joined"
    assert len(members(hub)) == 20
    until(lambda: sorted(map(len, held(hub).values())) == [2] * 20, "2 each", 20)
    assert time.monotonic() - began_s < 10


LARGE = """
import sys
from pathlib import Path
import headrace

def own_kb():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])

with headrace.open(sys.argv[1]) as hub:
    with hub.consumer("orders", group="billing", max_bytes="1MiB") as consumer:
        before, most, count, steps = own_kb(), 0, 0, 0
        while records := consumer.read_batch(timeout="300ms"):
            count += len(records)
            steps += 1
            most = max(most, own_kb())
            assert sum(len(record.data) for record in records) <= 2**20 + 10_000
        print(count, steps, most - before)
"""


@pytest.mark.slow
def test_a_large_stream_is_read_in_bounded_steps_until_it_is_empty(
    hub: Hub, tmp_path: Path
) -> None:
    stream = hub.create_stream(STREAM, shards=2)
    for _ in range(16):
        stream.append_many(((b"x" * 9_000, None) for _ in range(400)), shard=0)
    with Child(["-c", LARGE, str(tmp_path / "hub")]) as child:
        count, steps, grown_kb = map(int, child.output().split())
    assert count == 6_400
    assert steps >= 6_400 * 9_000 / 2**20
    assert grown_kb < 30_000, "of 57,600 kB"


ENDS = """
import sys, headrace
hub = headrace.open(sys.argv[1])
consumer = hub.consumer("orders", group="billing")
for _ in range(4):
    consumer.read()
"""


def test_a_program_that_ends_without_closing_commits_and_leaves(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=10)
    with Child(["-c", ENDS, str(hub.describe()["directory"])]) as child:
        child.output()
    assert checkpoints(hub) == {0: 3}
    assert held(hub) == {}


FORKS = """
import os, sys, headrace
with headrace.open(sys.argv[1]) as hub, hub.consumer("orders", group="billing") as consumer:
    first = consumer.read()
    child = os.fork()
    if not child:
        try:
            consumer.read()
        except headrace.ForkedHandle:
            os._exit(0)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, consumer.read().offset)
"""


def test_a_forked_child_gets_no_records(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=10)
    with Child(["-c", FORKS, str(hub.describe()["directory"])]) as child:
        assert child.output() == "0 1\n"
