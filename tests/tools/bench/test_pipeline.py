"""The benchmark of pipelines runs a topology, here over a few records and for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.bench import _PIPELINE_GOALS
from headrace.core.errors import BadSetting
from headrace.tools.bench import pipeline, visible


def quiet(text: str) -> None:
    """Drop the lines about progress."""


def test_a_lane_is_measured_against_a_thread_that_does_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visible, "WARM_S", 0.1)
    said: list[str] = []
    found = pipeline.run(tmp_path, said.append, records=4_000, rounds=1, seconds=0.3)
    assert _PIPELINE_GOALS.keys() <= found.keys()
    for name in ("trivial_ratio", "json_ratio", "records_per_s", "slice_records", "commits"):
        assert found[name] > 0, name
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"] <= found["latency_max_ms"] + 0.1
    assert found["latency_records"] > 0
    assert len(said) == 3


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="no engine 'steam'"):
        pipeline.run(tmp_path, quiet, "steam")
