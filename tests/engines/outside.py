"""What contracts share of engines whose lanes live outside this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.opening import in_one_place
from headrace.hub.run import Running, start
from headrace.testing.contracts.backend_under_test import Opening
from headrace.testing.contracts.engine.engine_under_test import Arm, Engine, EngineUnderTest


class Outside(EngineUnderTest):
    LOST_LANES_ARE_DEAD = True

    @pytest.fixture
    def where(self) -> dict[str, Any]:
        raise NotImplementedError("give a fixture `where`: what headrace.start is told")

    @pytest.fixture
    def opening(self, tmp_path: Path) -> Opening:
        return lambda: in_one_place(LmdbBackend(tmp_path / "hub"))

    @pytest.fixture
    def engine(self, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Engine:
        def started(*given: Any, **settings: Any) -> Running:
            running = start(*given, **{"lanes": 2, **where, **settings})
            # Only the first lanes die: where each does again, work goes on, but not in a minute.
            monkeypatch.delenv("HEADRACE_FAIL", raising=False)
            return running

        return started

    @pytest.fixture
    def arm_lanes(self, monkeypatch: pytest.MonkeyPatch) -> Arm:
        return lambda what: monkeypatch.setenv("HEADRACE_FAIL", what.replace("raise", "kill"))
