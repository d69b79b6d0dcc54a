"""The contract of engines, on lanes that are threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import in_one_place
from headrace.hub.run import start
from headrace.testing.contracts.backend_under_test import Opening
from headrace.testing.contracts.engine.all import EngineContract
from headrace.testing.contracts.engine.dying import DyingContract
from headrace.testing.contracts.engine.engine_under_test import Engine
from headrace.testing.contracts.engine.exactly_once import ExactlyOnceContract
from headrace.testing.contracts.engine.state import StateContract


class TestThreads(EngineContract):
    @pytest.fixture
    def opening(self) -> Opening:
        return lambda: in_one_place(MemoryBackend())

    @pytest.fixture
    def engine(self) -> Engine:
        return start


class TestThreadsOnLmdb(ExactlyOnceContract, StateContract, DyingContract):
    """What is stored, in files."""

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        return tmp_path / "hub"

    @pytest.fixture
    def opening(self, place: Path) -> Opening:
        return lambda: in_one_place(LmdbBackend(place))

    @pytest.fixture
    def engine(self) -> Engine:
        return start
