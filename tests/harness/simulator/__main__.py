"""``make sim``: many seeds on all cores, or one with its story."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import click

from tests.harness.simulator import dispatching
from tests.harness.simulator.simulation import DURATION_S, Outcome, shrunk, simulate

SOMETIMES = (
    "checkpoint exactly at a closed end",
    "commit after the epoch moved",
    "coordinator dies between read and write",
    "eviction races a return",
    "heartbeat answer overtaken",
    "newer incarnation takes over",
    "nobody is left",
    "pause between lease check and effect",
    "split or merge during a transfer",
    "transfer cancelled, next owner gone",
    "unknown but applied",
)
"""States that the simulation must reach, or it is blind."""


DISPATCHERS = 10
"""For each seed so many of the dispatcher's are run, from that multiple of it on."""
SECONDS_MIN = 600.0
"""What comes to rest after the last fault needs its time."""


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=40, help="How many seeds.")
@click.option("--start", type=int, default=None, help="The first one; drawn if not given.")
@click.option("--seed", type=int, default=None, help="Only this one; its story if it fails.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1)
@click.option(
    "--seconds",
    type=click.FloatRange(SECONDS_MIN, 1e6),
    default=DURATION_S,
    help="Simulated seconds per seed.",
)
def main(seeds: int, start: int | None, seed: int | None, jobs: int, seconds: float) -> None:
    """Simulate groups of members and dispatchers under faults; the exit code tells whether all
    went well."""
    if seed is not None:
        if start is not None:
            raise click.UsageError("--seed is one seed, --start the first of some: not both")
        start, seeds = seed, 1
    if start is None:
        start = int.from_bytes(os.urandom(4), "big")
    click.echo(f"seeds {start} to {start + seeds - 1}, {seconds:g} simulated seconds each")
    dispatched = report_dispatchers(
        list(run_dispatchers(range(start, start + seeds), jobs)), whole=seeds >= 100
    )
    began_s = time.monotonic()
    outcomes = list(_told(run(range(start, start + seeds), jobs, seconds), seeds))
    took_s = time.monotonic() - began_s
    sys.exit(dispatched | report(outcomes, took_s, seconds=seconds, whole=seeds >= 100))


def run(seeds: range, jobs: int, seconds: float = DURATION_S) -> Iterable[Outcome]:
    """The outcomes in order of their seeds."""
    if jobs == 1 or len(seeds) == 1:
        yield from (simulate(seed, seconds) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, [seconds] * len(seeds), chunksize=2)


def report(outcomes: list[Outcome], took_s: float, *, seconds: float, whole: bool) -> int:
    """Print what was found; the last line sums it up."""
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    bad = [outcome for outcome in outcomes if outcome.violation]
    for outcome in bad:
        click.echo(f"seed {outcome.seed}: {outcome.violation}")
    for outcome in bad[:1]:
        less, needed = shrunk(outcome, seconds)
        click.echo(f"\nseed {less.seed}: {less.violation}")
        click.echo(f"with {', '.join(needed) or 'no faults at all'}")
        click.echo("\n".join(less.story))
        click.echo(f"again: make sim SEED={outcome.seed}")
    unreached = [name for name in SOMETIMES if not counts[f"sometimes: {name}"]]
    for name in SOMETIMES:
        click.echo(f"{counts[f'sometimes: {name}']:>9,}  {name}")
    hours = sum(outcome.hours for outcome in outcomes)
    click.echo(
        f"sim: {len(outcomes)} seeds, {hours:.1f} simulated hours in {took_s:.0f} s, "
        f"{counts['kills']:,} kills, {counts['pauses']:,} pauses, "
        f"{sum(outcome.hand_overs for outcome in outcomes):,} hand-overs, "
        f"{len(bad)} violations, "
        f"{len(SOMETIMES) - len(unreached)} of {len(SOMETIMES)} rare states reached"
    )
    return 1 if bad or (whole and unreached) else 0


def run_dispatchers(seeds: range, jobs: int) -> Iterable[dispatching.Outcome]:
    """The outcomes in order of their seeds."""
    own = range(seeds.start * DISPATCHERS, seeds.stop * DISPATCHERS)
    if jobs == 1 or len(seeds) == 1:
        yield from map(dispatching.simulate, own)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(dispatching.simulate, own, chunksize=DISPATCHERS)


def report_dispatchers(outcomes: list[dispatching.Outcome], *, whole: bool) -> int:
    """Print what was found; the last line sums it up."""
    counts: Counter[str] = sum((outcome.counts for outcome in outcomes), Counter())
    bad = [outcome for outcome in outcomes if outcome.violation]
    for outcome in bad:
        click.echo(f"dispatcher's seed {outcome.seed}: {outcome.violation}")
    for outcome in bad[:1]:
        click.echo("\n".join(outcome.story))
        click.echo(f"again: make sim SEED={outcome.seed // DISPATCHERS}")
    names = dispatching.SOMETIMES
    unreached = [name for name in names if not counts[f"sometimes: {name}"]]
    for name in names:
        click.echo(f"{counts[f'sometimes: {name}']:>9,}  {name}")
    click.echo(
        f"dispatchers: {len(outcomes):,} seeds, "
        f"{sum(outcome.slices for outcome in outcomes):,} slices, {len(bad)} violations, "
        f"{len(names) - len(unreached)} of {len(names)} rare states reached"
    )
    return 1 if bad or (whole and unreached) else 0


def _told(outcomes: Iterable[Outcome], seeds: int) -> Iterable[Outcome]:
    for number, outcome in enumerate(outcomes, 1):
        if sys.stderr.isatty():
            click.echo(f"\r{number} of {seeds}", nl=number == seeds, err=True)
        yield outcome


if __name__ == "__main__":
    main()
