"""Lanes on Spark are measured against lanes elsewhere, here over a few records and for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli.bench import _SOAK_GOALS, _SPARK_GOALS
from headrace.core.errors import BadSetting
from headrace.tools.bench import pipeline, soak, visible
from headrace.tools.bench.measure import in_turns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_lanes_on_spark_are_measured_against_threads_and_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setattr(visible, "WARM_S", 0.1)
    said: list[str] = []
    found = pipeline.run(tmp_path, said.append, "spark", records=3_000, rounds=1, seconds=0.3)
    assert _SPARK_GOALS.keys() <= found.keys()
    assert found["engine"] == "spark"
    for engine in ("threads", "processes", "spark"):
        assert found[f"{engine}_records_per_s"] > 0
        assert found[f"worked_{engine}_records_per_s"] > 0
        assert 0 < found[f"{engine}_slice_records"] <= 3_000
    for name in ("latency", "latency5"):
        assert 0 < found[f"{name}_p50_ms"] <= found[f"{name}_p99_ms"]
        assert found[f"{name}_records"] > 0
    assert found["latency5_p50_ms"] > found["latency_p50_ms"]
    parts = ("start_session_s", "start_lanes_s", "start_first_s")
    assert found["start_s"] == pytest.approx(sum(found[name] for name in parts), abs=0.02)
    assert found["idle_processes"] > found["idle_lanes"] == 10
    assert all(0 <= found[name] < 2 for name in ("idle_cpu", "idle_jvm_cpu", "idle_driver_cpu"))
    assert len(said) == 6


@pytest.mark.slow
def test_memory_is_watched_while_a_topology_runs(tmp_path: Path, spark: SparkSession) -> None:
    said: list[str] = []
    found = soak.run(tmp_path, said.append, seconds=1.5, records=3_000)
    assert _SOAK_GOALS.keys() <= found.keys()
    assert (found["lanes_lost"], found["not_stored"]) == (0, 0)
    assert found["records_per_s"] > 0
    for name in ("driver", "jvm", "workers"):
        assert 0 < found[f"{name}_own_mb_last"] <= found[f"{name}_rss_mb_last"]
        assert found[f"{name}_pss_mb_first"] > 0
    assert any("of 2 s" in text and "behind" in text for text in said)


def test_a_soak_without_spark_watches_one_process(tmp_path: Path) -> None:
    found = soak.run(tmp_path, lambda text: None, "local", seconds=0.3, records=2_000)
    assert found["driver_own_mb_last"] > 0
    assert "jvm_own_mb_last" not in found


def test_a_soak_on_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="no engine 'steam'"):
        soak.run(tmp_path, lambda text: None, "steam")


def test_the_slope_of_growing_values_is_positive() -> None:
    assert soak.slope([0.0, 1.0, 2.0], [5.0, 7.0, 9.0]) == pytest.approx(2)
    assert soak.slope([0.0, 1.0, 2.0], [5.0, 5.0, 5.0]) == 0
    assert soak.slope([1.0], [3.0]) == 0


def test_another_run_begins_each_round() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = in_turns({name: lambda name=name: run(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(order) == "abcbcacab"
    assert found == {"a": [1, 6, 8], "b": [2, 4, 9], "c": [3, 5, 7]}
