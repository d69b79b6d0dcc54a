"""A replica is killed at every fail point of lanes and replicas, with records on their way through
three stages with state."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.testing.children import seed
from headrace.tools.proof import stages
from tests.harness.proof.points import HURT, PointsVerdict, kill_at_points
from tests.harness.proof.sabotage import broken

RECORDS = 10_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> PointsVerdict:
    place = tmp_path_factory.mktemp("points")
    found = kill_at_points(place, HURT, RECORDS, seed=seed())
    sys.stdout.write(f"seed {seed()}: {found}")
    return found


def test_a_replica_was_killed_at_each_point(hurt: PointsVerdict) -> None:
    assert hurt.died == list(HURT)
    assert hurt.deaths >= len(HURT)
    assert hurt.records == RECORDS * len(HURT)


@pytest.mark.parametrize("stream", stages.STREAMS[1:])
def test_nothing_is_missing_doubled_or_out_of_order(hurt: PointsVerdict, stream: str) -> None:
    found = hurt.streams[stream]
    assert found.found == found.expected == hurt.records, found
    assert (found.lost, found.doubled, found.unexpected) == (0, 0, 0), found
    assert found.out_of_order == 0, found


def test_state_is_what_a_fold_over_the_input_makes(hurt: PointsVerdict) -> None:
    assert hurt.state == {"price": True, "bill": True, "total": True}


def test_no_replica_ended_by_itself(hurt: PointsVerdict) -> None:
    assert not hurt.ended
    assert hurt.clean


def test_a_zombie_that_is_fenced_does_no_harm(tmp_path: Path) -> None:
    found = kill_at_points(tmp_path, ["lane.before-commit"], 2_000, seed=seed(), action="stop")
    assert found.died == ["lane.before-commit"], found
    assert found.clean, found


def test_a_zombie_that_is_not_fenced_is_found_out(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    extra = broken(tmp_path / "broken", "fencing")
    found = kill_at_points(
        place, ["lane.before-commit"], 2_000, seed=seed(), action="stop", extra=extra
    )
    assert not found.clean, found
    assert sum(each.doubled or 0 for each in found.streams.values()) > 0, found
