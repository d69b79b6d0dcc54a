"""Shows a demonstration: live on a terminal, as lines in a pipe, as a picture."""

from __future__ import annotations

import io
import re
import time

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headrace.cli.certificate import drawn_table, drawn_verdict
from headrace.tools.demo.scene import ReplicaRow, Scene
from headrace.tools.proof.certificate import Certificate

SAY_S = 5.0
REST_LINES = 20
"""The lines of a screen that are not for events."""
STORY_LINES_MIN = 3
WIDTH = 116
BAR_WIDTH = 40
LOOK_S = 0.2

_STATES = {
    "starting": "yellow", "waiting": "yellow", "at work": "green", "stopped": "bold yellow",
    "killed": "bold red", "ended": "dim",
}  # fmt: skip


class Screen:
    """Shows a demonstration live on a terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown_s = 0.0
        self._spinner = Spinner("dots")
        self._live = Live(refresh_per_second=8, transient=True)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *why: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, scene: Scene) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= LOOK_S or scene.stage in ("ending", "comparing"):
            self._shown_s = now_s
            self._spinner.update(text=f"{scene.stage} …")
            lines = max(self._live.console.height - REST_LINES, STORY_LINES_MIN)
            shown = drawn(self._title, scene.with_story(scene.story[-lines:]))
            self._live.update(Group(shown, self._spinner))

    def last(self, scene: Scene) -> None:
        """Print what stays on the screen."""
        self._live.console.print(_story(scene))


class Lines:
    """Prints a demonstration as lines: events as they happen, and now and then the progress."""

    def __init__(self, title: str, *, err: bool) -> None:
        self._title = title
        self._err = err
        self._events = 0
        self._said_s = 0.0

    def __enter__(self) -> Lines:
        self._say(self._title)
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def show(self, scene: Scene) -> None:
        for at_s, text in scene.story[self._events :]:
            self._say(f"{at_s:6.1f} s  {text}")
        self._events = len(scene.story)
        if scene.at_s - self._said_s >= SAY_S:
            self._said_s = scene.at_s
            self._say(f"{scene.at_s:6.1f} s  {plain(scene)}")

    def last(self, scene: Scene) -> None:
        pass

    def _say(self, line: str) -> None:
        click.echo(line, err=self._err)


def plain(scene: Scene) -> str:
    """A scene as one line."""
    replicas = "; ".join(map(_plain_replica, scene.replicas))
    if scene.stage == "starting":
        return replicas
    stages = ", ".join(
        f"{row.computation} {row.records_per_s:.0f}/s lag {row.lag}" for row in scene.stages
    )
    return f"{replicas} | {stages} | {scene.records} of {scene.records_all} records"


def _plain_replica(row: ReplicaRow) -> str:
    shards = [f"{name}:{mine}" for name, mine in row.shards.items() if mine]
    state = [] if row.state == "at work" else [row.state]
    return " ".join([row.name, *state, *shards])


def drawn(title: str, scene: Scene) -> RenderableType:
    return Group(
        Text.assemble(("headrace demo", "bold"), f": {title}", (f"  {scene.at_s:.0f} s", "dim")),
        _replicas(scene),
        _stages(scene),
        _load(scene),
        _story(scene),
    )


def drawn_svg(title: str, scene: Scene, certificate: Certificate) -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(drawn(title, scene))
    console.print(drawn_table(certificate))
    console.print(drawn_verdict(certificate))
    fonts = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)  # they would be fetched from elsewhere
    return console.export_svg(
        title="make demo",
        code_format=fonts.sub("", CONSOLE_SVG_FORMAT),
        unique_id="headrace-demo",
    )


def _replicas(scene: Scene) -> Table:
    table = Table(header_style="bold")
    names = [row.computation for row in scene.stages]
    for title in ("replica", "state", *(f"shards of {name}" for name in names)):
        table.add_column(title, min_width=9)
    table.add_column("records/s", justify="right", min_width=9)
    for row in scene.replicas:
        shards = [row.shards[name] or "-" for name in names]
        rate = f"{row.records_per_s:,.0f}"
        table.add_row(row.name, Text(row.state, _STATES[row.state]), *shards, rate)
    return table


def _stages(scene: Scene) -> Table:
    table = Table(header_style="bold")
    table.add_column("stage", min_width=9)
    for title in ("records/s", "lag"):
        table.add_column(title, justify="right", min_width=9)
    for row in scene.stages:
        table.add_row(row.computation, f"{row.records_per_s:,.0f}", f"{row.lag:,}")
    return table


def _load(scene: Scene) -> Table:
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=scene.records_all, completed=scene.records, width=BAR_WIDTH)
    line.add_row("appended", bar, f"{scene.records:,} of {scene.records_all:,} records")
    return line


def _story(scene: Scene) -> Table:
    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right", style="dim")
    for at_s, text in scene.story:
        lines.add_row(f"{at_s:.1f} s", text)
    return lines
