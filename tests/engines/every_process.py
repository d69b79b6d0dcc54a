"""The whole contract of engines, on lanes that are processes: some minutes, by ``make engines``.
Lanes on Spark, which share all but the process with these, have it in every run of the tests."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.testing.contracts.engine.all import EngineContract
from tests.engines.outside import Outside


class TestEveryProcess(Outside, EngineContract):
    @pytest.fixture
    def where(self) -> dict[str, Any]:
        return {"processes": True}
