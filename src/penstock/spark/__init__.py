"""Topologies on Spark: lanes as tasks of a session.

>>> from penstock.spark import spark_session
"""

from __future__ import annotations

from penstock.spark.session import SparkSettings, spark_session

__all__ = ["SparkSettings", "spark_session"]
