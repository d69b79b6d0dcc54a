"""The benchmark of groups measures real processes, here a few and for a moment."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headrace.cli.bench import _GROUPS_GOALS
from headrace.tools.bench import consuming, groups, handover, joining, machine
from headrace.tools.bench.handover import HandoverLoad

TINY = HandoverLoad(members=2, shards=4, per_second=400, rounds=1, window_s=0.1, spares=2)


def quiet(text: str) -> None:
    """Drop the lines about progress."""


@pytest.mark.slow
def test_hand_overs_of_each_kind_are_measured_and_nothing_is_lost(tmp_path: Path) -> None:
    said: list[str] = []
    found = handover.measured(tmp_path, said.append, TINY)
    assert (found["joins"], found["leaves"], found["kills"]) == (2, 1, 1)
    assert found["records"] > 0
    assert found["lost"] == found["doubles_on_clean_moves"] == found["out_of_order"] == 0
    for name in ("unmoved_gap_ms_p99", "unmoved_gap_ms_p99_calm", "moved_gap_ms_p99"):
        assert found[name] > 0, name
    assert found["kill_gap_ms_p99"] > 0
    assert any("round 1 of 1" in text for text in said)


def test_members_that_join_at_once_are_measured(tmp_path: Path) -> None:
    found = joining.joined(tmp_path, quiet, members=2, shards=2, rounds=2)
    assert 0 < found["join20_s"] <= found["join20_s_max"]


def test_shards_that_move_to_a_new_member_are_measured(tmp_path: Path) -> None:
    found = joining.converged(tmp_path, quiet, shards=10, rounds=1)
    assert 0 < found["converge1000_s"] <= found["converge1000_s_max"]


def test_a_consumer_is_measured_against_plain_reading(tmp_path: Path) -> None:
    found = consuming.consumed(tmp_path, quiet, records=5_000, rounds=2)
    assert found["consumer_ratio"] > 0
    assert found["consumer_records_per_s"] > 0
    assert found["consumer_read_records_per_s"] > 0


def test_the_processor_time_of_waiting_is_measured(tmp_path: Path) -> None:
    found = consuming.waited(tmp_path, quiet, waiting_s=0.3)
    assert 0 < found["idle_cpu"] < 1


@pytest.mark.slow
def test_every_goal_is_about_a_figure_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "HEARTBEATS", 10)
    monkeypatch.setattr(machine, "ROUNDS", 1)
    tiny = {
        "handover": partial(handover.measured, load=TINY),
        "join": partial(joining.joined, members=2, shards=2, rounds=1),
        "converge": partial(joining.converged, shards=10, rounds=1),
        "consume": partial(consuming.consumed, records=5_000, rounds=1),
        "idle": partial(consuming.waited, waiting_s=0.1),
    }
    for name, part in tiny.items():
        monkeypatch.setitem(groups.PARTS, name, part)
    found = groups.run(tmp_path, quiet)
    assert _GROUPS_GOALS.keys() <= found.keys()
