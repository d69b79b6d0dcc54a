"""The whole contract of engines, on lanes that are tasks of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace.testing.contracts.engine.all import EngineContract
from tests.engines.outside import Outside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
class TestSpark(Outside, EngineContract):
    @pytest.fixture
    def where(self, spark: SparkSession) -> dict[str, Any]:
        return {"spark": spark}
