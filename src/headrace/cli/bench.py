"""``headrace bench``: measures Headrace and a peer in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.cli import render
from headrace.cli.options import OneOf
from headrace.cli.spark import ENGINES
from headrace.cli.streams import as_json

_LOG_GOALS = {
    "append_ratio": ">= 0.7",
    "append_records_ratio": ">= 0.2",
    "single_ratio": ">= 0.6",
    "threads_ratio": ">= 2.5",
    "read_ratio": ">= 0.6",
    "records_ratio": ">= 0.45",
    "wake_p50_ms": "<= 5",
    "wake_p99_ms": "<= 25",
}
_GROUPS_GOALS = {
    "heartbeat_us": "<= 50",
    "heartbeat_writes": "0",
    "unmoved_gap_ms_p99": "<= 1.25 x calm + 5",
    "moved_gap_ms_p99": "<= 100",
    "kill_gap_ms_p99": "<= 500",
    "doubles_on_clean_moves": "0",
    "lost": "0",
    "out_of_order": "0",
    "join20_s": "<= 2",
    "converge1000_s": "<= 2",
    "consumer_ratio": ">= 0.7",
    "idle_cpu": "<= 0.02",
}
_PIPELINE_GOALS = {
    "trivial_ratio": ">= 0.7",
    "latency_p50_ms": "<= 10",
    "latency_p99_ms": "<= 40",
}
_SPARK_GOALS = {
    "spark_vs_threads": ">= 1.3",
    "spark_vs_processes": ">= 0.9",
    "latency_p50_ms": "<= 20",
    "latency_p99_ms": "<= 100",
    "latency5_p99_ms": "<= 250",
    "idle_cpu": "<= 0.05",
}
_KAFKA_GOALS = {
    "read_arrow_ratio": ">= 0.7",
    "records_ratio": ">= 0.6",
    "append_ratio": ">= 0.7",
}
_SOAK_GOALS = {
    "driver_own_mb_per_min": "<= 1",
    "jvm_own_mb_per_min": "<= 1",
    "workers_own_mb_per_min": "<= 1",
    "lanes_lost": "0",
}

_Bench = Callable[[Path | None, Callable[[str], None]], Mapping[str, Any]]


@click.group()
def bench() -> None:
    """Benchmarks, each against a peer in the same run."""


_on = click.option("--dir", "directory", type=click.Path(path_type=Path), help="On this disk.")


@bench.command()
@_on
@as_json
def log(directory: Path | None, as_json: bool) -> None:
    """The embedded hub against LMDB itself and a file of lines; about a minute."""
    from headrace.tools.bench.log import run

    _show(run, _LOG_GOALS, directory, as_json)


@bench.command()
@click.option("--only", default="", metavar="PART,…", help="Some parts, as in handover,join.")
@_on
@as_json
def groups(only: str, directory: Path | None, as_json: bool) -> None:
    """What groups cost, and how fast shards change hands between processes; about 3 minutes.

    Parts: machine (a heartbeat, a rebalance), handover (members join, leave and are killed under
    load), join (20 at once), converge (1,000 shards), consume (against plain reading), idle."""
    from headrace.tools.bench.groups import run

    parts = [part for part in only.split(",") if part]
    _show(partial(run, only=parts), _GROUPS_GOALS, directory, as_json)


@bench.command()
@click.option(
    "--engine",
    type=OneOf(ENGINES),
    default="local",
    show_default=True,
    help="What runs the lanes.",
)
@_on
@as_json
def pipeline(engine: str, directory: Path | None, as_json: bool) -> None:
    """A topology against a thread that does the same without one, and how long a record takes from
    its append to its output; about 2 minutes.

    With --engine spark: lanes on Spark against lanes as threads and as processes, how long a record
    takes through one and through five computations, what waiting lanes cost, and where the time
    of the start goes; about 3 minutes."""
    from headrace.tools.bench.pipeline import run

    goals = _SPARK_GOALS if engine == "spark" else _PIPELINE_GOALS
    _show(partial(run, engine=engine), goals, directory, as_json)


@bench.command()
@_on
@as_json
def kafka(directory: Path | None, as_json: bool) -> None:
    """Streams on Kafka against its own client, on a broker that is started for it; a minute."""
    from headrace.tools.bench.kafka import run

    _show(run, _KAFKA_GOALS, directory, as_json)


@bench.command()
@click.option(
    "--engine",
    type=OneOf(ENGINES),
    default="spark",
    show_default=True,
    help="What runs the lanes.",
)
@click.option("--seconds", default=600.0, show_default=True, help="How long it runs.")
@_on
@as_json
def soak(engine: str, seconds: float, directory: Path | None, as_json: bool) -> None:
    """Whether memory stays as it is: a topology at half of what it can do, for ten minutes.

    Shows what the driver, Java and the Python workers hold: first, last, and MB per minute in the
    second half. "own" are pages of no file; the others grow with what is read of the hub's file."""
    from headrace.tools.bench.soak import run

    _show(partial(run, engine=engine, seconds=seconds), _SOAK_GOALS, directory, as_json, lines=True)


def _show(
    run: _Bench,
    goals: Mapping[str, str],
    directory: Path | None,
    as_json: bool,
    *,
    lines: bool = False,
) -> None:
    """Run and print; with ``lines`` progress is printed in a pipe too."""
    console = Console(stderr=True)
    with console.status("preparing") as status:
        if sys.stderr.isatty():
            say: Callable[[str], None] = status.update
        else:
            status.stop()
            say = partial(console.print, highlight=False, soft_wrap=True) if lines else _ignore
        figures = run(directory, say)
    if as_json:
        render.show_json(dict(figures))
        return
    render.show_table(
        [
            {"figure": name, "value": value, "goal": goals.get(name, "")}
            for name, value in figures.items()
        ]
    )


def _ignore(text: str) -> None:
    """Progress is shown on a terminal only."""
