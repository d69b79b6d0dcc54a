"""``penstock prove``: kills replicas of a topology on made-up load, and shows what became of it."""

from __future__ import annotations

import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from penstock.cli import render
from penstock.cli.streams import as_json
from penstock.core.errors import BadSetting
from penstock.core.topology import Topology
from penstock.runtime.loading import load_topology
from penstock.runtime.settings import SETTINGS_FILE, RunSettings
from penstock.testing.prove.certificate import Certificate, Line
from penstock.testing.prove.proof import Order, Progress, Proof
from penstock.testing.prove.sample import Example, read_sample
from penstock.testing.prove.scratch import real_streams

SAY_S = 5.0

_TITLES = (
    "stream", "in", "out", "lost", "doubled", "out of order", "unexpected", "longest gap",
    "of a shard", "compared by",
)  # fmt: skip


@click.command()
@click.argument("place", metavar="FILE[:NAME]")
@click.option("--kills", type=click.IntRange(0, 10_000), default=20, show_default=True, metavar="N",
              help="How often a replica is killed or stopped for a while.")  # fmt: skip
@click.option("--seed", help="The same plan and load again [a new one].")
@click.option("--records", type=click.IntRange(1, 100_000_000), default=10_000, show_default=True,
              help="How many are appended to the sources.")  # fmt: skip
@click.option("--replicas", type=click.IntRange(1, 100), default=3, show_default=True,
              help="How many processes run the topology.")  # fmt: skip
@click.option("--sample", "samples", multiple=True, metavar="[STREAM=]FILE",
              help='Records to append, one a line: {"key": …, "value": …}, or values.')  # fmt: skip
@click.option("--processes", is_flag=True, help="Each lane a process of its own, not a thread.")
@as_json
@click.pass_obj
def prove(
    hub: str,
    /,
    place: str,
    kills: int,
    seed: str | None,
    records: int,
    replicas: int,
    samples: tuple[str, ...],
    processes: bool,
    as_json: bool,
) -> None:
    """Run the topology in FILE on a scratch hub, kill and stop its replicas, and certify what came
    out.

    Your hub is not touched: streams are made as they are there, or as FILE and penstock.toml say.
    Handlers are called with made-up records, and what they do elsewhere they really do. The exit
    code is 1 if anything was lost, doubled, out of order, or not caught up."""
    seed = seed or secrets.token_hex(4)
    loaded = load_topology(place)
    settings = RunSettings.read(SETTINGS_FILE if Path(SETTINGS_FILE).exists() else None)
    options = [f"--kills {kills} --seed {seed} --records {records} --replicas {replicas}"]
    options += [f"--sample {each}" for each in samples] + ["--processes"] * processes
    order = Order(
        loaded=loaded,
        settings=settings,
        again=f"penstock prove {place} {' '.join(options)}",
        seed=seed,
        kills=kills,
        records=records,
        replicas=replicas,
        processes=processes,
        samples=_samples(samples, loaded.topology),
        real=real_streams(hub),
    )
    scratch = Path(tempfile.mkdtemp(prefix="penstock-prove-"))
    kept = False
    try:
        with _ended_by_sigterm(), _shown(order, as_json) as shown:
            certificate = Proof(order, scratch, shown.tell).certificate()
        kept = not certificate.clean
        evidence = str(scratch / "penstock-prove") if kept else None
    finally:
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)
    if as_json:
        render.json_line({**certificate.view(), "evidence": evidence})
    else:
        _show(certificate, evidence)
    sys.exit(0 if certificate.clean else 1)


