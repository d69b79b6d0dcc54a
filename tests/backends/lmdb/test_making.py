"""Making a hub: processes agree, and nobody else can look in."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

import headrace
from headrace.testing.children import Child

ROUNDS, PROCESSES = 30, 8
MAKE = (
    "import headrace, sys\n"
    "print('ready', flush=True)\n"
    "for line in sys.stdin:\n"
    "    with headrace.open(line.strip()) as hub:\n"
    "        hub.create_stream('a', shards=1, exist_ok=True).append(b'1')\n"
    "        print(hub.describe()['store'], flush=True)\n"
)


@pytest.mark.slow
def test_eight_processes_that_make_one_hub_at_once_agree_on_it(tmp_path: Path) -> None:
    children = [Child(["-c", MAKE]) for _ in range(PROCESSES)]
    try:
        for child in children:
            assert child.line() == "ready"
        for number in range(ROUNDS):
            place = tmp_path / str(number)
            for child in children:
                child.tell(str(place))
            assert len({child.line() for child in children}) == 1
            with headrace.open(place) as hub:
                assert len(list(hub.stream("a").read(0))) == PROCESSES
    finally:
        for child in children:
            child.__exit__(None, None, None)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_other_users_cannot_read_a_hub_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with headrace.open(tmp_path / "hub") as hub:
            hub.create_stream("a", shards=1).append(b"1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "hub").stat().st_mode) == 0o700
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "hub").iterdir()}
    assert modes.keys() >= {"data.mdb", "lock.mdb", "writer"}
    assert set(modes.values()) == {0o600}


def test_no_code_of_ours_opens_lmdbs_lock_file(tmp_path: Path) -> None:
    seen: list[str] = []
    watching = True

    def watch(event: str, given: tuple[object, ...]) -> None:
        if watching and event == "open":
            seen.append(str(given[0]))

    sys.addaudithook(watch)
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        stream.append(b"1")
        list(stream.read(0))
        stream.trim(0, 1)
        hub.describe()
        hub.delete_stream("a")
    with headrace.open(tmp_path / "hub"):
        pass
    watching = False
    assert any(path.endswith("data.mdb") for path in seen)
    assert not any("lock.mdb" in path for path in seen)


@pytest.mark.parametrize("shards", [1_000, 10_000])
def test_a_stream_of_very_many_shards_works(tmp_path: Path, shards: int) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=shards)
        ids = stream.append_many([(b"%d" % n, b"k%d" % n) for n in range(2_000)])
        stream.append(b"last", shard=shards - 1)
        assert len({placed.shard for placed in ids}) > shards / 10
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.stream("a")
        assert stream.shards == shards
        assert list(stream.read(shards - 1))[-1].data == b"last"
        for placed, number in zip(ids[:20], range(20), strict=True):
            assert next(stream.read(placed.shard, placed.offset)).data == b"%d" % number
        hub.delete_stream("a")
        assert hub.streams() == []
