"""Members as locked files: who is dead is seen at once, who lives never looks dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb.files import MEMBERS
from headrace.backends.lmdb.liveness import FileLiveness
from headrace.testing.children import Child, until
from headrace.testing.contracts.consumer_tools import filled, taken

WHO = ("billing", "ann", 1)

BEAT = """
import sys
from pathlib import Path
from headrace.backends.lmdb.liveness import FileLiveness
liveness = FileLiveness(Path(sys.argv[1]))
liveness.beat("billing", "ann", 1, 7)
print("beaten", flush=True)
sys.stdin.readline()
"""

PROBE = """
import sys, time
from pathlib import Path
from headrace.backends.lmdb.liveness import FileLiveness
liveness = FileLiveness(Path(sys.argv[1]))
print("ready", flush=True)
looks, end = 0, time.monotonic() + 0.6
while time.monotonic() < end:
    sign = liveness.sign("billing", "ann", 1)
    assert sign is None or sign.alive, sign
    if sign is None:
        liveness.leave("billing", "nobody", 1)
    elif looks % 3 == 0:
        liveness.leave("billing", "ann", 1)  # never takes away what a living one holds
    looks += 1
print(looks, flush=True)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / MEMBERS


@pytest.fixture
def child(directory: Path) -> Iterator[Child]:
    with Child(["-c", BEAT, str(directory)]) as child:
        assert child.line() == "beaten"
        yield child


def test_another_process_is_seen_to_live_and_at_once_to_be_dead(
    directory: Path, child: Child
) -> None:
    liveness = FileLiveness(directory)
    sign = liveness.sign(*WHO)
    assert sign is not None
    assert (sign.alive, sign.beat) == (True, 7)
    child.process.send_signal(signal.SIGSTOP)
    until(child.stopped, "it is stopped", 10)
    stopped = liveness.sign(*WHO)
    assert stopped is not None
    assert stopped.alive, "who only hangs is not dead"
    child.kill()
    dead = liveness.sign(*WHO)
    assert dead is not None
    assert (dead.alive, dead.beat) == (False, 7)


def test_only_files_of_dead_members_are_removed_by_other_processes(
    directory: Path, child: Child
) -> None:
    liveness = FileLiveness(directory)
    liveness.leave(*WHO)
    sign = liveness.sign(*WHO)
    assert sign is not None
    assert sign.alive
    child.kill()
    liveness.leave(*WHO)
    assert liveness.sign(*WHO) is None
    assert list(directory.iterdir()) == []


def test_a_member_whose_file_was_removed_makes_it_anew(directory: Path) -> None:
    own, other = FileLiveness(directory), FileLiveness(directory)
    own.beat(*WHO, 1)
    for file in directory.iterdir():
        file.unlink()
    assert other.sign(*WHO) is None
    own.beat(*WHO, 2)
    sign = other.sign(*WHO)
    assert sign is not None
    assert (sign.alive, sign.beat) == (True, 2)
    own.leave(*WHO)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("taken_away", [False, True], ids=["left alone", "file taken away"])
def test_probes_never_make_a_living_member_look_dead(directory: Path, taken_away: bool) -> None:
    own = FileLiveness(directory)
    own.beat(*WHO, 0)
    stop = threading.Event()
    wrong: list[object] = []

    def probe() -> None:
        other = FileLiveness(directory)
        while not stop.is_set():
            sign = other.sign(*WHO)
            if sign is not None and not sign.alive:
                wrong.append(sign)

    threads = [threading.Thread(target=probe, daemon=True) for _ in range(2)]
    with (
        Child(["-c", PROBE, str(directory)]) as one,
        Child(["-c", PROBE, str(directory)]) as two,
    ):
        assert (one.line(), two.line()) == ("ready", "ready")
        for thread in threads:
            thread.start()
        end_s = time.monotonic() + 0.6
        beat = 0
        while time.monotonic() < end_s:
            beat += 1
            if taken_away and beat % 20 == 0:  # somebody tidies up under its feet
                for file in directory.iterdir():
                    file.unlink(missing_ok=True)
            own.beat(*WHO, beat)
        stop.set()
        looks = [int(prober.output()) for prober in (one, two)]
    for thread in threads:
        thread.join(10)
    assert wrong == []
    assert min(looks) > 100
    assert beat > 100


