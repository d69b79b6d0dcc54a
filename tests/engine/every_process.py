"""The whole contract of engines, on lanes that are processes: some minutes. ``make engines`` runs
it; `test_processes.py` runs a part of it with all other tests."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from penstock.backends.lmdb.backend import LmdbBackend
from penstock.runtime.running import start
from penstock.testing.contracts.engine.all import EngineContract
from penstock.testing.contracts.engine.at_work import Arm, AtWork, Engine
from penstock.testing.contracts.subject import Opening


class InProcesses(AtWork):
    KILLS = True

    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: LmdbBackend(tmp_path / "hub")

    @pytest.fixture
    def engine(self) -> Engine:
        return partial(start, processes=True, lanes=2)

    @pytest.fixture
    def arm_lanes(self, monkeypatch: pytest.MonkeyPatch) -> Arm:
        return lambda what: monkeypatch.setenv("PENSTOCK_FAIL", what.replace("raise", "kill"))


class TestEveryProcess(InProcesses, EngineContract):
    """All of it."""
