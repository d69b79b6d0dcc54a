"""Deliberate bugs replace source that exists: a bug that cannot be built in tests nothing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.harness.simulator import dispatch_mutations, mutations
from tests.harness.simulator.mutations import Mutation

ALL = [*mutations.MUTATIONS, *dispatch_mutations.MUTATIONS]


@pytest.mark.parametrize("mutation", ALL, ids=lambda mutation: str(mutation.name))
def test_the_source_that_a_deliberate_bug_replaces_is_there_once(mutation: Mutation) -> None:
    for module, old, new in mutation.changes:
        spec = find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None, module
        source = Path(spec.origin).read_text()
        assert source.count(old) == 1, f"{module} has it {source.count(old)} times: {old}"
        compile(source.replace(old, new), spec.origin, "exec")


def test_every_deliberate_bug_has_a_name_of_its_own() -> None:
    for listed in (mutations.MUTATIONS, dispatch_mutations.MUTATIONS):
        assert len({mutation.name for mutation in listed}) == len(listed)
