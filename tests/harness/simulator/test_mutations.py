"""The gate: the simulator finds every deliberate bug."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.harness.children import ROOT, python_path
from tests.harness.simulator.mutations import MUTATIONS, Mutation

SURVIVORS_SEEDS = 20

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Future[str]]:
    """What the simulator says about each bug; the bugs are hunted on all cores meanwhile."""
    pool = ThreadPoolExecutor(os.cpu_count())
    return {m.name: pool.submit(_hunt, number) for number, m in enumerate(MUTATIONS)}


def _hunt(number: int) -> str:
    seeds = MUTATIONS[number].seeds or SURVIVORS_SEEDS
    done = subprocess.run(
        [sys.executable, "-m", "tests.harness.simulator.mutant", str(number), str(seeds)],
        env={**os.environ, **python_path()},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("mutation", [m for m in MUTATIONS if m.seeds], ids=lambda m: str(m.name))
def test_a_deliberate_bug_is_found_within_its_seeds(
    mutation: Mutation, found: dict[str, Future[str]]
) -> None:
    assert found[mutation.name].result().startswith("seed ")
    assert "NameError" not in found[mutation.name].result(), "the bug itself does not run"


@pytest.mark.parametrize(
    "mutation", [m for m in MUTATIONS if not m.seeds], ids=lambda m: str(m.name)
)
def test_a_rule_that_another_one_covers_is_named_in_the_guarantees(
    mutation: Mutation, found: dict[str, Future[str]]
) -> None:
    assert found[mutation.name].result() == ""
    assert mutation.name in (ROOT / "docs/guarantees.md").read_text()
