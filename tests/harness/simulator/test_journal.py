"""A journal, replayed, leads to the group as it is: under all faults of the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core import store_keys
from headrace.core.groups import journal
from headrace.core.groups.group_bytes import decoded
from headrace.groups.coordinator import Coordinator
from tests.harness.simulator.replica import OWN_ALLOCATOR
from tests.harness.simulator.simulation import _Simulation
from tests.harness.simulator.store import GROUP
from tests.harness.simulator.swarm import drawn

SIMULATED_S = 400


@pytest.mark.parametrize("own", [True, False], ids=["own allocator", "shipped allocator"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replayed_journal_leads_to_the_group_as_it_is(seed: int, own: bool) -> None:
    swarm = replace(drawn(seed), own_allocator=own, heals=False, kills=200, leaves=150, fences=60)
    simulation = _Simulation(seed, swarm)
    simulation.run(SIMULATED_S)
    store = simulation.store
    allocator = Coordinator(store, [OWN_ALLOCATOR]).allocator
    rows = [found.value for _, found in store.scan(store_keys.journal_prefix(GROUP))]
    entries = [journal.decoded(row, allocator) for row in rows]
    kept = [found.value for _, found in store.scan(store_keys.snapshot_prefix(GROUP))]
    begin = journal.whole(GROUP, [decoded(row, allocator) for row in kept], entries)
    assert begin is not None
    steps = list(journal.replayed(begin, entries, allocator))
    assert steps[-1][2] == simulation.checks.group
    assert len(steps) >= min(simulation.checks.group.version, journal.SNAPSHOT_EVERY) > 20
    times = [entry.at_ms for entry, _, _ in steps]
    assert times[-1] <= SIMULATED_S * 1000
