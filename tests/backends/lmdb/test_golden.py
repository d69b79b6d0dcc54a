"""Bytes on disk: what one version wrote, every later one reads."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import msgspec
import pytest

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.lmdb.environment import STORE_FORMAT, Identity
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.errors import BadBatch, BadStored, NewerFormat, SequenceForgotten
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import Bounds, StreamInfo, even_shards
from headrace.core.ports import Append, Place, Producer, Versioned
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.transaction import state_entry
from headrace.testing.contracts.backend_under_test import plain, read_rows
from tests.golden import make
from tests.golden.make import BASE, GROUP, MANY_ROWS, ODD_ROWS, ORDERS, PLAIN_ROWS, SHARD, STORE

BATCHES = pytest.mark.parametrize(
    ("file", "expected"),
    [("batch-rows", ODD_ROWS), ("batch-arrow", MANY_ROWS), ("batch-arrow-plain", PLAIN_ROWS)],
    ids=["rows", "arrow", "arrow-plain"],
)


def _golden(name: str) -> bytes:
    return (make.HERE / name).read_bytes()


def test_keys_have_not_changed() -> None:
    assert make.key_of(5) == bytes.fromhex("52000000070000000200000000000003ed")
    assert make.ROW_KEY == b"Vgolden"


@BATCHES
def test_every_field_of_a_stored_batch_is_read(file: str, expected: list[Row]) -> None:
    batch = batches.decode(ORDERS, STORE, make.key_of(len(expected)), _golden(file))
    assert [plain(row) for row in batch.rows] == expected
    assert list(batch.offsets) == list(range(BASE, BASE + len(expected)))
    assert (batch.stream, batch.shard) == (ORDERS.name, SHARD)
    batch.arrow.validate(full=True)


@BATCHES
def test_the_header_of_a_stored_batch_has_not_changed(file: str, expected: list[Row]) -> None:
    stored = _golden(file)
    times = [row.timestamp for row in expected]
    assert batches.header(STORE, make.key_of(len(expected)), stored)[:-1] == (
        b"HdRc",
        1,
        batches.KIND_ROWS if file == "batch-rows" else batches.KIND_ARROW,
        0,
        STORE,
        7,
        SHARD,
        BASE,
        len(expected),
        len(stored) - 68,
        min(times),
        max(times),
    )


def test_rows_are_written_as_they_were() -> None:
    assert make.sealed(ODD_ROWS) == _golden("batch-rows")


def test_a_small_row_is_read_and_written_as_it_was() -> None:
    stored = _golden("row")
    expected = Versioned(make.ROW_VALUE, make.ROW_VERSION)
    assert stored_value.opened(make.ROW_KEY, stored) == expected
    assert stored_value.sealed(make.ROW_KEY, make.ROW_VALUE, make.ROW_VERSION) == stored


def test_attempts_are_read_and_written_as_they_were() -> None:
    stored = _golden("attempts")
    assert Attempts.decoded(stored) == make.ATTEMPTS
    assert make.ATTEMPTS.encoded() == stored
    flags = [Attempts(working=True), Attempts(named=True), Attempts(stopped=True)]
    assert [flag.encoded()[1] for flag in flags] == [1, 2, 4]


# What a newer version writes


def test_attempts_of_a_newer_format_or_cut_short_are_refused() -> None:
    stored = _golden("attempts")
    with pytest.raises(NewerFormat, match="newer Headrace"):
        Attempts.decoded(b"\x02" + stored[1:])
    for damaged in (b"", stored[:-1], stored[:20], stored + b"x"):
        with pytest.raises(BadStored, match="damaged attempts"):
            Attempts.decoded(damaged)


def _resealed_batch(stored: bytes, key: bytes) -> bytes:
    """With the checksum that fits, so that nothing but the change itself is wrong."""
    head, payload = stored[: batches.HEADER.size - 4], stored[batches.HEADER.size :]
    crc = zlib.crc32(key, zlib.crc32(head, zlib.crc32(payload)))
    return head + crc.to_bytes(4, "little") + payload


@BATCHES
@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [(4, 2, "unknown format 2"), (5, 3, "kind 3"), (5, 0, "kind 0"), (0, 0, "does not begin")],
)
def test_a_batch_of_another_format_or_kind_is_refused(
    file: str, expected: list[Row], at: int, byte: int, why: str
) -> None:
    key = make.key_of(len(expected))
    stored = _golden(file)
    assert _resealed_batch(stored, key) == stored
    changed = _resealed_batch(stored[:at] + bytes([byte]) + stored[at + 1 :], key)
    with pytest.raises(BadBatch, match=why) as caught:
        batches.decode(ORDERS, STORE, key, changed)
    assert (caught.value.start, caught.value.end) == (BASE, BASE + len(expected))


@BATCHES
def test_a_batch_under_another_key_or_of_another_store_is_refused(
    file: str, expected: list[Row]
) -> None:
    key = make.key_of(len(expected))
    stored = _golden(file)
    elsewhere = [
        (STORE, make.key_of(len(expected) + 1)),
        (STORE, batches.key_of(ORDERS.id, SHARD + 1, BASE + len(expected))),
        (STORE, batches.key_of(ORDERS.id + 1, SHARD, BASE + len(expected))),
        (STORE[::-1], key),
    ]
    for store, other in elsewhere:
        with pytest.raises(BadBatch, match="it belongs elsewhere"):
            batches.decode(ORDERS, store, other, stored)


def test_a_value_of_a_newer_format_is_refused() -> None:
    stored = _golden("row")
    head, value = b"\x02" + stored[1:9], stored[13:]
    crc = zlib.crc32(make.ROW_KEY, zlib.crc32(head, zlib.crc32(value)))
    with pytest.raises(NewerFormat, match="has format 2, this Headrace knows 1: upgrade it"):
        stored_value.opened(make.ROW_KEY, head + crc.to_bytes(4, "little") + value)
    with pytest.raises(BadStored, match="wrong checksum"):
        stored_value.opened(b"Vother", stored)


# A whole hub


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "hub"
    found.mkdir()
    shutil.copyfile(make.HERE / "data.mdb", found / "data.mdb")
    return found


@pytest.fixture
def backend(directory: Path) -> Iterator[LmdbBackend]:
    backend = LmdbBackend(directory, create=False, maintain=False)
    yield backend
    backend.close()


def test_a_stored_hub_is_small_enough_to_keep() -> None:
    assert (make.HERE / "data.mdb").stat().st_size < 200_000


def test_the_streams_of_a_stored_hub_have_not_changed(backend: LmdbBackend) -> None:
    assert backend.streams() == [
        StreamInfo(
            name="dead",
            id=2,
            codec="bytes",
            routing="murmur2",
            retention_s=None,
            retention_bytes=None,
            created_ms=1_490_855_872_364,
            shards=even_shards(1),
        ),
        StreamInfo(
            name="shop/orders",
            id=1,
            codec="json",
            routing="md5-range",
            retention_s=604_800.5,
            retention_bytes=2**40,
            created_ms=1_490_855_872_363,
            shards=even_shards(2),
        ),
    ]


def test_the_records_of_a_stored_hub_have_not_changed(backend: LmdbBackend) -> None:
    orders, dead = backend.stream("shop/orders"), backend.stream("dead")
    every = [*ODD_ROWS, *MANY_ROWS, *PLAIN_ROWS]
    assert backend.bounds(orders, 0) == Bounds(2, len(every))
    assert read_rows(backend, orders, 0) == dict(enumerate(every[2:], 2))
    assert read_rows(backend, orders, 1) == dict(enumerate(ODD_ROWS[:2] * 2))
    assert read_rows(backend, dead) == {0: ODD_ROWS[4]}


def test_the_values_of_a_stored_hub_have_not_changed(backend: LmdbBackend) -> None:
    found = backend.get(b"golden"), backend.get(b"empty")
    assert [one.value for one in found if one] == [b"a small value", b""]
    checkpoint = backend.get(store_keys.checkpoint_key(GROUP, 1, 1))
    assert checkpoint is not None
    assert Checkpoint.decoded(checkpoint.value) == Checkpoint(3, 1)
    rows = backend.scan(store_keys.state_prefix(GROUP, 1, 1))
    state = [state_entry(row.value) for _, row in rows]
    assert state == [(b"ann", b"42")]
    stories = [row.value for _, row in backend.scan(store_keys.story_prefix(GROUP, 1, 1))]
    assert [story[-4:] for story in stories] == [b"told"]


def test_a_stored_hub_is_written_on(backend: LmdbBackend) -> None:
    orders = backend.stream("shop/orders")
    again = [Append(orders, 1, Batch.of_rows(ODD_ROWS[:2]))]
    assert backend.append(again, Producer("producer", 3)) == [Place(1, 0)]
    assert backend.append(again, Producer("producer", 2**63 - 1)) == [Place(1, 2)]
    with pytest.raises(SequenceForgotten):
        backend.append(again, Producer("producer", 4))
    assert backend.append(again) == [Place(1, 4)]
    assert len(read_rows(backend, orders, 1)) == 6
    found = backend.get(b"golden")
    assert found is not None
    assert backend.transact({b"golden": found.version}, {b"golden": b"new"})
    written = backend.get(b"golden")
    assert written is not None
    assert written.version > found.version


def _change(directory: Path, change: Callable[[Identity], Identity]) -> None:
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as txn:
        stored = txn.get(b"headrace")
        assert stored is not None
        opened = stored_value.opened(b"headrace", stored)
        identity = msgspec.msgpack.decode(opened.value, type=Identity)
        changed = msgspec.msgpack.encode(change(identity))
        txn.put(b"headrace", stored_value.sealed(b"headrace", changed, txn.id()))


def test_a_hub_of_a_newer_format_is_refused(directory: Path) -> None:
    newer = STORE_FORMAT + 1
    _change(directory, lambda identity: msgspec.structs.replace(identity, format=newer))
    with pytest.raises(
        NewerFormat, match=f"has format {newer}, this Headrace knows {STORE_FORMAT}: upgrade it"
    ):
        LmdbBackend(directory)


def test_a_hub_that_took_another_identity_delivers_nothing(directory: Path) -> None:
    _change(directory, lambda identity: msgspec.structs.replace(identity, store=bytes(16)))
    backend = LmdbBackend(directory)
    with pytest.raises(BadBatch, match="it belongs elsewhere"):
        read_rows(backend, backend.stream("shop/orders"), 0)
    backend.close()
