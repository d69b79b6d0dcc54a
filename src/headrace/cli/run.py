"""``headrace run``: runs a topology, and shows its progress."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import headrace
from headrace.cli import render
from headrace.cli.options import OneOf, pairs
from headrace.cli.plan import show_plan
from headrace.cli.signals import end_on_sigterm
from headrace.cli.spark import ENGINES, check_local, spark_options, spark_settings, start_session
from headrace.cli.streams import as_json
from headrace.core.errors import BadSetting
from headrace.core.redaction import shown_place
from headrace.groups.admin import Groups
from headrace.hub.run import STOP_S, Running, make_streams
from headrace.hub.settings_file import settings_here
from headrace.lanes.loading import load_topology
from headrace.ops.run_views import Rates, run_views, summary
from headrace.spark.lanes.reach import check_before
from headrace.spark.session.session import check_session

LOOK_S = 0.5
SAY_S = 10.0
"""How often a line is printed where there is no terminal."""

_SHOWN = {
    "computation": "computation",
    "shards": "shards",
    "records_per_s": "rec/s",
    "lag": "lag",
    "lag_s": "lag s",
    "processed": "done",
    "failures": "failed",
    "skipped": "skipped",
    "dead_letters": "dead",
    "stopped": "stopped",
}


@click.command()
@click.argument("place", metavar="FILE[:NAME]")
@click.option(
    "--engine",
    type=OneOf(ENGINES),
    default="spark",
    show_default=True,
    help="Lanes as tasks of Spark, or as threads of this process.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="With --engine local: each lane a process of its own, not a thread.",
)
@spark_options
@click.option("--until-caught-up", is_flag=True, help="End when every input is consumed.")
@click.option("--lanes", type=click.IntRange(1, 1000), help="How many work at once [4].")
@click.option("--option", "options", multiple=True, metavar="K=V", help="For ctx.options.")
@click.option("--skip-first-failures", type=click.IntRange(0), default=0, metavar="N",
              help="Skip the first N records of a computation that would stop it.")  # fmt: skip
@click.option("--name", help="Of this replica, among those of its groups.")
@click.option("--allocation", type=OneOf(["pool", "static"]), help="Of lanes to shards.")
@click.option("--plan", is_flag=True, help="Only show how many lanes it needs.")
@click.option(
    "--replicas",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="With --plan: how many processes will run it [1].",
)
@as_json
@click.pass_obj
def run(
    hub: str,
    /,
    place: str,
    engine: str,
    processes: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    ui: bool,
    until_caught_up: bool,
    lanes: int | None,
    options: tuple[str, ...],
    skip_first_failures: int,
    name: str | None,
    allocation: str | None,
    plan: bool,
    replicas: int | None,
    as_json: bool,
) -> None:
    """Run the topology in FILE, as in shop.py or shop.py:nightly, until SIGTERM or Ctrl-C.

    Start it several times: the replicas share the shards. The exit code is 1 if a shard is stopped
    at the end."""
    _log_to_stderr()
    check_local(engine, processes, master, remote, conf, ui)
    loaded = load_topology(place)
    settings = settings_here()
    if plan:
        return show_plan(hub, loaded.topology, settings, replicas or 1, as_json=as_json)
    if replicas is not None:
        raise BadSetting(
            "--replicas is for --plan: to run several, start this command several times"
        )
    given: dict[str, Any] = {
        "settings": settings,
        "options": pairs("--option", options),
        "lanes": lanes,
        "allocation": allocation,
        "processes": processes,
        "reference": loaded.reference,
        "name": name,
        "skip_first_failures": skip_first_failures,
    }
    with ExitStack() as stack:
        wanted = spark_settings(settings.spark, master, remote, conf, ui)
        count = settings.lanes if lanes is None else lanes
        opened = stack.enter_context(headrace.open(hub))
        opened.capabilities.require("store", "commit")  # before any stream is made
        if engine == "spark":
            check_before(opened.backend, wanted)
            check_session(count, wanted)
        make_streams(opened, loaded.topology, settings)  # a misspelt stream is refused at once
        if engine == "spark":
            app = f"headrace {loaded.topology.name}"
            with end_on_sigterm():
                given["spark"] = stack.enter_context(
                    start_session(count, wanted, app=app, quiet=as_json)
                )
        running = headrace.start(loaded.topology, opened, **given)
        found, clean = _run_to_end(running, hub, until_caught_up, as_json)
    if as_json:
        render.show_json(found)
    else:
        render.show_table([_row(row) for row in found["computations"]])
        _show_stopped(found["stopped"])
        if not clean:
            click.echo("a lane did not end in time: its records are worked on again", err=True)
    sys.exit(0 if found["healthy"] else 1)


def _run_to_end(
    running: Running, hub: str, until_caught_up: bool, as_json: bool
) -> tuple[dict[str, Any], bool]:
    """Run until the end; the outcome, and whether all lanes ended in time."""
    began_s = time.monotonic()
    with running, _drain_on_interrupt(running):
        shows = render.on_terminal() and not as_json
        view = _Live(running, until_caught_up) if shows else _Lines(running, as_json, hub)
        with view:
            running.wait(until_caught_up=until_caught_up, on_tick=view.tick)
        clean = running.replica.stop(STOP_S)
        return summary(running, time.monotonic() - began_s), clean


def _row(view: dict[str, Any]) -> dict[str, Any]:
    """The row of a computation that has ended: it holds no shard and has no age of lag."""
    return {title: view[key] for key, title in _SHOWN.items() if key not in ("shards", "lag_s")}


def _show_stopped(stopped: dict[str, list[str]]) -> None:
    for name, shards in stopped.items():
        click.echo(
            f"{name}: stopped at {', '.join(shards)}; why: headrace group show {name}; "
            f"to go on: headrace group resume {name}",
            err=True,
        )


@contextmanager
def _drain_on_interrupt(running: Running) -> Iterator[None]:
    """A first Ctrl-C drains the replica, a second one ends it at once."""

    def drain(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, give_up)
        running.replica.end()

    def give_up(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        running.replica.end(0.0)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, drain)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Stderr(logging.Handler):
    """Logs to the standard error of the moment: a live view replaces it, so that lines appear above
    the view."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(render.escaped_lines(self.format(record)), file=sys.stderr)


