"""Live runs: real members and producers, killed, stopped and out of disk, pass the checker; members
and producers with a deliberate bug do not."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest

from headrace.testing.children import seed
from tests.harness.live.run import LiveRun

SECONDS = 13


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [seed(), "fresh"])
def test_hurt_processes_lose_nothing_and_double_only_what_they_may(
    tmp_path: Path, chosen: str
) -> None:
    if chosen == "fresh":
        chosen = secrets.token_hex(4)
    verdict = LiveRun(tmp_path, chosen, SECONDS).run()
    shown = f"seed {chosen}, evidence in {tmp_path}: {verdict}"
    sys.stdout.write(shown)
    assert not verdict.violations, shown
    for fault in ("kills", "stops", "terms", "full disks"):
        assert verdict.counts[fault] > 0, shown
    for reached in ("acks", "takeovers", "moves", "doubles after harm"):
        assert verdict.counts[reached] > 0, shown
    assert verdict.counts["doubles clean"] == 0, shown


@pytest.mark.slow
def test_members_that_are_not_fenced_are_found_out(tmp_path: Path) -> None:
    verdict = LiveRun(tmp_path, seed(), 7, plan="zombies", sabotage="fencing").run()
    assert "T5" in verdict.broken, verdict


@pytest.mark.slow
def test_an_acknowledgement_before_the_commit_is_found_out(tmp_path: Path) -> None:
    verdict = LiveRun(tmp_path, seed(), 5, plan="impatience", sabotage="early-ack").run()
    assert "G1" in verdict.broken, verdict
