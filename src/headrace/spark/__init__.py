"""Runs topologies on Spark: lanes are tasks of a session.

>>> from headrace.spark import spark_session
"""

from __future__ import annotations

from headrace.spark.session.session import SparkSettings, spark_session

__all__ = ["SparkSettings", "spark_session"]