def _log_to_stderr() -> None:
    logger = logging.getLogger("headrace")
    if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False  # a library may give the root logger a handler
        logging.root.addFilter(_is_not_of_py4j)
    logger.setLevel(logging.INFO)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j, the way to Java, logs each error with a trace, and raises it too: the caller reports it
    in one line."""
    return record.module not in ("java_gateway", "clientserver")


class _Live:
    """Shows a table of the computations on a terminal, and a bar if there is an end to reach."""

    def __init__(self, running: Running, until_caught_up: bool) -> None:
        self._running = running
        self._rates = Rates()
        self._looked_s = 0.0
        self._console = Console()
        self._bar = Progress(
            TextColumn("caught up"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=0) if until_caught_up else None
        self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> _Live:
        self._live.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        self._live.update("", refresh=True)
        self._live.__exit__(None, None, None)

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        rates = self._rates.look(_processed(self._running), now_s)
        drawn = Table(header_style="bold")
        for title in _SHOWN.values():
            drawn.add_column(title, justify="left" if title == "computation" else "right")
        for view in run_views(self._running, rates):
            style = "red" if view["stopped"] else ("yellow" if view["failures"] else "")
            drawn.add_row(*(render.shown(view[key]) for key in _SHOWN), style=style)
        parts: list[Any] = [drawn]
        if self._task is not None:
            lag = _measure_lag(self._running)
            done = sum(_processed(self._running).values())
            self._bar.update(self._task, completed=done, total=done + lag)
            parts.append(self._bar)
        self._live.update(Group(*parts), refresh=True)


class _Lines:
    """Prints a line for each computation now and then, in a pipe."""

    def __init__(self, running: Running, as_json: bool, hub: str) -> None:
        self._running = running
        self._quiet = as_json
        self._rates = Rates()
        self._said_s = time.monotonic()
        names = ", ".join(each.name for each in running.topology.computations)
        self._first = f"running {names} on {shown_place(hub)} as {running.name}"

    def __enter__(self) -> _Lines:
        self._rates.look(_processed(self._running), time.monotonic())
        if not self._quiet:
            click.echo(self._first, err=True)
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def tick(self) -> None:
        now_s = time.monotonic()
        if self._quiet or now_s - self._said_s < SAY_S:
            return
        self._said_s = now_s
        rates = self._rates.look(_processed(self._running), now_s)
        for view in run_views(self._running, rates):
            keys = ("processed", "records_per_s", "lag", "lag_s", "failures", "dead_letters")
            facts = " ".join(f"{key}={render.shown(view[key])}" for key in keys)
            click.echo(f"{view['computation']}: {facts}", err=True)


def _processed(running: Running) -> dict[str, int]:
    return {name: counters.processed for name, counters in running.counters.items()}


def _measure_lag(running: Running) -> int:
    """The lag of all replicas together."""
    groups = Groups(running.hub.backend)
    return sum(
        position.lag
        for each in running.topology.computations
        for position in groups.positions(groups.load(each.name)).values()
    )
