"""``penstock bench``: measures against a peer in the same run."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from penstock.cli import render
from penstock.cli.streams import as_json

_GOALS = {
    "append_ratio": ">= 0.7",
    "append_records_ratio": ">= 0.2",
    "single_ratio": ">= 0.6",
    "threads_ratio": ">= 2.5",
    "read_ratio": ">= 0.6",
    "records_ratio": ">= 0.45",
    "wake_p50_ms": "<= 5",
    "wake_p99_ms": "<= 25",
}


@click.group()
def bench() -> None:
    """Benchmarks, each against a peer in the same run."""


@bench.command()
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="On this disk.")
@as_json
def log(directory: Path | None, as_json: bool) -> None:
    """The embedded hub against LMDB itself and a file of lines; about a minute."""
    from penstock.testing.bench.log import run

    with Console(stderr=True).status("preparing") as status:
        if not sys.stderr.isatty():
            status.stop()
        figures = run(directory, lambda text: status.update(text))
    if as_json:
        render.json_line(figures)
        return
    render.table(
        [
            {"figure": name, "value": value, "goal": _GOALS.get(name, "")}
            for name, value in figures.items()
        ]
    )
