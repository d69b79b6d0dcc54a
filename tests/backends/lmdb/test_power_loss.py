"""Power loss: no image of the disk lacks an acknowledged record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.testing.children import seed
from tests.harness.faults import power

APPENDS, IMAGES = 300, 10_000


@pytest.mark.slow
def test_ten_thousand_power_losses_lose_nothing_that_was_acknowledged() -> None:
    outcome = power.survive(APPENDS, IMAGES)
    sys.stdout.write(
        f"seed {seed()}: {outcome.images} images in {outcome.seconds:.0f} s, {outcome.seen}"
    )
    assert outcome.bad == []
    assert outcome.images == IMAGES
    assert outcome.seen == {"whole": IMAGES}


@pytest.mark.slow
def test_the_power_checker_finds_a_hub_that_does_not_sync() -> None:
    outcome = power.survive(60, 60, unsynced=True)
    assert len(outcome.bad) > outcome.images / 2
    assert any("ends at" in bad or "UnknownStream" in bad for bad in outcome.bad)


@pytest.mark.slow
def test_every_commit_is_flushed_before_its_index_page_is_written_through(tmp_path: Path) -> None:
    recorded = power.trace(tmp_path / "hub", tmp_path, 20)
    listed = list(power.events(recorded))
    index = [i for i, e in enumerate(listed) if isinstance(e, power.DiskWrite) and e.synced]
    assert len(index) >= 20
    for at in index:
        assert isinstance(listed[at - 1], power.DiskFlush)
    told = [i for i, e in enumerate(listed) if isinstance(e, power.WriterNote) and e.what == "done"]
    assert all(isinstance(listed[at - 1], power.DiskWrite) for at in told)


def test_an_environment_is_opened_with_every_sync_and_without_a_writable_map(
    tmp_path: Path,
) -> None:
    backend = LmdbBackend(tmp_path / "hub", maintain=False)
    flags = backend._environment._env.flags()
    backend.close()
    assert (flags["sync"], flags["metasync"], flags["writemap"]) == (True, True, False)
