"""Readers that do not keep up, and the producers they must not slow down."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import headrace

CHUNKS = 20
CHUNK_RECORDS = 500_000
BATCH_RECORDS = 50_000

_READER = """
import sys, headrace
stream = headrace.open(sys.argv[1]).stream("load")
for record in stream.read(0, follow=True):
    print(record.offset, flush=True)
"""


@pytest.mark.slow
def test_a_stopped_reader_does_not_slow_producers_down(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_pydict({"data": [b"0123456789"] * BATCH_RECORDS})
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("load", shards=1)
        stream.append(b"first")
        reader = subprocess.Popen(
            [sys.executable, "-c", _READER, str(tmp_path / "hub")], stdout=subprocess.PIPE
        )
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == b"0\n"
            os.kill(reader.pid, signal.SIGSTOP)
            chunks_s = []
            for _ in range(CHUNKS):
                start = time.perf_counter()
                for _ in range(CHUNK_RECORDS // BATCH_RECORDS):
                    stream.append_arrow(batch, shard=0)
                chunks_s.append(time.perf_counter() - start)
            assert stream.bounds(0) == (0, CHUNKS * CHUNK_RECORDS + 1)
            first, last = chunks_s[: CHUNKS // 4], chunks_s[-CHUNKS // 4 :]
            # Were it a queue, or a scan, the last quarter would be far slower, or stand still.
            assert statistics.median(last) < 3 * statistics.median(first), chunks_s
            assert hub.describe()["bytes_used"] < 3 * CHUNKS * CHUNK_RECORDS * 22
        finally:
            reader.kill()
            reader.wait()
            reader.stdout.close()
