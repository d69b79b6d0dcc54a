"""``headrace bench log``: the embedded hub against raw LMDB, and against a file of lines."""

from __future__ import annotations

import queue
import random
import statistics
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pyarrow as pa

import headrace
from headrace.backends.lmdb import stored_batch as batches
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.schema import SCHEMA
from headrace.tools.bench.measure import Say, alternating, quantile, timed, workplace

RECORD_BYTES = 100
BATCH_RECORDS = 1_000
ROUNDS = 7

_STORE = bytes(16)


def run(directory: Path | None, say: Say) -> dict[str, Any]:
    """All figures; ``say`` gets a line about what is being measured."""
    with workplace(directory) as place:
        figures: dict[str, Any] = {"rounds": ROUNDS, "record_bytes": RECORD_BYTES}
        for title, measure in (
            ("appending Arrow batches", _append_arrow),
            ("appending Python records", _append_records),
            ("appending single records", _append_single),
            ("appending from 8 threads", _append_threads),
            ("reading Arrow batches", _read_arrow),
            ("reading records", _read_records),
            ("waking readers of another process", _wake),
        ):
            say(title)
            figures |= measure(place)
        return figures


def _arrow_batch() -> pa.RecordBatch:
    count = BATCH_RECORDS
    now_us = time.time_ns() // 1_000_000 * 1000
    dice = random.Random(7)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"key-%06d" % dice.randrange(10**6) for _ in range(count)], pa.binary()),
            pa.array([dice.randbytes(RECORD_BYTES) for _ in range(count)], pa.binary()),
            pa.array([now_us] * count, pa.int64()).cast(pa.timestamp("us", "UTC")),
            pa.array([0] * count, pa.int32()),
            pa.array([0] * count, pa.int16()),
            pa.repeat(pa.scalar([], SCHEMA.field("headers").type), count),
            pa.nulls(count, pa.binary()),
        ],
        schema=SCHEMA,
    )


