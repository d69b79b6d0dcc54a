"""A damaged batch is named, never delivered, and hinders no other."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb import stored_batch as batches
from tests.harness.faults import raw_store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=2)
        for shard in (0, 1):
            for number in range(5):
                pairs = [(b"%d %d" % (shard, number), b"k")] * (1 if number % 2 else 30)
                stream.append_many(pairs, shard=shard)
    return tmp_path / "hub"


def _flipped(value: bytes, at: int) -> bytes:
    changed = bytearray(value)
    changed[at] ^= 0x10
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda value: _flipped(value, 0),
    "format": lambda value: _flipped(value, 4),
    "kind": lambda value: _flipped(value, 5),
    "columns": lambda value: _flipped(value, 6),
    "store": lambda value: _flipped(value, 10),
    "shard": lambda value: _flipped(value, 28),
    "base": lambda value: _flipped(value, 32),
    "count": lambda value: _flipped(value, 40),
    "times": lambda value: _flipped(value, 50),
    "checksum": lambda value: _flipped(value, 65),
    "first byte": lambda value: _flipped(value, 68),
    "last byte": lambda value: _flipped(value, len(value) - 1),
    "cut": lambda value: value[:-1],
    "cut to the header": lambda value: value[:68],
    "cut into the header": lambda value: value[:20],
    "longer": lambda value: value + b"\0",
}


@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_anywhere_in_a_batch_is_named_and_the_others_stay_readable(
    directory: Path, damage: str, which: int
) -> None:
    with raw_store.store(directory) as txn:
        keys = raw_store.batch_keys(txn, 1, 0)
        start, end = batches.place_of(keys[which - 1])[2], batches.place_of(keys[which])[2]
        txn.put(keys[which], DAMAGES[damage](bytes(txn.get(keys[which]))))
    with headrace.open(directory) as hub:
        stream = hub.stream("a")
        read: list[int] = []
        with pytest.raises(headrace.BadBatch, match="damaged batch a:0, offsets") as told:
            read.extend(record.offset for record in stream.read(0))
        assert (told.value.stream, told.value.shard, told.value.end) == ("a", 0, end)
        assert told.value.start in (start, end - 1)
        assert read == list(range(start))
        assert [r.offset for r in stream.read(0, end)] == list(range(end, 92))
        assert len(list(stream.read(1))) == 92
        with pytest.raises(headrace.BadBatch):
            stream.read_arrow(0).read_all()


def test_a_batch_under_another_shards_key_is_refused(directory: Path) -> None:
    with raw_store.store(directory) as txn:
        own, other = raw_store.batch_keys(txn, 1, 0), raw_store.batch_keys(txn, 1, 1)
        txn.put(own[2], txn.get(other[2]))
    with (
        headrace.open(directory) as hub,
        pytest.raises(headrace.BadBatch, match="belongs elsewhere"),
    ):
        list(hub.stream("a").read(0))


def test_a_checksum_that_leaves_out_the_key_is_refused(directory: Path) -> None:
    with raw_store.store(directory) as txn:
        key = raw_store.batch_keys(txn, 1, 0)[2]
        value = bytes(txn.get(key))
        head, payload = value[: batches.HEADER.size - 4], value[batches.HEADER.size :]
        keyless = zlib.crc32(head, zlib.crc32(payload)).to_bytes(4, "little")
        txn.put(key, head + keyless + payload)
    with headrace.open(directory) as hub, pytest.raises(headrace.BadBatch, match="checksum"):
        list(hub.stream("a").read(0))


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_batch_is_noticed(directory: Path, missing: int) -> None:
    with raw_store.store(directory) as txn:
        keys = raw_store.batch_keys(txn, 1, 0)
        end = batches.place_of(keys[missing])[2]
        start = batches.place_of(keys[missing - 1])[2] if missing else 0
        txn.delete(keys[missing])
    with headrace.open(directory) as hub:
        stream = hub.stream("a")
        with pytest.raises(headrace.BadBatch, match="missing") as told:
            list(stream.read(0))
        assert (told.value.start, told.value.end) == (start, end)
        assert [r.offset for r in stream.read(0, end)] == list(range(end, 92))


def test_a_damaged_last_batch_refuses_appends_behind_it(directory: Path) -> None:
    with raw_store.store(directory) as txn:
        txn.put(raw_store.batch_keys(txn, 1, 0)[-1], b"nonsense")
    with headrace.open(directory) as hub:
        stream = hub.stream("a")
        with pytest.raises(headrace.BadBatch, match="offsets 91 to 91"):
            stream.append(b"x", shard=0)
        assert stream.append(b"x", shard=1).offset == 92


def test_a_damaged_small_row_refuses_the_hub(directory: Path) -> None:
    from headrace.backends.lmdb import stored_value

    with raw_store.store(directory) as txn:
        key = stored_value.shard_key(1, 1)
        txn.put(key, _flipped(bytes(txn.get(key)), 15))
    with pytest.raises(headrace.BadStored, match="checksum"):
        headrace.open(directory)
