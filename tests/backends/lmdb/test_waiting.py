"""Waiting readers see what other processes write, at little cost."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.testing.children import Child

APPEND = (
    "import headrace, sys, time\n"
    "stream = headrace.open(sys.argv[1]).stream('a')\n"
    "print('ready', flush=True)\n"
    "for line in sys.stdin:\n"
    "    time.sleep(0.02)\n"
    "    stream.append(str(time.time()).encode())\n"
)


def test_a_waiting_reader_sees_another_processes_record_within_milliseconds(
    tmp_path: Path,
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        delays = []
        with Child(["-c", APPEND, str(tmp_path / "hub")]) as child:
            assert child.line() == "ready"
            following = stream.read(0, "latest", follow=True)
            for _ in range(20):
                child.tell()
                record = next(following)
                delays.append(time.time() - float(record.data or b""))
        median = f"median {sorted(delays)[10] * 1000:.1f} ms, most {max(delays) * 1000:.1f} ms"
        sys.stdout.write(median)
        assert sorted(delays)[10] < 0.1


@pytest.mark.slow
def test_waiting_costs_little_cpu(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path / "hub", maintain=False)
    seen = backend.changes()
    cpu, wall = time.process_time(), time.monotonic()
    assert backend.wait(seen, 1.5) == seen
    share = (time.process_time() - cpu) / (time.monotonic() - wall)
    backend.close()
    sys.stdout.write(f"{share:.1%} of a core")
    assert share < 0.10


def test_a_waiting_reader_is_woken_by_a_writer_of_its_own_process(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        read: list[bytes] = []

        def follow() -> None:
            for record in stream.read(0, follow=True, end=5):
                read.append(record.data or b"")

        reader = threading.Thread(target=follow)
        reader.start()
        for number in range(5):
            stream.append(b"%d" % number)
        reader.join(20)
        assert read == [b"0", b"1", b"2", b"3", b"4"]


def test_records_read_as_arrow_stay_the_same_while_their_pages_are_overwritten(
    tmp_path: Path,
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        for _ in range(3):
            stream.append_many([(b"A" * 100, b"k")] * 200)
        held = stream.read_arrow(0).read_all()
        records = list(stream.read(0))
        for number in range(20):
            stream.trim(0, stream.bounds(0).end)
            stream.append_many([(b"%02d" % number * 50, b"other")] * 200)
        assert set(held.column("data").to_pylist()) == {b"A" * 100}
        assert {record.data for record in records} == {b"A" * 100}
        held.validate(full=True)