class _Raw:
    """Raw LMDB: the same values, the same transactions, the same flags."""

    def __init__(self, directory: Path) -> None:
        self._env = lmdb.open(
            str(directory), map_size=2**36, max_dbs=0, sync=True, metasync=True, writemap=False
        )
        self._next = 0

    def put(self, transactions: int, values: list[bytes]) -> float:
        def puts() -> None:
            for _ in range(transactions):
                with self._env.begin(write=True) as txn:
                    for value in values:
                        self._next += BATCH_RECORDS
                        txn.put(batches.key_of(1, 0, self._next), value)

        return timed(puts)

    def put_by_thread(self, transactions: int, values: list[bytes]) -> float:
        """The same transactions by another thread, each one requested and awaited: the best that a
        hub with one writing thread could reach."""
        asked: queue.SimpleQueue[threading.Lock | None] = queue.SimpleQueue()

        def serve() -> None:
            while (answered := asked.get()) is not None:
                self.put(1, values)
                answered.release()

        def ask() -> None:
            for _ in range(transactions):
                answered = threading.Lock()
                answered.acquire()
                asked.put(answered)
                answered.acquire(timeout=30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return timed(ask)
        finally:
            asked.put(None)
            thread.join()

    def read(self) -> float:
        def reads() -> None:
            with self._env.begin(buffers=True) as txn:
                for _, value in txn.cursor():
                    copied = bytes(value)
                    zlib.crc32(copied)
                    payload = pa.py_buffer(memoryview(copied)[batches.HEADER.size :])
                    pa.ipc.read_record_batch(payload, SCHEMA).validate(full=True)

        return timed(reads)

    def close(self) -> None:
        self._env.close()


def _stored(batch: Batch) -> bytes:
    key = batches.key_of(1, 0, len(batch))
    return bytes(batches.sealed(batches.encode(batch), _STORE, key, 0))


def _append_arrow(place: Path) -> dict[str, Any]:
    batch, times = _arrow_batch(), 60
    raw = _Raw(_made(place / "raw-arrow"))
    with headrace.open(place / "arrow") as hub:
        stream = hub.create_stream("bench", shards=1)
        value = _stored(Batch.of_arrow(batch))

        def ours() -> None:
            for _ in range(times):
                stream.append_arrow(batch, shard=0)

        raw_s, own_s, ratio = alternating(
            lambda: raw.put(times, [value]), lambda: timed(ours), ROUNDS
        )
        limit = _thread_limit(raw, times, value)
    raw.close()
    count = times * BATCH_RECORDS
    return {
        "append_ratio": round(ratio, 3),
        "append_limit": round(limit, 3),
        "append_records_per_s": round(count / own_s),
        "append_raw_records_per_s": round(count / raw_s),
    }


def _append_records(place: Path) -> dict[str, Any]:
    values = [_value(i) for i in range(BATCH_RECORDS)]
    pairs = [(value, f"key-{i:06d}") for i, value in enumerate(values)]
    times = 40
    raw = _Raw(_made(place / "raw-records"))
    with headrace.open(place / "records") as hub:
        stream = hub.create_stream("bench", shards=4, codec="json")
        stream.append_many(pairs)
        stored = [
            _stored(Batch.of_arrow(_only(stream.read_arrow(shard).read_all())))
            for shard in range(4)
        ]

        def ours() -> None:
            for _ in range(times):
                stream.append_many(pairs)

        raw_s, own_s, ratio = alternating(
            lambda: raw.put(times, stored), lambda: timed(ours), ROUNDS
        )
    raw.close()
    count = times * BATCH_RECORDS
    return {
        "append_records_ratio": round(ratio, 3),
        "append_many_records_per_s": round(count / own_s),
        "append_many_raw_records_per_s": round(count / raw_s),
    }


def _append_single(place: Path) -> dict[str, Any]:
    data, times = random.Random(7).randbytes(RECORD_BYTES), 400
    raw = _Raw(_made(place / "raw-single"))
    with headrace.open(place / "single") as hub:
        stream = hub.create_stream("bench", shards=1)
        value = _stored(Batch.of_rows([Row(b"key-000001", data, time.time_ns() // 1_000_000)]))

        def ours() -> None:
            for _ in range(times):
                stream.append(data, "key-000001")

        raw_s, own_s, ratio = alternating(
            lambda: raw.put(times, [value]), lambda: timed(ours), ROUNDS
        )
        limit = _thread_limit(raw, times, value)
    raw.close()
    return {
        "single_ratio": round(ratio, 3),
        "single_limit": round(limit, 3),
        "single_ms": round(own_s / times * 1e3, 3),
        "single_raw_ms": round(raw_s / times * 1e3, 3),
    }


def _thread_limit(raw: _Raw, times: int, value: bytes) -> float:
    _, _, ratio = alternating(
        lambda: raw.put(times, [value]), lambda: raw.put_by_thread(times, [value]), ROUNDS
    )
    return ratio


def _append_threads(place: Path) -> dict[str, Any]:
    data, times, threads = random.Random(7).randbytes(RECORD_BYTES), 800, 8
    with headrace.open(place / "threads") as hub:
        stream = hub.create_stream("bench", shards=4)

        def appends(count: int) -> None:
            for i in range(count):
                stream.append(data, f"key-{i:06d}")

        def from_threads() -> None:
            running = [
                threading.Thread(target=appends, args=(times // threads,)) for _ in range(threads)
            ]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()

        one_s, many_s, ratio = alternating(
            lambda: timed(lambda: appends(times)), lambda: timed(from_threads), ROUNDS
        )
    return {
        "threads_ratio": round(ratio, 3),
        "threads1_records_per_s": round(times / one_s),
        "threads8_records_per_s": round(times / many_s),
    }


def _read_arrow(place: Path) -> dict[str, Any]:
    batch, times = _arrow_batch(), 300
    value = _stored(Batch.of_arrow(batch))
    raw = _Raw(_made(place / "raw-read"))
    raw.put(1, [value] * times)
    with headrace.open(place / "read") as hub:
        stream = hub.create_stream("bench", shards=1)
        for _ in range(times):
            stream.append_arrow(batch, shard=0)

        def ours() -> None:
            rows = sum(found.num_rows for found in stream.read_arrow(0))
            assert rows == times * BATCH_RECORDS, rows

        raw_s, own_s, ratio = alternating(raw.read, lambda: timed(ours), ROUNDS)
    raw.close()
    count = times * BATCH_RECORDS
    return {
        "read_ratio": round(ratio, 3),
        "read_records_per_s": round(count / own_s),
        "read_raw_records_per_s": round(count / raw_s),
    }


def _read_records(place: Path) -> dict[str, Any]:
    count = 200 * BATCH_RECORDS
    values = [_value(i) for i in range(count)]
    lines = place / "values.jsonl"
    lines.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
    decode = msgspec.json.Decoder().decode

    def from_lines() -> None:
        with lines.open("rb") as file:
            total = sum(decode(line)["id"] for line in file)
        assert total == count * (count - 1) // 2, total

    with headrace.open(place / "as-records") as hub:
        stream = hub.create_stream("bench", shards=1, codec="json")
        for at in range(0, count, BATCH_RECORDS):
            stream.append_many([(value, None) for value in values[at : at + BATCH_RECORDS]])

        def ours() -> None:
            total = sum(record.value["id"] for record in stream.read(0))
            assert total == count * (count - 1) // 2, total

        lines_s, own_s, ratio = alternating(lambda: timed(from_lines), lambda: timed(ours), ROUNDS)
    return {
        "records_ratio": round(ratio, 3),
        "records_per_s": round(count / own_s),
        "records_lines_per_s": round(count / lines_s),
    }


WAKE_RECORDS = 300
_FOLLOWER = """
import sys, time, headrace
stream = headrace.open(sys.argv[1]).stream("bench")
print("ready", flush=True)
for record in stream.read(0, "latest", follow=True):
    print(time.monotonic_ns() - int(record.data), flush=True)
"""


def _wake(place: Path) -> dict[str, Any]:
    """The time from the call of append here until a reader in another process has the record."""
    dice = random.Random(7)
    with headrace.open(place / "wake") as hub:
        stream = hub.create_stream("bench", shards=1)
        reader = subprocess.Popen(
            [sys.executable, "-c", _FOLLOWER, str(place / "wake")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "ready\n", "the reader did not start"
            waits_ms = []
            for _ in range(WAKE_RECORDS):
                time.sleep(dice.uniform(0.005, 0.040))  # at irregular times, as real records come
                stream.append(b"%d" % time.monotonic_ns())
                waits_ms.append(int(reader.stdout.readline()) / 1e6)
        finally:
            reader.kill()
            reader.wait()
            reader.stdout.close()
    return {
        "wake_p50_ms": round(statistics.median(waits_ms), 2),
        "wake_p99_ms": round(quantile(waits_ms, 0.99), 2),
    }


def _value(i: int) -> dict[str, Any]:
    """A value of about 100 bytes as JSON."""
    return {
        "id": i,
        "customer": f"customer-{i % 1000:04d}",
        "amount": i % 977 / 8,
        "note": "n" * 40,
    }


def _only(table: pa.Table) -> pa.RecordBatch:
    return (
        table.drop_columns(["offset"])
        .replace_schema_metadata(None)
        .combine_chunks()
        .to_batches()[0]
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
