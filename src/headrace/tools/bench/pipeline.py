"""``headrace bench pipeline``: a topology of one computation on the embedded hub, against a thread
without a topology.

The function is the same on both sides: one output for each input, with its value and key. So are
the records, the streams (4 shards each) and the hub.

*Ours* is one lane of a replica, from its first slice to its last commit, without joining and
leaving. Beyond the work of the peer, the lane asks for slices and reports them, follows which
record each output was made from, passes on its time and trace, checks the grant, and stores
checkpoint and story in the commit of the outputs.

*The peer* is what a careful user would write without Headrace's computations. It reads one shard
after the other with ``Stream.read``, calls the function with each record, gathers the outputs, and
appends them with ``Stream.append_many``, durable on return, as often as the lane commits: its
batches are as large as the slices of the lane's last run were on average. It has no group and no
checkpoint: after a kill it begins again and doubles everything.

The engine ``spark`` has another comparison: `on_spark`.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import headrace
from headrace import Topology, computation
from headrace.core.computations.computation import Computation
from headrace.core.errors import BadSetting
from headrace.hub.hub import Hub
from headrace.replica.counters import Counters
from headrace.streams.stream import Stream
from headrace.tools.bench import on_spark
from headrace.tools.bench.measure import Say, alternating, timed, workplace
from headrace.tools.bench.visible import latency

ENGINES = ("local", "spark")
RECORD_BYTES = 100
BATCH_RECORDS = 1_000
SHARDS = 4
KEYS = 1_000
RECORDS = 300_000
ROUNDS = 9
SECONDS = 15.0
LOOK_S = 0.002
DONE_S = 120.0


def run(
    directory: Path | None,
    say: Say,
    engine: str = "local",
    *,
    records: int = RECORDS,
    rounds: int | None = None,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """All figures; ``say`` gets a line about what is being measured."""
    if engine not in ENGINES:
        raise BadSetting(f"no engine {engine!r} in this benchmark: one of {', '.join(ENGINES)}")
    if engine == "spark":
        rounds = on_spark.ROUNDS if rounds is None else rounds
        return on_spark.run(directory, say, records=records, rounds=rounds, seconds=seconds)
    rounds = ROUNDS if rounds is None else rounds
    dice = random.Random(7)
    figures: dict[str, Any] = {"engine": engine, "rounds": rounds, "record_bytes": RECORD_BYTES}
    with workplace(directory) as place:
        with headrace.open(place / "bytes") as hub:
            say("a lane and a thread in turns, bytes")
            many = _compared(hub, "bytes", lambda _: dice.randbytes(RECORD_BYTES), records, rounds)
            figures |= {
                "trivial_ratio": many["ratio"],
                "trivial_cpu_ratio": many["cpu_ratio"],
                "records_per_s": many["records_per_s"],
                "peer_records_per_s": many["peer_records_per_s"],
                "slice_records": many["slice_records"],
                "commits": many["commits"],
            }
        with headrace.open(place / "json") as hub:
            say("a lane and a thread in turns, json")
            many = _compared(hub, "json", _order, records, rounds)
            figures |= {
                "json_ratio": many["ratio"],
                "json_cpu_ratio": many["cpu_ratio"],
                "json_records_per_s": many["records_per_s"],
                "json_peer_records_per_s": many["peer_records_per_s"],
                "json_slice_records": many["slice_records"],
            }
        say(f"records that come for {seconds:g} s")
        return figures | latency(place / "latency", SHARDS, seconds)


class _Copying:
    """The function of the computation, and when it was first made ready."""

    def __init__(self, output: str) -> None:
        self.began_s: float | None = None
        self.began_cpu_s = 0.0

        def copy(record: Any, out: Any) -> None:
            out.append(output, record.value, key=record.key)

        self.copy = copy

    def computation(self, name: str, inputs: str, outputs: str) -> Computation:
        copying = self

        class Copy:
            process = staticmethod(copying.copy)

            def init(self) -> None:
                if copying.began_s is None:
                    copying.began_s = time.perf_counter()
                    copying.began_cpu_s = time.process_time()

        return computation(name=name, inputs=inputs, outputs=outputs, version="1")(Copy)


class _Pairs:
    """What the function of the peer gets as ``out``."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, str | None]] = []

    def append(self, stream: str, value: Any, key: str | None = None) -> None:
        self.pairs.append((value, key))


