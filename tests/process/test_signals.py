"""Signal handlers, which run between any two instructions of the main thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb.map_lock import MapLock, SharedHold

_CLOSING = """
import os, signal, sys, threading, time
import headrace
hub = headrace.open(sys.argv[1])
stream = hub.create_stream("a", shards=1, exist_ok=True)
stream.append_many([(b"x" * 100, None)] * 2000)

def stop(*_):
    began = time.monotonic()
    hub.close()
    print("closed" if time.monotonic() - began < 3 else "late", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
number = 0
while True:
    match sys.argv[2]:
        case "append":
            stream.append(b"x")
        case "read":
            list(stream.read(0))
        case _:
            number += 1
            headrace.open(f"{sys.argv[1]}-{number % 3}").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy_with", ["append", "read", "open"])
def test_a_handler_may_close_the_hub_whatever_it_interrupts(tmp_path: Path, busy_with: str) -> None:
    for run in range(3):
        done = subprocess.run(
            [sys.executable, "-c", _CLOSING, str(tmp_path / f"hub{run}"), busy_with],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.stdout == "closed\n", done.stderr


_RAISING = """
import random, signal, sys
import headrace

class Now(Exception): pass
def now(*_): raise Now
signal.signal(signal.SIGALRM, now)
dice = random.Random(20)
hub = headrace.open(sys.argv[1])
stream = hub.create_stream("a", shards=1)
hit = 0
for _ in range(400):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(2e-6, 120e-6))
        for _ in range(20):
            stream.bounds(0)
    except Now:
        hit += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
stream.append(b"still")
del stream
hub.close()
with headrace.open(sys.argv[1]) as hub:
    print(hit > 100, [record.data for record in hub.stream("a").read(0)], flush=True)
"""


@pytest.mark.slow
def test_a_handler_that_raises_leaves_a_hub_that_can_be_closed_and_opened(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RAISING, str(tmp_path / "hub")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "True [b'still']\n", done.stderr


def test_a_hold_whose_frame_is_gone_keeps_no_thread_out() -> None:
    lock = MapLock()
    hold = SharedHold()
    lock.enter(hold)
    entered = threading.Event()

    def change_the_map() -> None:
        with lock.exclusive():
            entered.set()

    waiting = threading.Thread(target=change_the_map)
    waiting.start()
    assert not entered.wait(0.2)
    del hold
    assert entered.wait(5)
    waiting.join()


def test_a_truncated_writer_file_kills_no_process(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        os.truncate(tmp_path / "hub" / "writer", 0)
        assert stream.append(b"x").offset == 0


def test_a_shared_memory_hub_closes_with_its_last_user() -> None:
    name = f"memory:test-{time.monotonic_ns()}"
    one, other = headrace.open(name), headrace.open(name)
    one.create_stream("a", shards=1).append(b"x")
    one.close()
    one.close()
    assert [stream.name for stream in other.streams()] == ["a"]
    other.close()
    with headrace.open(name) as fresh:
        assert fresh.streams() == []
