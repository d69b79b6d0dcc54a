"""The dispatcher in the simulator, and bugs of it built in on purpose, each of which is found."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from headrace.core.computations import dispatch
from headrace.core.computations.dispatch import Dispatch
from tests.harness.simulator import __main__ as program
from tests.harness.simulator.dispatch_mutations import MUTATIONS
from tests.harness.simulator.dispatching import SOMETIMES, simulate
from tests.harness.simulator.mutations import Mutation

SEEDS = 200


@contextmanager
def _broken(mutation: Mutation) -> Iterator[type[Dispatch]]:
    """The dispatcher with a bug."""
    source = Path(dispatch.__file__).read_text()
    for _, old, new in mutation.changes:
        assert source.count(old) == 1, f"{source.count(old)} times: {old}"
        source = source.replace(old, new)
    module = ModuleType("broken_dispatch")
    sys.modules[module.__name__] = module  # dataclasses look there for what annotations mean
    try:
        exec(compile(source, dispatch.__file__, "exec"), vars(module))
        machine: type[Dispatch] = module.Dispatch
        yield machine
    finally:
        del sys.modules[module.__name__]


def test_some_hundred_seeds_break_nothing_and_reach_every_rare_state() -> None:
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        for outcome in pool.map(simulate, range(SEEDS), chunksize=10):
            assert outcome.violation == "", f"seed {outcome.seed}\n" + "\n".join(outcome.story)
            counts += outcome.counts
    assert {name for name in counts if name.startswith("sometimes")} == {
        f"sometimes: {name}" for name in SOMETIMES
    }


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: str(m.name))
def test_a_deliberate_bug_is_found_within_its_seeds(mutation: Mutation) -> None:
    with _broken(mutation) as machine:
        found = (simulate(seed, machine).violation for seed in range(mutation.seeds))
        assert any(found)


def test_one_seed_is_one_history() -> None:
    digests = [simulate(seed).digest for seed in range(5)]
    assert digests == [simulate(seed).digest for seed in range(5)]
    assert len(set(digests)) == 5


def test_a_violation_comes_with_its_seed_and_what_happened_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overdue = "headrace.core.computations.dispatch.Dispatch.overdue"
    monkeypatch.setattr(overdue, lambda self, now_s: [])
    outcome = next(o for o in map(simulate, range(50)) if "revocation" in o.violation)
    assert re.match(r"revocation ends by its deadline: s:\d: ", outcome.violation)
    story = "\n".join(outcome.story)
    assert "Assigned(lane=" in story
    assert "VIOLATION revocation ends by its deadline" in outcome.story[-1]
    seed = outcome.seed // program.DISPATCHERS
    told = CliRunner().invoke(program.main, ["--seed", str(seed), "--seconds", "600"])
    assert told.exit_code == 1
    assert f"dispatcher's seed {outcome.seed}: {outcome.violation}" in told.output
    assert f"again: make sim SEED={seed}" in told.output
