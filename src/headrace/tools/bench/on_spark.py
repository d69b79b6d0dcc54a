"""``headrace bench pipeline --engine spark``: the same topologies with lanes as threads, as
processes and as Spark tasks, in turns in one run.

*Throughput*: 2 lanes each on the same hub and the same records, from the first commit to the last,
as the dispatcher counts them, without the start and the end of lanes. The figures are medians over
rounds in which each engine has one turn.

*Latency*: from the append of a record until a reader has its output, in three processes as with the
local engine; through one computation with streams of 4 shards, and through five computations with
two lanes each: ``latency5`` with a shard for each of those lanes, ``latency5_wide`` with 4 shards.

*At rest*: the processor time of ten lanes that wait for records. ``idle_cpu`` is the time of all
Python workers of Spark and the daemon that forked them.

*Start*: from a fresh session to the first finished record, as ``headrace run`` does it.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.hub.hub import Hub
from headrace.spark import SparkSettings, spark_session
from headrace.streams.stream import Stream
from headrace.testing.children import until
from headrace.tools.bench import flows, usage
from headrace.tools.bench.flows import LINK_LANES, LINKS, SOURCE, TARGET, VISIBLE
from headrace.tools.bench.measure import Say, in_turns, workplace
from headrace.tools.bench.processes import STREAM
from headrace.tools.bench.visible import delays, waits_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD_BYTES = 100
BATCH_RECORDS = 1_000
SHARDS = 4
KEYS = 1_000
LANES = 2
CHAIN_LANES = LINKS * LINK_LANES
RECORDS = 300_000
WORKED_SHARE = 3
"""The handler that works gets one record in this many."""
ROUNDS = 7
SECONDS = 15.0
LOOK_S = 0.002
DONE_S = 300.0
ENGINES = ("threads", "processes", "spark")


def run(
    directory: Path | None,
    say: Say,
    *,
    records: int = RECORDS,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """All figures; ``say`` gets a line about what is being measured."""
    figures: dict[str, Any] = {
        "engine": "spark",
        "rounds": rounds,
        "record_bytes": RECORD_BYTES,
        "lanes": LANES,
    }
    with workplace(directory) as place, headrace.open(place / "records") as hub:
        make_source(hub, records)
        say("starting Spark")
        began_s = time.perf_counter()
        with spark_session(CHAIN_LANES, SparkSettings()) as session:
            session_s = time.perf_counter() - began_s
            figures |= _started(hub, session, session_s)
            say("threads, processes and Spark in turns")
            figures |= _compared(hub, session, "copying", records, rounds)
            say("threads, processes and Spark in turns, with a handler that works")
            some = hub_of_some(place, records // WORKED_SHARE)
            with some:
                worked = _compared(some, session, "working", records // WORKED_SHARE, rounds)
            figures |= {f"worked_{name}": value for name, value in worked.items()}
            say(f"records that come for {seconds:g} s, through one computation")
            figures |= _late(place / "one", session, "passing", LANES, SHARDS, seconds)
            say(f"records that come for {seconds:g} s, through five computations")
            for prefix, shards in (("latency5_", LINK_LANES), ("latency5_wide_", SHARDS)):
                five = _late(place / prefix, session, "chain", CHAIN_LANES, shards, seconds)
                figures |= {name.replace("latency_", prefix): five[name] for name in five}
            say(f"waiting for {seconds:g} s")
            figures |= _waited(place / "latency5_wide_", session, seconds)
    return figures


def make_source(hub: Hub, records: int) -> None:
    """Make a stream full of records, and an empty one for the outputs."""
    dice = random.Random(7)
    source = hub.create_stream(SOURCE, shards=SHARDS)
    hub.create_stream(TARGET, shards=SHARDS)
    for at in range(0, records, BATCH_RECORDS):
        some = range(at, min(at + BATCH_RECORDS, records))
        source.append_many([(dice.randbytes(RECORD_BYTES), f"key-{i % KEYS:06d}") for i in some])


def hub_of_some(place: Path, records: int) -> Hub:
    hub = headrace.open(place / "some")
    make_source(hub, records)
    return hub


def _started(hub: Hub, session: SparkSession, session_s: float) -> dict[str, Any]:
    began_s = time.perf_counter()
    with flows.start("copying", hub, spark=session, lanes=LANES) as running:
        lanes_s = time.perf_counter() - began_s
        counters = running.counters["copy"]
        _wait(lambda: counters.processed > 0, "a first record")
        first_s = time.perf_counter() - began_s - lanes_s
        _wait(lambda: running.replica.dispatcher.is_idle and running.caught_up(), "all records")
    _empty(hub.stream(TARGET))
    flows.forget(hub, "copying")
    return {
        "start_s": round(session_s + lanes_s + first_s, 2),
        "start_session_s": round(session_s, 2),
        "start_lanes_s": round(lanes_s, 2),
        "start_first_s": round(first_s, 2),
    }


# Throughput


def _compared(
    hub: Hub, session: SparkSession, name: str, records: int, rounds: int
) -> dict[str, Any]:
    how: dict[str, dict[str, Any]] = {
        "threads": {},
        "processes": {"processes": True},
        "spark": {"spark": session},
    }
    found: dict[str, list[Piped]] = {engine: [] for engine in ENGINES}

    def turn(engine: str) -> float:
        found[engine].append(piped(hub, name, records, **how[engine]))
        return found[engine][-1].records_per_s

    rates = in_turns({engine: partial(turn, engine) for engine in ENGINES}, rounds)
    return {
        "spark_vs_threads": _ratio(rates, "spark", "threads"),
        "spark_vs_processes": _ratio(rates, "spark", "processes"),
        **{f"{each}_records_per_s": round(statistics.median(rates[each])) for each in ENGINES},
        **{f"{each}_cpu_us": round(_median_cpu_us(found[each]), 2) for each in ENGINES},
        **{f"{each}_slice_records": round(records / found[each][-1].slices) for each in ENGINES},
    }


def _median_cpu_us(found: list[Piped]) -> float:
    return statistics.median(each.cpu_us for each in found)


def _ratio(rates: Mapping[str, list[float]], ours: str, peer: str) -> float:
    pairs = zip(rates[ours], rates[peer], strict=True)
    return round(statistics.median(mine / theirs for mine, theirs in pairs), 3)


class Piped(NamedTuple):
    """The figures of a run between its first commit and its last."""

    records_per_s: float
    cpu_us: float
    """Processor time per record, of all processes together."""
    slices: int


def piped(hub: Hub, name: str, records: int, **how: Any) -> Piped:
    """Run all records through a topology of one computation."""
    with flows.start(name, hub, lanes=LANES, **how) as running:
        (counters,) = running.counters.values()
        _wait(lambda: counters.processed > 0, "a first commit")
        involved = [os.getpid(), *usage.below(os.getpid())]
        began_s, began_cpu_s = time.perf_counter(), sum(map(usage.cpu_s, involved))
        before = counters.processed
        _wait(lambda: counters.processed >= records, f"{records} records")
        took_s = time.perf_counter() - began_s
        cpu_s = sum(map(usage.cpu_s, involved)) - began_cpu_s
    assert counters.processed == counters.outputs == records, counters
    assert _empty(hub.stream(TARGET)) == records, "outputs are missing"
    flows.forget(hub, name)
    rest = max(records - before, 1)
    return Piped(rest / took_s, cpu_s / rest * 1e6, counters.slices)


def _empty(stream: Stream) -> int:
    """Empty a stream; return how many records it had."""
    bounds = [stream.bounds(shard) for shard in range(stream.shards)]
    for shard, (_, end) in enumerate(bounds):
        stream.trim(shard, end)
    return sum(end - start for start, end in bounds)


def _wait(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + DONE_S
    while not condition():
        assert time.monotonic() < until_s, f"not within {DONE_S:g} s: {what}"
        time.sleep(LOOK_S)


# Latency


def _late(
    directory: Path, session: SparkSession, name: str, lanes: int, shards: int, seconds: float
) -> dict[str, Any]:
    """The latency from append to output in milliseconds; each stream has ``shards`` shards."""
    with headrace.open(directory) as hub:
        for stream in (STREAM, *(f"link{number}" for number in range(1, LINKS)), VISIBLE):
            hub.create_stream(stream, shards=shards)
        with flows.start(name, hub, spark=session, lanes=lanes) as running:
            held = shards * len(running.topology.computations)
            until(lambda: len(running.replica.dispatcher.duties()) == held, "all shards granted")
            waited_ms = waits_ms(directory, VISIBLE, seconds)
            assert running.wait("60s", until_caught_up=True), "it does not catch up"
            counted = list(running.counters.values())
    slices = sum(counters.slices for counters in counted)
    done = sum(counters.processed for counters in counted)
    return {**delays(waited_ms), "latency_slice_records": round(done / max(slices, 1), 2)}


# At rest


def _waited(directory: Path, session: SparkSession, seconds: float) -> dict[str, Any]:
    """The processor time of ten idle lanes, as shares of a core."""
    java = java_process(session)
    with (
        headrace.open(directory) as hub,
        flows.start("chain", hub, spark=session, lanes=CHAIN_LANES) as running,
    ):
        shards = SHARDS * LINKS
        until(lambda: len(running.replica.dispatcher.duties()) == shards, "all shards granted")
        assert running.wait("60s", until_caught_up=True), "it does not catch up"
        workers = usage.below(java)
        parts = {"idle": workers, "idle_jvm": [java], "idle_driver": [os.getpid()]}
        before = {part: sum(map(usage.cpu_s, those)) for part, those in parts.items()}
        began_s = time.monotonic()
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        spent = {part: sum(map(usage.cpu_s, those)) for part, those in parts.items()}
        held = usage.memory(workers)
    return {
        **{f"{part}_cpu": round((spent[part] - before[part]) / took_s, 4) for part in parts},
        "idle_lanes": CHAIN_LANES,
        "idle_processes": len(workers),
        "idle_lane_pss_mb": round(held.pss / CHAIN_LANES, 1),
    }


def java_process(session: SparkSession) -> int:
    """The pid of the Java process of a local session; its Python workers are its descendants."""
    gateway: Any = session.sparkContext._gateway
    found: int = gateway.proc.pid
    return found
