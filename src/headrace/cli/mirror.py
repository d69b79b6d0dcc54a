"""``headrace mirror``: copies a stream of one hub into another, with all fields of its records."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.core.errors import BadSetting, UnknownStream
from headrace.core.nearest import did_you_mean
from headrace.core.redaction import shown_place
from headrace.hub.hub import Hub
from headrace.hub.mirror import Mirrored, ShardCopy
from headrace.hub.mirror import mirror as copy_stream

SAY_S = 5.0
"""How often a line is printed where there is no terminal."""

_OnProgress = Callable[[Mirrored], None]


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("stream")
@click.option("--as", "as_name", metavar="NAME", help="Call it so in the target.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--skip-missing",
    is_flag=True,
    help="Go on behind what the source dropped before it was copied.",
)
@as_json
def mirror(
    source: str,
    target: str,
    stream: str,
    as_name: str | None,
    follow: bool,
    skip_missing: bool,
    as_json: bool,
) -> None:
    """Copy STREAM from the hub FROM to the hub TO: keys, headers, timestamps, all of it.

    Run again, it goes on where it ended, also after a kill: nothing is doubled or left out. Ctrl-C
    ends it in order. The exit code is 130 if something was left to copy then."""
    for place in (source, target):
        if place.startswith("memory:"):
            raise BadSetting(f"{place}: a memory hub would end with this command")
    began_s = time.monotonic()
    with (
        headrace.open(source, create=False) as here,
        headrace.open(target) as there,
        _stop_on_signal() as stopped,
        _progress(as_json) as progress,
    ):
        _check_source(here, stream, source)
        found = copy_stream(
            here,
            there,
            stream,
            as_name=as_name,
            follow=follow,
            skip_missing=skip_missing,
            stopped=stopped,
            progress=progress,
        )
    _show(found, source, target, time.monotonic() - began_s, as_json)
    sys.exit(0 if found.complete else 130)


def _check_source(hub: Hub, stream: str, place: str) -> None:
    try:
        hub.stream(stream)
    except UnknownStream:
        near = did_you_mean(stream, [info.name for info in hub.streams()])
        raise BadSetting(
            f"no stream {stream!r} in {shown_place(place)}, from where it should be copied{near}"
        ) from None


def _show(found: Mirrored, source: str, target: str, took_s: float, as_json: bool) -> None:
    rows = [_row(shard) for shard in found.shards]
    if as_json:
        render.show_json(
            {
                "stream": found.stream,
                "source": shown_place(source),
                "target": shown_place(target),
                "as": found.target,
                "records": found.records,
                "complete": found.complete,
                "seconds": round(took_s, 3),
                "shards": rows,
            }
        )
        return
    render.show_table(rows, rare=["missing"])
    behind = "" if found.complete else "; not complete, run it again to go on"
    click.echo(
        f"{found.stream}: {render.counted(found.records, 'record')} copied to {found.target} in "
        f"{shown_place(target)}, {took_s:.1f} s{behind}",
        err=True,
    )


def _row(shard: ShardCopy) -> dict[str, Any]:
    return {
        "shard": shard.shard,
        "already": shard.already,
        "copied": shard.copied,
        "missing": shard.missing,
        "next": shard.at,
        "end": max(shard.end, shard.at),
    }


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """A first Ctrl-C or SIGTERM ends the copy behind the batch in hand, a second one at once."""
    stopped = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        if stopped:
            raise KeyboardInterrupt
        stopped = True

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _progress(as_json: bool) -> AbstractContextManager[_OnProgress]:
    return _bar() if sys.stderr.isatty() else _lines(as_json)


@contextmanager
def _bar() -> Iterator[_OnProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[records]:,} records"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("copying", total=None, records=0)

        def update(found: Mirrored) -> None:
            bar.update(
                task,
                description=found.stream,
                total=sum(max(shard.end, shard.at) for shard in found.shards),
                completed=sum(shard.at for shard in found.shards),
                records=found.records,
            )

        yield update


@contextmanager
def _lines(as_json: bool) -> Iterator[_OnProgress]:
    printed_s = time.monotonic()

    def print_line(found: Mirrored) -> None:
        nonlocal printed_s
        now_s = time.monotonic()
        if not as_json and now_s - printed_s >= SAY_S:
            printed_s = now_s
            left = sum(max(shard.end - shard.at, 0) for shard in found.shards)
            click.echo(
                f"{found.stream}: {render.counted(found.records, 'record')} copied, {left} to go",
                err=True,
            )

    yield print_line
