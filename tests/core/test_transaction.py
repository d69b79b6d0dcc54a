"""What the contract of backends does not reach: stories, shards that are closed, and what comes in
between."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.backends.memory import MemoryBackend
from headrace.core import store_keys
from headrace.core.errors import BadStored, Fenced, ShardClosed
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import Slice, StreamInfo
from headrace.core.ports import Append, Commit, Grant, StreamSpec, Versioned
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.transaction import STORIES_KEPT, OutputRange, state_entry, story_entry


class Closing(MemoryBackend):
    """A backend on which the last shard of every stream was closed."""

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        info = super().create_stream(spec)
        closed = replace(info.shards[-1], open=False)
        info = replace(info, shards=(*info.shards[:-1], closed))
        self._streams[spec.name] = info
        return info


def _made(backend: MemoryBackend, name: str) -> StreamInfo:
    return backend.create_stream(StreamSpec(name, 2, "bytes", "md5-range", None, None, 0))


def _granted(backend: MemoryBackend, stream: StreamInfo) -> Grant:
    backend.transact({}, {store_keys.epoch_key("g", stream.id, 0): b"t"})
    return Grant("g", stream, 0, b"t")


def _one(stream: StreamInfo, shard: int) -> Append:
    return Append(stream, shard, Batch.of_rows([Row(None, b"v", 0)]))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_checkpoint_reads_back(next: int, commits: int) -> None:
    assert Checkpoint.decoded(Checkpoint(next, commits).encoded()) == Checkpoint(next, commits)


def test_a_checkpoint_is_what_is_on_disk() -> None:
    assert Checkpoint(258, 3).encoded() == b"\0\0\0\0\0\0\1\2" + b"\0\0\0\0\0\0\0\3"


def test_a_state_row_holds_its_name_and_value() -> None:
    assert state_entry(b"\0\0\0\3annvalue") == (b"ann", b"value")
    assert state_entry(b"\0\0\0\0") == (b"", b"")


def test_a_story_tells_where_the_outputs_went() -> None:
    backend = MemoryBackend()
    orders, invoices = _made(backend, "orders"), _made(backend, "invoices")
    backend.append([_one(invoices, 1)] * 5)
    backend.commit(
        Commit(
            grant=_granted(backend, orders),
            done=Slice("orders", 0, 0, 1),
            outputs=[_one(invoices, 1)],
            dead_letters=[Append(orders, 1, Batch.of_rows([Row(None, b"", 0)] * 3))],
            story=b"told",
        )
    )
    found = backend.get(store_keys.story_key("g", orders.id, 0, 0))
    assert found is not None
    places = struct.pack(">IIQI", invoices.id, 1, 5, 1) + struct.pack(">IIQI", orders.id, 1, 0, 3)
    assert found.value == b"\0\0\0\2" + places + b"told"


def test_the_last_stories_are_kept() -> None:
    backend = MemoryBackend()
    orders = _made(backend, "orders")
    grant = _granted(backend, orders)
    for i in range(STORIES_KEPT + 3):
        done = Slice("orders", 0, i, i + 1)
        backend.commit(Commit(grant=grant, done=done, story=b"%d" % i))
    stories = backend.scan(store_keys.story_prefix("g", orders.id, 0))
    kept = [value.value[4:] for _, value in stories]
    assert sorted(map(int, kept)) == list(range(3, STORIES_KEPT + 3))


def test_a_story_reads_back_with_where_the_outputs_went() -> None:
    outputs = struct.pack(">IIQI", 3, 1, 5, 2) + struct.pack(">IIQI", 4, 0, 0, 1)
    expected = (OutputRange(3, 1, 5, 7), OutputRange(4, 0, 0, 1)), b"told"
    assert story_entry(b"\0\0\0\2" + outputs + b"told") == expected
    assert story_entry(b"\0\0\0\0") == ((), b"")
    with pytest.raises(BadStored, match="a story of 8 bytes"):
        story_entry(b"\0\0\0\2told")


def test_a_commit_without_a_story_clears_the_slot_of_the_round_before() -> None:
    backend = MemoryBackend()
    orders = _made(backend, "orders")
    grant = _granted(backend, orders)
    for i in range(STORIES_KEPT + 1):
        story = b"told" if i < STORIES_KEPT else b""
        backend.commit(Commit(grant=grant, done=Slice("orders", 0, i, i + 1), story=story))
    assert backend.get(store_keys.story_key("g", orders.id, 0, 0)) is None
    assert backend.get(store_keys.story_key("g", orders.id, 0, 1)) is not None


def test_a_closed_shard_takes_no_more_records() -> None:
    backend = Closing()
    stream = _made(backend, "orders")
    with pytest.raises(ShardClosed, match="shard 1 of 'orders' is closed") as caught:
        backend.append([_one(stream, 0), _one(stream, 1)])
    assert (caught.value.stream, caught.value.shard) == ("orders", 1)
    assert backend.bounds(stream, 0).end == 0
    backend.append([_one(stream, 0)])
    assert backend.bounds(stream, 0).end == 1


def test_with_a_closed_output_shard_a_commit_changes_nothing() -> None:
    backend = Closing()
    stream = _made(backend, "orders")
    grant = _granted(backend, stream)
    before = list(backend.scan(b""))
    commit = Commit(
        grant=grant, done=Slice("orders", 0, 0, 1), outputs=[_one(stream, 0), _one(stream, 1)]
    )
    with pytest.raises(ShardClosed):
        backend.commit(commit)
    assert list(backend.scan(b"")) == before
    assert backend.bounds(stream, 0).end == 0


def test_a_copy_overtaken_while_it_passes_a_gap_is_fenced() -> None:
    class Overtaken(MemoryBackend):
        armed = False

        def get(self, key: bytes) -> Versioned | None:
            found = super().get(key)
            if self.armed:
                self.armed = False
                newer.append(Batch.of_rows([Row(None, b"v", 0)]), 3)
            return found

    backend = Overtaken()
    stream = _made(backend, "orders")
    older, newer = (backend.copying(stream, 0, "source") for _ in range(2))
    backend.armed = True
    with pytest.raises(Fenced):
        older.append(Batch.of_rows([]), 2)
    assert backend.copying(stream, 0, "source").at == 3
    assert backend.bounds(stream, 0).end == 1