def test_files_go_with_their_members(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        filled(hub, "orders", shards=2, each=1)
        members = tmp_path / "hub" / MEMBERS
        settings = {"group": "billing", "session": "3s", "heartbeat": "200ms"}
        with hub.consumer("orders", **settings) as consumer:  # type: ignore[arg-type]
            taken(consumer, 2)
            assert consumer.read(timeout="1ms") is None
            assert len(list(members.iterdir())) == 1
            join = (
                "import headrace, sys\n"
                "hub = headrace.open(sys.argv[1])\n"
                "consumer = hub.consumer('orders', group='billing', session=3, heartbeat=0.2)\n"
                "print('joined', flush=True)\n"
                "sys.stdin.readline()\n"
            )
            with Child(["-c", join, str(tmp_path / "hub")]) as child:
                assert child.line() == "joined"
                assert len(list(members.iterdir())) == 2
                child.kill()
                until(lambda: len(list(members.iterdir())) == 1, "what it left is tidied", 10)
                until(lambda: len(consumer.granted) == 2, "and its shards are here", 10)
        assert list(members.iterdir()) == []


def test_a_full_disk_does_not_stop_a_member_that_is_there(tmp_path: Path) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        own = FileLiveness(place / MEMBERS)
        own.beat(*WHO, 1)
        if mounted:
            with (
                (place / "ballast").open("wb", buffering=0) as ballast,
                pytest.raises(OSError, match="No space left"),
            ):
                ballast.writelines([b"\0" * 4096] * 1000)
            with pytest.raises(headrace.DiskFull):
                own.beat("billing", "late", 1, 1)
        for beat in range(2, 50):
            own.beat(*WHO, beat)
        sign = FileLiveness(place / MEMBERS).sign(*WHO)
        assert sign is not None
        assert (sign.alive, sign.beat) == (True, 49)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_no_member_is_evicted_while_a_stopped_process_holds_the_write_lock(tmp_path: Path) -> None:
    append = "import headrace, sys\nheadrace.open(sys.argv[1]).stream('orders').append(b'x')\n"
    with headrace.open(tmp_path / "hub") as hub:
        filled(hub, "orders", shards=2, each=500)
        settings = {"group": "billing", "session": "800ms", "heartbeat": "200ms"}
        with (
            hub.consumer("orders", **settings, name="a") as one,  # type: ignore[arg-type]
            hub.consumer("orders", **settings, name="b") as other,  # type: ignore[arg-type]
        ):
            until(lambda: len(one.granted) == len(other.granted) == 1, "1 each", 10)
            taken(one, 10)
            taken(other, 10)
            before = hub.groups.load("billing")
            arguments = ["-c", append, str(tmp_path / "hub")]
            with Child(arguments, fail="write.locked:stop@1") as holder:
                until(holder.stopped, "it holds the write lock and is stopped", 10)
                end_s = time.monotonic() + 1.8
                while time.monotonic() < end_s:  # more than two sessions
                    assert one.read(timeout="2s") is not None, "reading goes on"
                    assert other.read(timeout="2s") is not None
                    time.sleep(0.01)
                holder.kill()
            one.commit()
            other.commit()
            after = hub.groups.load("billing")
            assert after.members == before.members
            assert {s: at.epoch for s, at in after.shards.items()} == {
                s: at.epoch for s, at in before.shards.items()
            }


FORK = """
import os, sys, signal, warnings
from pathlib import Path
from headrace.backends.lmdb.liveness import FileLiveness
warnings.simplefilter("ignore", DeprecationWarning)
liveness = FileLiveness(Path(sys.argv[1]))
liveness.beat("billing", "ann", 1, 7)
child = os.fork()
if not child:
    liveness.leave("billing", "ann", 1)
    assert liveness.sign("billing", "ann", 1).alive, "the parent's lock is not the child's to end"
    print(os.getpid(), flush=True)
    signal.pause()
sys.stdin.readline()
"""


def test_a_lock_belongs_to_the_parent_alone(directory: Path) -> None:
    liveness = FileLiveness(directory)
    with Child(["-c", FORK, str(directory)]) as parent:
        child = int(parent.line())
        try:
            sign = liveness.sign(*WHO)
            assert sign is not None
            assert sign.alive
            parent.kill()

            def dead() -> bool:
                sign = liveness.sign(*WHO)
                return sign is not None and not sign.alive

            until(dead, "its death is seen although its child lives", 5)
        finally:
            os.kill(child, signal.SIGKILL)


def test_loading_the_package_does_not_touch_signals_or_forks() -> None:
    look = "import headrace, signal; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
