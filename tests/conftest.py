"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.spark import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LANES = 14
"""For all lanes that tests run at once, those just killed included."""
SPARK_CONF = {"spark.python.worker.reuse": "true"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests: starting it takes ten seconds. Its workers serve one lane after the other,
    as in sessions that are not ours, which is harder."""
    settings = SparkSettings(conf=SPARK_CONF)
    with spark_session(SPARK_LANES, settings) as session:
        yield session
