"""Hubs of one process on one directory share the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.opening import in_one_place


def test_two_hubs_of_a_process_share_the_environment_and_closing_one_leaves_the_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "hub")
    one = LmdbBackend(tmp_path / "hub")
    two = LmdbBackend(tmp_path / "link")
    assert one._environment is two._environment
    first, second = headrace.Hub(in_one_place(one)), headrace.Hub(in_one_place(two))
    stream = first.create_stream("a", shards=1)
    stream.append(b"1")
    first.close()
    first.close()
    second.stream("a").append(b"2")
    assert [record.data for record in second.stream("a").read(0)] == [b"1", b"2"]
    second.close()
    with headrace.open(tmp_path / "hub") as third:
        assert len(list(third.stream("a").read(0))) == 2


def test_a_closed_hub_says_so(tmp_path: Path) -> None:
    hub = headrace.open(tmp_path / "hub")
    stream = hub.create_stream("a", shards=1)
    hub.close()
    uses = (
        lambda: stream.append(b"x"),
        lambda: list(stream.read(0)),
        lambda: stream.bounds(0),
        lambda: stream.trim(0, 0),
        lambda: hub.create_stream("b"),
        lambda: hub.delete_stream("a"),
        hub.streams,
        hub.describe,
    )
    for use in uses:
        with pytest.raises(headrace.Closed, match="closed"):
            use()


def test_a_closed_hub_beside_an_open_one_says_so(tmp_path: Path) -> None:
    closed, other = headrace.open(tmp_path / "hub"), headrace.open(tmp_path / "hub")
    stream = closed.create_stream("a", shards=1)
    closed.close()
    with pytest.raises(headrace.Closed):
        stream.append(b"x")
    with pytest.raises(headrace.Closed):
        list(stream.read(0))
    with pytest.raises(headrace.Closed):
        closed.describe()
    other.close()
