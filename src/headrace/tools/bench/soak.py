"""``headrace bench soak``: the memory of a topology that runs for long at half of its full rate.

The full rate is measured first: the records per second of two lanes that copy stored records. Then
a separate process appends half as many each second, and two lanes copy them. Both streams keep
records for a few seconds only, so that the disk does not fill up.

Memory is measured during the run: of this process (the driver), and on Spark of Java and of all its
Python workers together. ``rss`` counts all pages in memory, also those of the hub's file, which
grow with reading and which the kernel can take back. ``pss`` divides shared pages by their users.
``own`` counts pages of no file: a leak shows there. Slopes are those of the second half, in MB per
minute.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import headrace
from headrace.core.errors import BadSetting
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.spark import spark_session
from headrace.testing.children import until
from headrace.tools.bench import flows, usage
from headrace.tools.bench.flows import SOURCE, TARGET
from headrace.tools.bench.measure import Say, workplace
from headrace.tools.bench.on_spark import LANES, SHARDS, java_process, make_source, piped
from headrace.tools.bench.processes import start_child
from headrace.tools.bench.usage import Memory

ENGINES = ("spark", "local")
SECONDS = 600.0
RECORDS = 300_000
KEPT = "5s"
SAMPLES = 120
SAY_EVERY = 10
"""A line is shown after this many samples."""

ProcessesByPart = Mapping[str, Callable[[], list[int]]]
"""The pids of each part: driver, Java, Python workers."""


def run(
    directory: Path | None,
    say: Say,
    engine: str = "spark",
    *,
    seconds: float = SECONDS,
    records: int = RECORDS,
) -> dict[str, Any]:
    """All figures; ``say`` gets a line about the state now and then."""
    if engine not in ENGINES:
        raise BadSetting(f"no engine {engine!r} in this benchmark: one of {', '.join(ENGINES)}")
    with workplace(directory) as place, ExitStack() as stack:
        how: dict[str, Any] = {}
        processes: dict[str, Callable[[], list[int]]] = {"driver": lambda: [os.getpid()]}
        if engine == "spark":
            say("starting Spark")
            how["spark"] = session = stack.enter_context(spark_session(LANES))
            java = java_process(session)
            processes |= {"jvm": lambda: [java], "workers": lambda: usage.below(java)}
        return _soaked(place, say, engine, seconds, records, processes, how)


def _soaked(
    place: Path,
    say: Say,
    engine: str,
    seconds: float,
    records: int,
    processes: ProcessesByPart,
    how: Mapping[str, Any],
) -> dict[str, Any]:
    say("measuring the full rate")
    with headrace.open(place / "full") as hub:
        make_source(hub, records)
        full = [piped(hub, "copying", records, **how).records_per_s for _ in range(2)][-1]
    half = full / 2
    with headrace.open(place / "half") as hub:
        for name in (SOURCE, TARGET):
            hub.create_stream(name, shards=SHARDS, retention=KEPT)
        with flows.start("copying", hub, lanes=LANES, **how) as running, ExitStack() as stack:
            producer = start_child(stack, "producer", place / "half", str(half), stream=SOURCE)
            counters = running.counters["copy"]
            until(lambda: counters.processed > 0, "a first record")
            seen = _watched(running, hub, say, seconds, processes)
            producer.tell()
            assert producer.process.wait(30) == 0, "the producer did not end"
            assert running.wait("120s", until_caught_up=True), (
                f"the topology does not catch up: {counters}"
            )
    assert counters.processed == counters.outputs, counters
    return {
        "engine": engine,
        "seconds": seconds,
        "lanes": LANES,
        "full_records_per_s": round(full),
        "half_records_per_s": round(half),
        "lanes_lost": counters.lanes_lost,
        "not_stored": counters.not_stored,
        **seen,
    }


def _watched(
    running: Running, hub: Hub, say: Say, seconds: float, processes: ProcessesByPart
) -> dict[str, Any]:
    counters = running.counters["copy"]
    began_s, before = time.monotonic(), counters.processed
    times_s: list[float] = []
    lags: list[int] = []
    found: dict[str, list[Memory]] = {name: [] for name in processes}
    while (gone_s := time.monotonic() - began_s) < seconds:
        times_s.append(gone_s)
        for name, those in processes.items():
            found[name].append(usage.memory(those()))
        lags.append(running.replica.dispatcher.lag("copy")[0])
        if len(times_s) % SAY_EVERY == 1:
            say(_line(gone_s, seconds, counters.processed - before, lags[-1], found))
        assert running.is_running, "the topology has ended"
        time.sleep(seconds / SAMPLES)
    figures: dict[str, Any] = {
        "records_per_s": round((counters.processed - before) / gone_s),
        "lag_records_p50": round(statistics.median(lags)),
        "lag_records_max": max(lags),
        "samples": len(times_s),
        "hub_mb": round(hub.describe()["bytes_file"] / 2**20),
    }
    for name, samples in found.items():
        for kind in Memory._fields:
            figures |= _course(f"{name}_{kind}_mb", times_s, [getattr(m, kind) for m in samples])
    return figures


def _line(
    gone_s: float, seconds: float, done: int, lag: int, found: Mapping[str, list[Memory]]
) -> str:
    held = ", ".join(f"{name} {samples[-1].own:.0f} MB" for name, samples in found.items())
    return f"{gone_s:.0f} of {seconds:.0f} s, {done:,} records, {lag:,} behind, own: {held}"


def _course(name: str, times_s: list[float], values: list[float]) -> dict[str, float]:
    """The value after a tenth of the time, the last value, and the slope of the second half."""
    half = len(values) // 2
    slope_per_s = slope(times_s[half:], values[half:])
    return {
        f"{name}_first": round(values[len(values) // 10], 1),
        f"{name}_last": round(values[-1], 1),
        f"{name}_per_min": round(slope_per_s * 60, 2),
    }


def slope(xs: list[float], ys: list[float]) -> float:
    """The slope of the line that fits best; 0 for a single point."""
    return statistics.linear_regression(xs, ys).slope if len(xs) > 1 else 0.0
