"""Measures latency: from the append of a record until a reader has its output. Producer, replica
and reader are three processes.

The producer appends about 5 records every 5 ms, in one call, spread over all shards; the time of a
record is taken before the call. The reader waits for changes of the hub and reads every shard of
the output. The replica has the default settings.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import headrace
from headrace import Topology, computation
from headrace.streams.stream import Stream
from headrace.testing.children import until
from headrace.tools.bench.evidence import stamped_ns
from headrace.tools.bench.measure import quantile
from headrace.tools.bench.processes import STREAM, start_child

OUTPUT = "visible"
PER_SECOND = 1_000
WARM_S = 1.0
WAIT_S = 0.1


@computation(name="latency", inputs=STREAM, outputs=OUTPUT, version="1")
def pass_on(record: Any, out: Any) -> None:
    out.append(OUTPUT, record.value, key=record.key)


def latency(directory: Path, shards: int, seconds: float) -> dict[str, Any]:
    """The latency in milliseconds, without the first second. ``append_visible`` is the same without
    a topology: from the append of a record until a reader has that record."""
    with headrace.open(directory) as hub:
        for name in (STREAM, OUTPUT):
            hub.create_stream(name, shards=shards)
        alone_ms = waits_ms(directory, STREAM, seconds / 3)
        topology = Topology(replace(pass_on, start="latest"))
        with headrace.start(topology, hub) as running:
            counters = running.counters["latency"]
            until(lambda: len(running.replica.dispatcher.duties()) == shards, "all shards granted")
            waited_ms = waits_ms(directory, OUTPUT, seconds)
            assert running.wait("30s", until_caught_up=True), (
                f"the topology does not catch up: {counters.processed}"
            )
    assert counters.processed == counters.outputs, counters
    return {
        **delays(waited_ms),
        "latency_slice_records": round(counters.processed / counters.slices, 2),
        "append_visible_p50_ms": round(statistics.median(alone_ms), 2),
        "append_visible_p99_ms": round(quantile(alone_ms, 0.99), 2),
    }


def delays(waited_ms: list[float]) -> dict[str, Any]:
    return {
        "latency_p50_ms": round(statistics.median(waited_ms), 2),
        "latency_p99_ms": round(quantile(waited_ms, 0.99), 2),
        "latency_max_ms": round(max(waited_ms), 1),
        "latency_records": len(waited_ms),
    }


def waits_ms(directory: Path, stream: str, seconds: float) -> list[float]:
    """How long each record took until a reader saw it in that stream."""
    with ExitStack() as stack:
        reader = start_child(stack, "visible", directory, stream)
        assert reader.line() == "ready", "the reader did not start"
        producer = start_child(stack, "producer", directory, str(PER_SECOND))
        assert reader.line() == "first", "the reader saw nothing"
        time.sleep(WARM_S + seconds)
        reader.tell()
        waited_ms = [float(wait) for wait in reader.line().split()]
        producer.tell()
        assert producer.process.wait(30) == 0, "the producer did not end"
    return waited_ms[int(len(waited_ms) * WARM_S / (WARM_S + seconds)) :]


def main(directory: str, _: str, output: str) -> None:
    """The reader: prints when it is ready, when it has seen a record, and at the end how long each
    record took."""
    with headrace.open(directory, create=False) as hub:
        ending = threading.Event()
        waits_ms: list[float] = []
        stream = hub.stream(output)
        reading = threading.Thread(target=_read, args=(stream, waits_ms, ending))
        reading.start()
        _say("ready")
        sys.stdin.readline()  # a line, or the end of the parent process
        ending.set()
        reading.join()
        _say(" ".join(f"{wait_ms:.3f}" for wait_ms in waits_ms))


def _read(stream: Stream, waits_ms: list[float], ending: threading.Event) -> None:
    at = [stream.bounds(shard).end for shard in range(stream.shards)]
    said = False
    while not ending.is_set():
        seen = stream.changes()
        for shard in range(stream.shards):
            for record in stream.read(shard, at[shard]):
                waits_ms.append((time.monotonic_ns() - stamped_ns(record.value)) / 1e6)
                at[shard] += 1
        if waits_ms and not said:
            said = True
            _say("first")
        stream.wait(seen, WAIT_S)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
