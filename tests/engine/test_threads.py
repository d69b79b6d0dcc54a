"""The contract of engines, on lanes that are threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.backends.lmdb.backend import LmdbBackend
from penstock.backends.memory import MemoryBackend
from penstock.run.running import start
from penstock.testing.contracts.engine.all import EngineContract
from penstock.testing.contracts.engine.at_work import Engine
from penstock.testing.contracts.subject import Opening


class TestThreads(EngineContract):
    @pytest.fixture
    def opening(self) -> Opening:
        return MemoryBackend

    @pytest.fixture
    def engine(self) -> Engine:
        return start


class TestThreadsOnLmdb(TestThreads):
    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: LmdbBackend(tmp_path / "hub")
