"""The map grows and is adopted; slots of dead readers are cleared."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb import environment, tree_pages
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.testing.children import Child, until

GROW = (
    "import headrace, sys\n"
    "hub = headrace.open(sys.argv[1], map_size='1MiB')\n"
    "stream = hub.stream('a')\n"
    "for number in range(int(sys.argv[3])):\n"
    "    stream.append(b'%s %d ' % (sys.argv[2].encode(), number) + b'x' * 8_000, shard=0)\n"
    "    if number % 50 == 0: assert len(list(stream.read(0, max_records=1)))\n"
    "print('done')\n"
)
READ = (
    "import lmdb, os, sys\n"
    "env = lmdb.open(sys.argv[1], max_readers=5)\n"
    "txn = env.begin()\n"
    "print('reading', flush=True)\n"
    "sys.stdin.readline()\n"
)


def test_a_full_map_grows_without_the_writer_or_its_readers_noticing(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub", map_size="1MiB") as hub:
        stream = hub.create_stream("a", shards=1)
        done = threading.Event()
        wrong: list[BaseException] = []

        def read() -> None:
            try:
                while not done.is_set():
                    list(stream.read(0))
            except BaseException as why:
                wrong.append(why)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(60):
            stream.append(b"%d " % number + b"x" * 100_000)
        done.set()
        for reader in readers:
            reader.join()
        assert wrong == []
        assert [record.offset for record in stream.read(0)] == list(range(60))
        assert hub.describe()["bytes_map"] > 6_000_000


def test_a_hub_is_opened_while_another_process_grows_its_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.open(tmp_path / "hub", map_size="1MiB") as hub:
        hub.create_stream("a", shards=1)
    looked_at = tree_pages.check

    def grown_meanwhile(data: Path, transaction: int) -> bool:
        monkeypatch.setattr(tree_pages, "check", looked_at)
        sound = looked_at(data, transaction)
        with Child(["-c", GROW, str(tmp_path / "hub"), "x", "300"]) as child:
            assert child.output().strip() == "done"
        return sound

    monkeypatch.setattr(tree_pages, "check", grown_meanwhile)
    with headrace.open(tmp_path / "hub", map_size="1MiB") as hub:
        assert hub.stream("a").bounds(0).end == 300


@pytest.mark.slow
def test_three_processes_that_grow_and_adopt_the_map_at_once_lose_nothing(tmp_path: Path) -> None:
    appends = 150
    with headrace.open(tmp_path / "hub", map_size="1MiB") as hub:
        stream = hub.create_stream("a", shards=1)
        children = [
            Child(["-c", GROW, str(tmp_path / "hub"), name, str(appends)]) for name in "xyz"
        ]
        for child in children:
            with child:
                assert child.output().strip() == "done"
        read = [(record.data or b"").split()[:2] for record in stream.read(0)]
        stream.append(b"mine " + b"x" * 8_000)
    for name in (b"x", b"y", b"z"):
        numbers = [int(number) for writer, number in read if writer == name]
        assert numbers == list(range(appends))


def test_slots_of_killed_readers_are_cleared_when_none_is_left(tmp_path: Path) -> None:
    _make_with_few_slots(tmp_path / "hub")
    with Child(["-c", READ, str(tmp_path / "hub")]) as first:
        assert first.line() == "reading"
        backend = LmdbBackend(tmp_path / "hub", maintain=False)
        assert backend.describe()["readers_max"] == 5
        killed = [Child(["-c", READ, str(tmp_path / "hub")]) for _ in range(4)]
        for child in killed:
            with child:
                assert child.line() == "reading"
                child.kill()
        held = []
        environment_of = backend._environment
        assert len(environment_of._env.readers().splitlines()) == 1 + 5
        barrier = threading.Barrier(3)

        def read() -> None:
            with environment_of.reading() as txn:
                held.append(txn.id())
                barrier.wait(20)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        barrier.wait(20)
        for thread in threads:
            thread.join()
        assert len(held) == 2
        backend.close()


def _make_with_few_slots(directory: Path) -> None:
    """The table keeps the size that the first opener after this gives it: five, here."""
    with headrace.open(directory) as hub:
        hub.create_stream("a", shards=1)
    (directory / "lock.mdb").unlink()


def test_a_full_table_of_living_readers_is_reported_as_busy(tmp_path: Path) -> None:
    _make_with_few_slots(tmp_path / "hub")
    readers = [Child(["-c", READ, str(tmp_path / "hub")]) for _ in range(5)]
    try:
        for reader in readers:
            assert reader.line() == "reading"
        with pytest.raises(headrace.HubBusy, match="reader slots"):
            headrace.open(tmp_path / "hub")
    finally:
        for reader in readers:
            with reader:
                reader.kill()
    with headrace.open(tmp_path / "hub") as hub:
        hub.stream("a").append(b"1")


def test_the_file_stops_growing_once_a_killed_reader_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "READER_CHECK_S", 0.05)
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)

        def used_after(rounds: int) -> int:
            for _ in range(rounds):
                end = stream.append(b"x" * 200_000).offset
                stream.trim(0, end)
            return (tmp_path / "hub" / "data.mdb").stat().st_size

        before = used_after(10)
        with Child(["-c", READ, str(tmp_path / "hub")]) as reader:
            assert reader.line() == "reading"
            assert used_after(20) > before + 10 * 200_000
            reader.kill()

        def has_settled() -> bool:
            settled = used_after(20)
            return used_after(60) < settled + 3 * 200_000

        until(has_settled, "the slot is cleared, and the file grows no more")


_LIMITED = """
import os, resource, sys
import headrace
hub = headrace.open(sys.argv[1], map_size="16MiB")
stream = hub.create_stream("a", shards=1)
stream.append(b"first")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + 24 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
count = 1
try:
    while True:
        stream.append(os.urandom(500_000))
        count += 1
except headrace.HubBusy as busy:
    assert "ulimit -v" in str(busy), busy
assert sum(1 for _ in stream.read(0, max_records=1)) == count
assert stream.append(b"small").offset == count
print("went on", flush=True)
"""


def test_a_map_that_cannot_grow_is_told_and_the_hub_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "hub")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "went on\n", done.stderr