def _order(number: int) -> dict[str, Any]:
    """A value of about 100 bytes as JSON."""
    return {
        "id": number,
        "customer": f"customer-{number % 1000:04d}",
        "amount": number % 977 / 8,
        "note": "n" * 40,
    }


def _compared(
    hub: Hub, codec: str, value: Callable[[int], Any], records: int, rounds: int
) -> dict[str, Any]:
    source = hub.create_stream("source", shards=SHARDS, codec=codec)
    target = hub.create_stream("target", shards=SHARDS, codec=codec)
    for at in range(0, records, BATCH_RECORDS):
        some = range(at, min(at + BATCH_RECORDS, records))
        source.append_many([(value(i), f"key-{i % KEYS:06d}") for i in some])
    numbers = itertools.count()
    counted: list[Counters] = []
    own_cpu_s: list[float] = []
    peer_cpu_s: list[float] = []

    def ours() -> float:
        took_s, cpu_s, counters = _run_lane(hub, f"copy{next(numbers)}", records)
        counted.append(counters)
        own_cpu_s.append(cpu_s)
        _empty(target, records)
        return took_s

    def peer() -> float:
        began_cpu_s = time.process_time()
        took_s = timed(lambda: _run_peer(source, target, -(-records // counted[-1].slices)))
        peer_cpu_s.append(time.process_time() - began_cpu_s)
        _empty(target, records)
        return took_s

    ours()  # the first run is not counted: it shows how large slices are
    peer_s, own_s, ratio = alternating(peer, ours, rounds)
    slices = counted[-1].slices
    return {
        "ratio": round(ratio, 3),
        "cpu_ratio": round(statistics.median(peer_cpu_s) / statistics.median(own_cpu_s), 3),
        "records_per_s": round(records / own_s),
        "peer_records_per_s": round(records / peer_s),
        "slice_records": round(records / slices),
        "commits": slices,
    }


def _run_lane(hub: Hub, name: str, records: int) -> tuple[float, float, Counters]:
    """Run one lane in a new group; return its time, the processor time of all threads, and its
    counters."""
    copying = _Copying("target")
    topology = Topology(copying.computation(name, "source", "target"))
    with headrace.start(topology, hub, lanes=1) as running:
        counters = running.counters[name]
        until_s = time.monotonic() + DONE_S
        while counters.processed < records:
            assert time.monotonic() < until_s, f"{counters.processed} of {records} are done"
            time.sleep(LOOK_S)
        ended_s, ended_cpu_s = time.perf_counter(), time.process_time()
    assert copying.began_s is not None, "no slice has begun"
    assert counters.processed == counters.outputs == records, counters
    return ended_s - copying.began_s, ended_cpu_s - copying.began_cpu_s, counters


def _run_peer(source: Stream, target: Stream, batch: int) -> None:
    """Copy all records as the peer does."""
    copy, out = _Copying("target").copy, _Pairs()
    for shard in range(SHARDS):
        for record in source.read(shard):
            copy(record, out)
            if len(out.pairs) >= batch:
                target.append_many(out.pairs)
                out.pairs = []
    if out.pairs:
        target.append_many(out.pairs)


def _empty(stream: Stream, records: int) -> None:
    """Check that all outputs are there, and empty the stream for the next turn."""
    bounds = [stream.bounds(shard) for shard in range(SHARDS)]
    assert sum(end - start for start, end in bounds) == records, bounds
    for shard, (_, end) in enumerate(bounds):
        stream.trim(shard, end)
