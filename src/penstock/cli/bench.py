"""``penstock bench``: measures against a peer in the same run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from penstock.cli import render
from penstock.cli.streams import as_json

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
_GROUPS_GOALS = {"heartbeat_us": "<= 50", "heartbeat_writes": "0"}

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
    from penstock.testing.bench.log import run

    _show(run, _LOG_GOALS, directory, as_json)


@bench.command()
@_on
@as_json
def groups(directory: Path | None, as_json: bool) -> None:
    """What a heartbeat and a join cost in a group of 1,000 shards and 50 members; seconds."""
    from penstock.testing.bench.groups import run

    _show(run, _GROUPS_GOALS, directory, as_json)


def _show(run: _Bench, goals: Mapping[str, str], directory: Path | None, as_json: bool) -> None:
    with Console(stderr=True).status("preparing") as status:
        if not sys.stderr.isatty():
            status.stop()
        figures = run(directory, lambda text: status.update(text))
    if as_json:
        render.json_line(dict(figures))
        return
    render.table(
        [
            {"figure": name, "value": value, "goal": goals.get(name, "")}
            for name, value in figures.items()
        ]
    )
