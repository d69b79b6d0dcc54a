"""``make sim``: simulates many seeds on all cores, or one seed and prints its story."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import click

from tests.harness.simulator import dispatching
from tests.harness.simulator.simulation import DURATION_S, SimulationOutcome, shrunk, simulate

SOMETIMES = (
    "checkpoint exactly at a closed end",
    "commit after the epoch moved",
    "coordinator dies between read and write",
    "eviction races a return",
    "heartbeat answer overtaken",
    "newer incarnation takes over",
    "no member is left",
    "pause between lease check and effect",
    "split or merge during a transfer",
    "transfer cancelled, next owner gone",
    "unknown but applied",
)
"""States that the simulation must reach: a run that does not tests too little."""

DISPATCHERS = 10
"""How many dispatch simulations run for each seed; their own seeds begin at that multiple of it."""
SECONDS_MIN = 600.0
"""A group needs this long to come to rest after the last fault."""


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=40, help="How many seeds.")
@click.option("--start", type=int, default=None, help="The first seed [a random one].")
@click.option("--seed", type=int, default=None, help="Only this seed, with its story if it fails.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1)
@click.option(
    "--seconds",
    type=click.FloatRange(SECONDS_MIN, 1e6),
    default=DURATION_S,
    help="Simulated seconds per seed.",
)
def main(seeds: int, start: int | None, seed: int | None, jobs: int, seconds: float) -> None:
    """Simulate groups and dispatch under faults. The exit code is 1 if an invariant was
    violated."""
    if seed is not None:
        if start is not None:
            raise click.UsageError("give --seed or --start, not both")
        start, seeds = seed, 1
    if start is None:
        start = int.from_bytes(os.urandom(4), "big")
    click.echo(f"seeds {start} to {start + seeds - 1}, {seconds:g} simulated seconds each")
    dispatched = report_dispatchers(
        list(run_dispatchers(range(start, start + seeds), jobs)), whole=seeds >= 100
    )
    began_s = time.monotonic()
    outcomes = list(_counted(run(range(start, start + seeds), jobs, seconds), seeds))
    took_s = time.monotonic() - began_s
    sys.exit(dispatched | report(outcomes, took_s, seconds=seconds, whole=seeds >= 100))


def run(seeds: range, jobs: int, seconds: float = DURATION_S) -> Iterable[SimulationOutcome]:
    """The outcomes of the group simulation, in the order of their seeds."""
    if jobs == 1 or len(seeds) == 1:
        yield from (simulate(seed, seconds) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(simulate, seeds, [seconds] * len(seeds), chunksize=2)


def report(outcomes: list[SimulationOutcome], took_s: float, *, seconds: float, whole: bool) -> int:
    """Print the violations; the last line is the summary."""
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


def run_dispatchers(seeds: range, jobs: int) -> Iterable[dispatching.DispatchOutcome]:
    """The outcomes of the dispatch simulation, in the order of their seeds."""
    own = range(seeds.start * DISPATCHERS, seeds.stop * DISPATCHERS)
    if jobs == 1 or len(seeds) == 1:
        yield from map(dispatching.simulate, own)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(dispatching.simulate, own, chunksize=DISPATCHERS)


def report_dispatchers(outcomes: list[dispatching.DispatchOutcome], *, whole: bool) -> int:
    """Print the violations; the last line is the summary."""
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


def _counted(outcomes: Iterable[SimulationOutcome], seeds: int) -> Iterable[SimulationOutcome]:
    for number, outcome in enumerate(outcomes, 1):
        if sys.stderr.isatty():
            click.echo(f"\r{number} of {seeds}", nl=number == seeds, err=True)
        yield outcome


if __name__ == "__main__":
    main()
