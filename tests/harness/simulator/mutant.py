"""``python -m tests.harness.simulator.mutant NUMBER SEEDS``: simulates code with a built-in bug."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import CodeType, ModuleType
from typing import Any

from tests.harness.simulator.mutations import MUTATIONS, Change


class _Broken(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, changes: Sequence[Change]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source is not None
        for _, old, new in self._changes:
            assert source.count(old) == 1, f"{source.count(old)} times in {fullname}: {old}"
            source = source.replace(old, new)
        return compile(source, self.path, "exec")


class _Finder:
    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        changes = [change for change in self._changes if change.module == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path) if changes else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Broken(name, spec.origin, changes)
        return spec


def main(number: int, seeds: int) -> str:
    """The first seed that finds the bug, and the violation; empty if no seed does."""
    sys.meta_path.insert(0, _Finder(MUTATIONS[number].changes))
    from tests.harness.simulator.simulation import simulate
    from tests.harness.simulator.swarm import drawn

    stress: Mapping[str, Any] = MUTATIONS[number].stress
    for seed in range(seeds):
        violation = simulate(seed, swarm=replace(drawn(seed), **stress)).violation
        if violation:
            return f"seed {seed}: {violation}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(main(int(sys.argv[1]), int(sys.argv[2])) + "\n")
