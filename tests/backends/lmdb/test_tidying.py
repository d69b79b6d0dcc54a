"""Packing and retention: the same records in fewer batches; what is dropped is dropped whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb import maintenance
from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.lmdb.maintenance import Maintenance
from headrace.backends.opening import in_one_place
from headrace.testing.children import Child
from tests.harness.faults import raw_store

OPEN = "import headrace, sys; hub = headrace.open(sys.argv[1]); hub.delete_stream('a')"


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[tuple[headrace.Hub, Maintenance]]:
    backend = LmdbBackend(directory, maintain=False)
    tidying = Maintenance(backend._environment, backend._write)
    try:
        yield headrace.Hub(in_one_place(backend)), tidying
    finally:
        tidying.stop()
        backend.close()


def _stored(directory: Path, stream: int, shard: int = 0) -> int:
    with raw_store.store(directory) as txn:
        return len(raw_store.batch_keys(txn, stream, shard))


def _shown(stream: headrace.Stream) -> list[tuple[object, ...]]:
    return [
        (r.offset, r.key, r.data, r.timestamp, r.headers, r.sequence, r.flags, r.trace)
        for r in stream.read(0)
    ]


def test_many_single_appends_become_few_batches_with_the_same_records(tmp_path: Path) -> None:
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1)
        for number in range(1_050):
            headers = [("h", b"%d" % number)] if number % 3 else []
            stream.append(b"%d" % number, key=b"k", headers=headers, sequence=number, trace=b"t")
        before, bounds = _shown(stream), stream.bounds(0)
        reading = stream.read(0, max_records=100)
        begun = [next(reading).offset for _ in range(150)]
        tidying.round(0)
        rest = [record.offset for record in reading]
        assert begun + rest == list(range(1_050))
        assert _shown(stream) == before
        assert stream.bounds(0) == bounds
        assert [r.offset for r in stream.read(0, 700, 703)] == [700, 701, 702]
        assert stream.append(b"next").offset == 1_050
        tidying.round(0)
    assert _stored(tmp_path / "hub", stream.info.id) <= 52


def test_a_run_that_was_trimmed_while_it_was_packed_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1)
        for number in range(30):
            stream.append(b"%d" % number + b" " * 10_000)

        def trim(point: str) -> None:
            if point == "pack.before-swap":
                stream.trim(0, 5)

        monkeypatch.setattr(maintenance, "failpoint", trim)
        tidying.round(0)
        assert [int(record.data or b"") for record in stream.read(0)] == list(range(5, 30))


def test_a_stream_that_was_deleted_while_it_was_packed_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1)
        for number in range(30):
            stream.append(b"%d" % number + b" " * 10_000)

        def delete(point: str) -> None:
            if point == "pack.before-swap":
                hub.delete_stream("a")

        monkeypatch.setattr(maintenance, "failpoint", delete)
        tidying.round(0)
    assert _stored(tmp_path / "hub", stream.info.id) == 0


def test_only_one_process_per_hub_is_chosen(tmp_path: Path) -> None:
    choose = (
        "import sys\n"
        "from pathlib import Path\n"
        "from headrace.backends.lmdb.backend import LmdbBackend\n"
        "backend = LmdbBackend(Path(sys.argv[1]))\n"
        "print(backend._shared._maintenance._chosen(), flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with opened(tmp_path / "hub") as (_, tidying):
        assert tidying._chosen()
        assert tidying._chosen()
        with Child(["-c", choose, str(tmp_path / "hub")]) as child:
            assert child.line() == "False"
    with Child(["-c", choose, str(tmp_path / "hub")]) as child:
        assert child.line() == "True"
        with opened(tmp_path / "hub") as (_, tidying):
            assert not tidying._chosen()
            child.kill()
            assert tidying._chosen()


def test_retention_by_age_drops_whole_old_batches_and_reading_names_the_first_kept(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1, retention="10s")
        for at_ms in (1_000, 2_000, 15_000, 3_000, 16_000):
            stream.append(b"x", timestamp=at_ms)
        tidying.round(now_ms=11_500)
        assert stream.bounds(0) == (1, 5)
        tidying.round(now_ms=20_000)
        # An old record behind a young one is kept as long as that.
        assert stream.bounds(0) == (2, 5)
        with pytest.raises(headrace.OffsetOutOfRange, match="first kept offset 2") as told:
            list(stream.read(0, 0))
        assert (told.value.start, told.value.end) == (2, 5)
        tidying.round(now_ms=99_000)
        assert stream.bounds(0) == (5, 5)
        assert stream.append(b"y").offset == 5


def test_retention_by_bytes_keeps_the_newest(tmp_path: Path) -> None:
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1, retention_bytes="10KiB")
        for _ in range(50):
            stream.append(b"x" * 1_000)
        tidying.round(0)
        start, end = stream.bounds(0)
        assert end == 50
        assert 40 <= start <= 42
        assert len(list(stream.read(0))) == end - start


def test_records_of_a_deleted_stream_are_dropped(tmp_path: Path) -> None:
    with opened(tmp_path / "hub") as (hub, _):
        stream, other = hub.create_stream("a", shards=2), hub.create_stream("b", shards=1)
        for number in range(600):
            stream.append(b"x", shard=number % 2)
        other.append(b"kept")
        hub.delete_stream("a")
        with pytest.raises(headrace.UnknownStream):
            stream.append(b"x", shard=0)
        with pytest.raises(headrace.UnknownStream):
            list(stream.read(0))
        assert len(list(other.read(0))) == 1
    assert _stored(tmp_path / "hub", stream.info.id) == 0


def test_a_deletion_killed_halfway_is_finished_by_the_next_process(tmp_path: Path) -> None:
    with opened(tmp_path / "hub") as (hub, _):
        stream = hub.create_stream("a", shards=1)
        for _ in range(600):
            stream.append(b"x")
    with Child(["-c", OPEN, str(tmp_path / "hub")], fail="write.acknowledged:kill@2") as child:
        assert child.ended() == -9
    left = _stored(tmp_path / "hub", stream.info.id)
    assert 0 < left < 600
    with opened(tmp_path / "hub") as (hub, tidying):
        assert hub.streams() == []
        tidying.round(0)
        assert tidying._doomed() == []
    assert _stored(tmp_path / "hub", stream.info.id) == 0


def test_the_longest_silent_producers_are_forgotten_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "PRODUCERS_KEPT", 3)
    with opened(tmp_path / "hub") as (hub, tidying):
        stream = hub.create_stream("a", shards=1)
        for number in range(5):
            stream.append(b"x", producer=f"p{number}", producer_seq=1)
        stream.append(b"x", producer="p0", producer_seq=2)
        tidying.round(0)
        for kept in ("p0", "p3", "p4"):
            assert stream.append(b"x", producer=kept, producer_seq=1).offset < 6
        for forgotten, offset in (("p1", 6), ("p2", 7)):
            assert stream.append(b"x", producer=forgotten, producer_seq=1).offset == offset


def test_a_damaged_batch_is_neither_packed_nor_dropped(tmp_path: Path) -> None:
    with opened(tmp_path / "hub") as (hub, _):
        stream = hub.create_stream("a", shards=1)
        for number in range(60):
            stream.append(b"%d" % number + b" " * 10_000)
    with raw_store.store(tmp_path / "hub") as txn:
        key = raw_store.batch_keys(txn, stream.info.id, 0)[10]
        value = bytearray(txn.get(key))
        value[-1] ^= 1
        txn.put(key, bytes(value))
    with opened(tmp_path / "hub") as (hub, tidying):
        tidying.round(0)
        stream = hub.stream("a")
        with pytest.raises(headrace.BadBatch, match="offsets 10 to 10"):
            list(stream.read(0))
        assert [r.offset for r in stream.read(0, 11)] == list(range(11, 60))
        assert [r.offset for r in stream.read(0, 0, 10)] == list(range(10))
    assert batches.HEADER.size == 68
