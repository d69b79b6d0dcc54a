"""kill -9 at any moment: what was acknowledged is there, gap-free and in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import headrace
from headrace.testing.children import Child, seed
from tests.harness.faults.killing import STREAM, Writers, acks_of

KILLS = 50
WRITER_POINTS = [
    "write.waiting",
    "write.locked",
    "write.before-commit",
    "write.after-commit",
    "write.acknowledged",
]


@pytest.mark.slow
def test_fifty_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    writers = Writers(tmp_path / "hub", tmp_path, ["retry-a", "retry-b", "skip-c"])
    try:
        writers.kill_at_random(KILLS)
    finally:
        writers.stop()
    verdict = writers.verdict()
    sys.stdout.write(f"seed {seed()}: {writers.kills} kills, {verdict}")
    assert verdict.wrong == []
    assert writers.kills >= KILLS
    assert verdict.acknowledged >= KILLS
    assert verdict.present == verdict.acknowledged + verdict.unknown
    assert verdict.unknown <= writers.kills


@pytest.mark.slow
@pytest.mark.parametrize("point", WRITER_POINTS)
@pytest.mark.parametrize("writer", ["retry-a", "skip-a"])
def test_a_writer_killed_at_a_named_place_leaves_no_gap_and_nothing_twice(
    tmp_path: Path, point: str, writer: str
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream(STREAM, shards=2)
    writers = Writers(tmp_path / "hub", tmp_path, [writer])
    # The first write of each is the refused creation of the stream.
    for passage in (4, 3):
        writers.start(writer, fail=f"{point}:kill@{passage}")
        assert writers.died(writer) == -9
    verdict = writers.verdict()
    assert verdict.wrong == []
    assert verdict.acknowledged >= 2
    told = {ack.number for ack in acks_of(tmp_path / f"{writer}.acks")}
    assert verdict.present - len(told) == verdict.unknown <= writers.kills


@pytest.mark.slow
def test_the_next_writer_goes_on_while_others_were_killed_holding_the_lock(tmp_path: Path) -> None:
    writers = Writers(tmp_path / "hub", tmp_path, ["retry-a", "retry-b"])
    try:
        writers.start("retry-b")
        for _ in range(3):
            writers.start("retry-a", fail="write.locked:kill@3")
            assert writers.died("retry-a") == -9
    finally:
        writers.stop()
    assert writers.verdict().wrong == []


def test_a_process_killed_while_it_makes_a_hub_leaves_a_place_for_one(tmp_path: Path) -> None:
    make = "import headrace, sys; headrace.open(sys.argv[1]).create_stream('a', shards=1)"
    with Child(["-c", make, str(tmp_path / "hub")], fail="open.before-create:kill") as child:
        assert child.ended() == -9
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("a", shards=1).append(b"1")
        assert [record.data for record in hub.stream("a").read(0)] == [b"1"]


def test_a_trim_killed_halfway_shows_no_trimmed_record_and_is_finished_by_the_next(
    tmp_path: Path,
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        for number in range(20):
            stream.append(b"%d" % number)
    trim = "import headrace, sys; headrace.open(sys.argv[1]).stream('a').trim(0, 10)"
    with Child(["-c", trim, str(tmp_path / "hub")], fail="trim.between:kill") as child:
        assert child.ended() == -9
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.stream("a")
        assert stream.bounds(0) == (10, 20)
        with pytest.raises(headrace.OffsetOutOfRange, match="first kept offset 10"):
            list(stream.read(0, 9))
        stream.trim(0, 12)
        assert [record.offset for record in stream.read(0)] == list(range(12, 20))


def test_a_packer_killed_before_it_swaps_leaves_the_small_batches(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        for number in range(30):
            stream.append(b"%d" % number + b" " * 10_000)
    pack = (
        "import sys\n"
        "from pathlib import Path\n"
        "from headrace.backends.lmdb.backend import LmdbBackend\n"
        "from headrace.backends.lmdb.maintenance import Maintenance\n"
        "backend = LmdbBackend(Path(sys.argv[1]), maintain=False)\n"
        "Maintenance(backend._environment, backend._write).round(0)\n"
    )
    with Child(["-c", pack, str(tmp_path / "hub")], fail="pack.before-swap:kill") as child:
        assert child.ended() == -9
    with headrace.open(tmp_path / "hub") as hub:
        read = [(record.data or b"").strip() for record in hub.stream("a").read(0)]
        assert read == [b"%d" % number for number in range(30)]


def test_the_kill_checker_finds_an_acknowledgement_that_came_before_the_commit(
    tmp_path: Path,
) -> None:
    writers = Writers(tmp_path / "hub", tmp_path, ["retry-a"], early=True)
    writers.start("retry-a", fail="write.before-commit:kill@5")
    assert writers.died("retry-a") == -9
    wrong = writers.verdict().wrong
    assert len(wrong) == 1
    assert wrong[0].startswith("lost: retry-a")
