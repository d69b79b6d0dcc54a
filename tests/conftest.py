"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_LANES = 14
"""For all lanes that tests run at once, those just killed included."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One for all tests: starting it takes ten seconds."""
    with spark_session(SPARK_LANES) as session:
        yield session
