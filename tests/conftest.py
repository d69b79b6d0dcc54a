"""Fixtures that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from headrace.spark import SparkSettings, spark_session
from headrace.tools.kafka_node import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A busy machine is no reason for a property to fail.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

SPARK_LANES = 14
"""Enough for all lanes that tests run at once, also those just killed."""
SPARK_CONF = {"spark.python.worker.reuse": "true"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: its start takes ten seconds. Its workers serve one lane after the
    other, as in a session that a user has made, which is harder."""
    with spark_session(SPARK_LANES, SparkSettings(conf=SPARK_CONF)) as session:
        yield session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker with all five listeners. A test that kills it starts it again."""
    with Broker(tmp_path_factory.mktemp("kafka") / "broker", secure=True) as started:
        yield started
