"""``headrace prove``: kills replicas of a topology under made-up load, and shows the outcome."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from headrace.cli import render
from headrace.cli.certificate import show_certificate
from headrace.cli.options import OneOf
from headrace.cli.signals import end_on_sigterm
from headrace.cli.spark import ENGINES, check_local
from headrace.cli.streams import as_json
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadSetting
from headrace.hub.settings_file import settings_here
from headrace.lanes.loading import load_topology
from headrace.spark.session.needs import check_java, check_packages
from headrace.tools.proof.certificate import Certificate
from headrace.tools.proof.engine_choice import LOCAL, PROCESSES, SPARK
from headrace.tools.proof.proof import Order, ProofProgress, ProofRun, Tell
from headrace.tools.proof.sample import Example, read_sample
from headrace.tools.proof.scratch import real_streams

SAY_S = 5.0


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
@click.option("--engine", type=OneOf(ENGINES), default="local", show_default=True,
              help="Lanes as tasks of Spark, or as threads of the replica.")  # fmt: skip
@click.option("--processes", is_flag=True,
              help="With --engine local: each lane a process of its own.")  # fmt: skip
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
    engine: str,
    processes: bool,
    as_json: bool,
) -> None:
    """Run the topology in FILE on a scratch hub, kill and stop its replicas, and certify what came
    out.

    Your hub is not touched: streams are made as they are there, or as FILE and headrace.toml say.
    Handlers are called with made-up records, and what they do elsewhere they really do. The exit
    code is 1 if anything was lost, doubled, out of order, or not caught up."""
    check_local(engine, processes, None, None, (), False)
    check_engine(engine)
    seed = seed or secrets.token_hex(4)
    loaded = load_topology(place)
    settings = settings_here()
    options = [f"--kills {kills} --seed {seed} --records {records} --replicas {replicas}"]
    options += [f"--sample {each}" for each in samples] + ["--processes"] * processes
    options += ["--engine spark"] * (engine == "spark")
    order = Order(
        loaded=loaded,
        settings=settings,
        again=f"headrace prove {place} {' '.join(options)}",
        seed=seed,
        kills=kills,
        records=records,
        replicas=replicas,
        engine=SPARK if engine == "spark" else PROCESSES if processes else LOCAL,
        samples=_read_samples(samples, loaded.topology),
        real=real_streams(hub),
    )
    with _show_progress(order, as_json) as shown:
        certificate, evidence = run_proof(order, shown.tell)
    if as_json:
        render.show_json({**certificate.view(), "evidence": evidence})
    else:
        show_certificate(certificate, evidence)
    sys.exit(0 if certificate.clean else 1)


def check_engine(engine: str) -> None:
    """Refuse an engine that cannot run, before each replica refuses it."""
    if engine == "spark":
        check_packages()
        check_java()


def run_proof(order: Order, tell: Tell) -> tuple[Certificate, str | None]:
    """Run a proof in a scratch directory. The certificate, and where hub and logs are kept if it is
    not clean."""
    scratch = Path(tempfile.mkdtemp(prefix="headrace-prove-"))
    kept = False
    try:
        with end_on_sigterm():
            certificate = ProofRun(order, scratch, tell).certificate()
        kept = not certificate.clean
    finally:
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)
    return certificate, str(scratch / "headrace-prove") if kept else None


def _read_samples(given: Sequence[str], topology: Topology) -> dict[str, list[Example]]:
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


# Progress


@contextmanager
def _show_progress(order: Order, as_json: bool) -> Iterator[_Bars | _Lines]:
    click.echo(f"seed {order.seed}: {order.again}", err=True)
    if not render.on_terminal() or as_json:
        yield _Lines()
        return
    bars = _Bars()
    with bars.bars:
        yield bars


class _Bars:
    """Bars on a terminal."""

    def __init__(self) -> None:
        self.bars = Bars(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("{task.fields[note]}"), transient=True,
        )  # fmt: skip
        self._deeds: TaskID = self.bars.add_task("disturbances", note="", total=None)
        self._records: TaskID = self.bars.add_task("records", note="", total=None)

    def tell(self, progress: ProofProgress) -> None:
        self.bars.update(
            self._deeds, completed=progress.deeds, total=progress.deeds_all, note=progress.last
        )
        self.bars.update(
            self._records, completed=progress.records, total=progress.records_all,
            note=f"{progress.stage}, lag {progress.lag}",
        )  # fmt: skip


class _Lines:
    """A line now and then, in a pipe."""

    def __init__(self) -> None:
        self._said_s = time.monotonic()
        self._stage = ""

    def tell(self, progress: ProofProgress) -> None:
        now_s = time.monotonic()
        if progress.stage == self._stage and now_s - self._said_s < SAY_S:
            return
        self._said_s, self._stage = now_s, progress.stage
        click.echo(
            f"{progress.stage}: disturbances {progress.deeds}/{progress.deeds_all}, "
            f"records {progress.records}/{progress.records_all}, lag {progress.lag}",
            err=True,
        )
