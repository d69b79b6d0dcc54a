"""The simulator of groups: fresh seeds find no violation, and a violation is easy to read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest

from headrace.core.groups import machine
from tests.harness.children import python_path
from tests.harness.simulator.simulation import SimulationOutcome, shrunk, simulate
from tests.harness.simulator.swarm import FAULTS, Swarm, drawn

FRESH_SEEDS = 60

ONCE_FOUND = {
    "an eviction was judged by the sign of a member that had come back": 1387501878,
}
"""Seeds that once found a bug which a few hundred other seeds do not find."""

_EDGE = re.compile(r"^    (\S.*?)\s{2,}(\w+) -> (\w+)\s", re.MULTILINE)


def _busy(seed: int) -> Swarm:
    """Faults under which shards go along every edge of the group machine."""
    more = {"splits": 200, "forces": 200, "stops": 120, "leaves": 120, "stream_deletes": 60}
    return replace(drawn(seed), order=seed % 4 > 0, lone=False, kills=60, **more)  # type: ignore[arg-type]


def _simulate_busy(seed: int) -> SimulationOutcome:
    return simulate(seed, swarm=_busy(seed))


@pytest.mark.slow
def test_fresh_seeds_break_nothing() -> None:
    """The seeds are drawn anew each time and printed; ``make sim SEED=…`` repeats one."""
    command = [sys.executable, "-m", "tests.harness.simulator", "--seeds", str(FRESH_SEEDS)]
    if "HEADRACE_SEED" in os.environ:
        command += ["--start", os.environ["HEADRACE_SEED"]]
    done = subprocess.run(
        command,
        env={**os.environ, **python_path()},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith(
        f"sim: {FRESH_SEEDS} seeds, 15.0 simulated hours"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", ONCE_FOUND.values(), ids=ONCE_FOUND.keys())
def test_a_seed_that_once_found_a_bug_finds_none_now(seed: int) -> None:
    assert simulate(seed).violation == ""


@pytest.mark.slow
def test_shards_go_along_exactly_the_edges_that_the_machine_documents() -> None:
    assert machine.__doc__ is not None
    drawn_edges = set(_EDGE.findall(machine.__doc__))
    gone: set[tuple[str, str, str]] = set()
    with ProcessPoolExecutor() as pool:
        for outcome in pool.map(_simulate_busy, range(40)):
            assert outcome.violation == ""
            gone |= outcome.edges
    assert len(drawn_edges) > 20
    assert gone == drawn_edges


@pytest.mark.slow
def test_one_seed_is_one_history() -> None:
    """Also in other processes, which hash differently."""
    seeds = range(5)
    program = (
        "from tests.harness.simulator.simulation import simulate\n"
        f"print([simulate(seed, 200).digest for seed in {list(seeds)}])"
    )
    found = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, **python_path(), "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
        found.add(done.stdout.strip())
    assert found == {str([simulate(seed, 200).digest for seed in seeds])}
    assert len({simulate(seed, 200).digest for seed in seeds}) == len(seeds)


@pytest.mark.slow
def test_a_violation_shows_its_seed_and_the_story_of_its_shard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.core.groups.seat.LEASE_SHARE", 5.0)
    outcomes = (simulate(seed) for seed in range(20))
    outcome = next(outcome for outcome in outcomes if outcome.violation)
    assert re.match(r"E5: [ab]:\d+: offset \d+ by an evicted, unpaused process", outcome.violation)
    shard = outcome.violation.split(": ")[1]
    story = "\n".join(outcome.story)
    assert "granted to" in story
    assert "effect" in story
    assert "VIOLATION E5" in outcome.story[-1]
    assert shard not in story
    less, needed = shrunk(outcome)
    assert less.violation.startswith("E5")
    assert set(needed) < {fault for fault in FAULTS if getattr(drawn(outcome.seed), fault)}
