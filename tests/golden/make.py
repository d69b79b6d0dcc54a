"""Made the golden files: bytes as Headrace writes them, decoded by every later version.

``python tests/golden/make.py`` writes what is missing. Once a version is released, its files and
the values below never change; a new format gets a directory of its own.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import stored_value
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.model import Slice, StreamInfo, even_shards
from headrace.core.ports import Append, Commit, Grant, Producer, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.to_arrow import arrow_of

HERE = Path(__file__).parent / "format1"

STORE = bytes(range(16))
ORDERS = StreamInfo(
    name="shop/orders",
    id=7,
    codec="json",
    routing="md5-range",
    retention_s=None,
    retention_bytes=None,
    created_ms=1_490_855_872_363,
    shards=even_shards(4),
)
SHARD = 2
BASE = 1_000

ODD_ROWS = [
    Row(None, None, 0),
    Row(b"", b"", 1),
    Row(b"\x00\xff\xfe", bytes(range(256)), 1_490_855_872_363, 3, 0x83),
    Row("kéy".encode(), None, 253_402_300_799_999, 2**31 - 1, 0x1FF, (), b""),
    Row(
        b"ann",
        b'{"id":1}',
        2,
        0,
        0x100,
        (("a", b"1"), ("b", None), ("a", b"2"), ("", b""), ("é", b"\xff")),
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
]
PLAIN_ROWS = [Row(b"key %d" % i, b'{"id":%d}' % i, 1_490_855_872_363 + i) for i in range(40)]
MANY_ROWS = [*ODD_ROWS, *PLAIN_ROWS]

ROW_KEY = stored_value.value_key(b"golden")
ROW_VALUE = b"a small value"
ROW_VERSION = 513

GROUP = "billing"

ATTEMPTS = Attempts(
    offset=2**63 - 1,
    failed=21,
    deaths=3,
    working=True,
    named=False,
    stopped=True,
    at_ms=1_490_855_872_365,
    code="0af76519",
    reason="ValueError: no price\nfor kéy",
)


def key_of(count: int) -> bytes:
    """Of a batch of so many records at the place above."""
    return batches.key_of(ORDERS.id, SHARD, BASE + count)


def sealed(some: list[Row]) -> bytes:
    """The batch as it is stored."""
    return bytes(
        batches.sealed(batches.encode(Batch.of_rows(some)), STORE, key_of(len(some)), BASE)
    )


def made_hub(directory: Path) -> None:
    """Two streams, batches of each kind, a producer, small values, a commit, a trimmed shard."""
    backend = LmdbBackend(directory, maintain=False)
    orders = backend.create_stream(
        StreamSpec("shop/orders", 2, "json", "md5-range", 604_800.5, 2**40, 1_490_855_872_363)
    )
    dead = backend.create_stream(
        StreamSpec("dead", 1, "bytes", "murmur2", None, None, 1_490_855_872_364)
    )
    backend.append([Append(orders, 0, Batch.of_rows(ODD_ROWS))])
    backend.append([Append(orders, 0, Batch.of_arrow(arrow_of(MANY_ROWS)))])
    backend.append([Append(orders, 0, Batch.of_arrow(arrow_of(PLAIN_ROWS)))])
    for seq in (3, 2**63 - 1):
        backend.append([Append(orders, 1, Batch.of_rows(ODD_ROWS[:2]))], Producer("producer", seq))
    backend.trim(orders, 0, 2)
    backend.transact({}, {b"golden": b"a small value", b"empty": b""})
    backend.transact({}, {store_keys.epoch_key(GROUP, orders.id, 1): b"epoch 1"})
    backend.commit(
        Commit(
            grant=Grant(GROUP, orders, 1, b"epoch 1"),
            done=Slice("shop/orders", 1, 0, 3),
            dead_letters=[Append(dead, 0, Batch.of_rows(ODD_ROWS[4:]))],
            state={b"ann": b"42"},
            story=b"told",
        )
    )
    backend.close()


def main() -> None:
    HERE.mkdir(exist_ok=True)
    contents = {
        "batch-rows": sealed(ODD_ROWS),
        "batch-arrow": sealed(MANY_ROWS),
        "batch-arrow-plain": sealed(PLAIN_ROWS),
        "attempts": ATTEMPTS.encoded(),
        "row": stored_value.sealed(ROW_KEY, ROW_VALUE, ROW_VERSION),
    }
    for name, content in contents.items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(content)
    if not (HERE / "data.mdb").exists():
        with tempfile.TemporaryDirectory() as directory:
            made_hub(Path(directory) / "hub")
            shutil.copyfile(Path(directory) / "hub" / "data.mdb", HERE / "data.mdb")


if __name__ == "__main__":
    main()
