"""Many callers, one synced transaction; bounded, and nobody disturbs another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.backends.lmdb import writer
from headrace.backends.lmdb.writer import Writer
from headrace.codec import registry
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.testing.children import until
from tests.harness.faults import raw_store

Arm = Callable[[str], None]


def _together(works: list[Callable[[], object]]) -> list[object]:
    """Run them in threads; their results or errors, in order."""
    found: list[object] = [None] * len(works)

    def run(at: int, work: Callable[[], object]) -> None:
        try:
            found[at] = work()
        except Exception as why:
            found[at] = why

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_appends_of_several_threads_share_transactions(tmp_path: Path, arm: Arm) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        before = hub.describe()["transactions"]
        # While the first commit takes its time, the others gather.
        arm("write.locked:sleep=0.3@1")
        _together([lambda: stream.append(b"x")] * 16)
        taken = hub.describe()["transactions"] - before
        assert len(list(stream.read(0))) == 16
        assert taken <= 4


def test_every_thread_gets_its_own_offset_and_its_own_order(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)

        def append(name: int) -> list[int]:
            return [stream.append(b"%d %d" % (name, n)).offset for n in range(50)]

        found: list[Any] = _together([lambda name=n: append(name) for n in range(8)])  # type: ignore[misc]
        records = [record.data for record in stream.read(0)]
        for name, offsets in enumerate(found):
            assert [records[at] for at in offsets] == [b"%d %d" % (name, n) for n in range(50)]


def test_a_refused_request_does_not_disturb_the_others_of_its_group(
    tmp_path: Path, arm: Arm
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream, gone = hub.create_stream("a", shards=1), hub.create_stream("b", shards=1)
        hub.delete_stream("b")
        arm("write.locked:sleep=0.3@1")
        works: list[Callable[[], object]] = [lambda: stream.append(b"x")] * 8
        works += [lambda: gone.append(b"y"), lambda: hub.create_stream("a")] * 2
        found = _together(works)
        kinds = [type(one).__name__ for one in found]
        assert kinds == ["RecordId"] * 8 + ["UnknownStream", "StreamExists"] * 2
        assert len(list(stream.read(0))) == 8


def test_an_append_to_several_shards_of_which_one_is_damaged_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=2)
        stream.append(b"0", shard=0)
        stream.append(b"1", shard=1)
    with raw_store.store(tmp_path / "hub") as txn:
        for key in raw_store.batch_keys(txn, stream.info.id, 1):
            txn.put(key, b"nonsense")
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.stream("a")
        with pytest.raises(headrace.BadBatch):
            stream.append_many([(b"%d" % n, b"k%d" % n) for n in range(20)])
        assert stream.bounds(0) == (0, 1)
        assert stream.append(b"more", shard=0).offset == 1


def test_a_transaction_never_holds_more_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    gather = Writer._gather

    def watched(self: Writer, group: list[Any]) -> None:
        gather(self, group)
        sizes.append(sum(request.nbytes for request in group))

    monkeypatch.setattr(Writer, "_gather", watched)
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        _together([lambda: stream.append(b"x" * 2**20)] * 24)
        assert len(list(stream.read(0))) == 24
    assert max(sizes) <= COMMIT_BYTES_MAX
    assert any(nbytes > 2**20 + 1000 for nbytes in sizes), sizes


def test_no_user_code_runs_inside_a_write_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Telling:
        name = "telling"

        def encode(self, value: object) -> bytes:
            seen.append(threading.current_thread().name)
            return bytes(str(value), "utf-8")

        def decode(self, data: bytes) -> object:
            return data

    def pairs() -> Any:
        for number in range(20):
            seen.append(threading.current_thread().name)
            yield number, str(number)

    monkeypatch.setattr(registry, "_codecs", dict(registry._codecs))
    headrace.register_codec(Telling())
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1, codec="telling")
        stream.append(1)
        stream.append_many(pairs())
    assert len(seen) == 41
    assert "headrace-writer" not in seen


def test_an_interrupted_caller_leaves_the_writer_working(tmp_path: Path, arm: Arm) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        arm("write.before-commit:raise@1")
        with pytest.raises(Exception, match=r"write\.before-commit"):
            stream.append(b"no")
        assert stream.append(b"yes").offset == 0


def test_a_hub_being_closed_answers_every_write_that_was_asked_for(tmp_path: Path) -> None:
    assert writer.CLOSE_S < writer.WRITE_TIMEOUT_S
    hub = headrace.open(tmp_path / "hub")
    stream = hub.create_stream("a", shards=1)
    done: list[str] = []

    def append() -> None:
        try:
            while True:
                stream.append(b"x")
                done.append("x")
        except headrace.Closed:
            done.append("closed")

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(done) > 20, "some were written")
    hub.close()
    for thread in threads:
        thread.join(5)
    assert done.count("closed") == 4
    with headrace.open(tmp_path / "hub") as hub:
        assert len(list(hub.stream("a").read(0))) == done.count("x")