def _samples(given: Sequence[str], topology: Topology) -> dict[str, list[Example]]:
    found: dict[str, list[Example]] = {}
    for each in given:
        stream, equals, path = each.partition("=")
        name = stream if equals and stream in topology.streams else ""
        if equals and not name and not Path(each).exists():
            known = ", ".join(topology.sources)
            raise BadSetting(f"--sample {each}: {stream} is no source of the topology: {known}")
        if name and name not in topology.sources:
            raise BadSetting(f"--sample {each}: {name} is written by the topology itself")
        found[name] = read_sample(path if name else each)
    return found


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """The replicas end with this command, whatever ends it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# While it runs


@contextmanager
def _shown(order: Order, as_json: bool) -> Iterator[_Bars | _Lines]:
    click.echo(f"seed {order.seed}: {order.again}", err=True)
    if not render.on_terminal() or as_json:
        yield _Lines()
        return
    bars = _Bars()
    with bars.bars:
        yield bars


class _Bars:
    """On a terminal."""

    def __init__(self) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"), transient=True,
        )  # fmt: skip
        self._deeds: TaskID = self.bars.add_task("disturbances", note="", total=None)
        self._records: TaskID = self.bars.add_task("records", note="", total=None)

    def tell(self, progress: Progress) -> None:
        self.bars.update(
            self._deeds, completed=progress.deeds, total=progress.deeds_all, note=progress.last
        )
        self.bars.update(
            self._records, completed=progress.records, total=progress.records_all,
            note=f"{progress.stage}, lag {progress.lag}",
        )  # fmt: skip


class _Lines:
    """In a pipe: a line now and then."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()
        self._stage = ""

    def tell(self, progress: Progress) -> None:
        now_s = time.monotonic()
        if progress.stage == self._stage and now_s - self._said_s < SAY_S:
            return
        self._said_s, self._stage = now_s, progress.stage
        click.echo(
            f"{progress.stage}: disturbances {progress.deeds}/{progress.deeds_all}, "
            f"records {progress.records}/{progress.records_all}, lag {progress.lag}",
            err=True,
        )


# When it is over


def _show(certificate: Certificate, evidence: str | None) -> None:
    console = Console(highlight=False)
    if render.on_terminal():
        drawn = Table(header_style="bold", caption_justify="left")
        for title in _TITLES:
            drawn.add_column(
                title, justify="left" if title in ("stream", "compared by") else "right"
            )
        for each in certificate.streams:
            drawn.add_row(*_cells(each), style="" if each.clean else "red")
        console.print(drawn)
    else:
        render.table([dict(zip(_TITLES, _row(each), strict=True)) for each in certificate.streams])
    for told in _told(certificate):
        click.echo(told)
    if evidence is not None:
        click.echo(f"hub and logs are kept in {evidence}")
    click.echo(f"again: {certificate.again}")
    verdict = "clean" if certificate.clean else "NOT CLEAN"
    if certificate.clean and not certificate.complete:
        verdict = "clean as far as it could be compared"
    done = (
        f"{certificate.kills} kills and {certificate.stops} stops of {certificate.replicas} "
        f"replicas, {certificate.records} records, {certificate.seconds:g} s, "
        f"seed {certificate.seed}"
    )
    console.print(
        Text(f"{verdict}: ", "bold green" if certificate.clean else "bold red"),
        Text(done),
        sep="",
        soft_wrap=True,
    )


def _row(each: Line) -> list[str]:
    values = (
        each.stream, each.records_in, each.records_out, each.lost, each.doubled, each.out_of_order,
        each.unexpected, _ms(each.longest_gap_ms), _ms(each.longest_shard_gap_ms), each.compared,
    )  # fmt: skip
    return ["n/a" if value is None and at in (3, 4, 5) else render.shown(value)
            for at, value in enumerate(values)]  # fmt: skip


def _ms(gap_ms: int | None) -> str | None:
    return None if gap_ms is None else f"{gap_ms} ms"


def _cells(each: Line) -> list[Text]:
    return [Text(cell) for cell in _row(each)]


def _told(certificate: Certificate) -> Iterator[str]:
    """What a table cannot tell."""
    if not certificate.caught_up:
        yield "not caught up: there was still work to do when nothing moved any more"
    for stop in certificate.stopped:
        yield f"stopped: {stop.computation} at {stop.record}: {render.escaped(stop.reason)}"
    for end in certificate.ended:
        yield f"{end.name} ended by itself ({end.code}): {render.escaped(end.said)}"
    for each in certificate.streams:
        for told in (*each.notes, *each.examples):
            yield f"{each.stream}: {told}"
    for state in certificate.state:
        verdict = {True: "as undisturbed", False: "WRONG", None: "not compared"}[state.equal]
        told = f"state of {state.computation}: {state.entries} entries, {verdict}"
        yield "; ".join([told, *state.notes])
    for failure in certificate.failures:
        yield f"no reference: {render.escaped(failure)}"
    yield from certificate.notes
