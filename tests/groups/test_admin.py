"""The groups of a hub: listed, sought, skipped and deleted by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import (
    BadName,
    BadQuantity,
    BadSetting,
    Contended,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownOutcome,
    UnknownShard,
)
from headrace.core.groups.events import (
    Delete,
    Leave,
)
from headrace.groups.admin import Groups
from headrace.groups.positions import Seek
from headrace.groups.stopped import TRIES_MAX
from headrace.ops.group_views import group_view
from tests.core.groups.building import at
from tests.groups.building import (
    BEGIN_MS,
    GROUP,
    NOW_MS,
    STREAM,
    Closing,
    Meanwhile,
    checkpoints_of,
    commit_to,
    coordinator_on,
    groups_in,
    heartbeat_of,
    idle_group,
    join_event,
    new_stream,
)


def test_groups_are_listed_by_name_and_deleted_ones_are_not(backend: LogAndStore) -> None:
    stream = new_stream(backend)
    coordinator = coordinator_on(backend)
    for name in ("b", "shop/a", "c"):
        coordinator.apply(name, join_event(stream, "A"))
    coordinator.apply("c", Delete(1))
    groups = groups_in(backend)
    assert groups.names() == ["b", "shop/a"]
    assert sorted(group.name for group in groups.every()) == ["b", "shop/a"]
    assert groups.load("b") == coordinator.load("b")
    for name in ("c", "never"):
        with pytest.raises(UnknownGroup, match=f"no group '{name}' in this hub") as caught:
            groups.load(name)
        assert caught.value.name == name
    with pytest.raises(BadName):
        groups.load("no way")


def test_a_hub_without_groups_has_none(backend: LogAndStore) -> None:
    assert groups_in(backend).names() == []
    with pytest.raises(UnknownGroup):
        groups_in(backend).history(GROUP)


def test_group_shards_and_checkpoints_survive_a_restart(
    tmp_path: Path,
) -> None:
    first = LmdbBackend(tmp_path / "hub")
    stream = new_stream(first)
    coordinator = coordinator_on(first)
    for name in "AB":
        coordinator.apply(GROUP, join_event(stream, name))
    coordinator.apply(GROUP, heartbeat_of(coordinator.load(GROUP), "A"))
    commit_to(first, stream, 0, 7)
    before = coordinator.load(GROUP)
    first.close()
    again = LmdbBackend(tmp_path / "hub", create=False)
    groups = groups_in(again)
    group = groups.load(GROUP)
    assert group == before
    assert {name: sorted(s.index for s in group.owned(name)) for name in group.members} == {
        "A": [0, 1],
        "B": [2, 3],
    }
    assert checkpoints_of(groups) == {0: 7, 1: None, 2: None, 3: None}
    assert [entry.version for entry in groups.history(GROUP)] == [1, 2, 3]
    again.close()


@pytest.mark.parametrize(
    ("where", "to"),
    [
        ("earliest", 0),
        ("latest", 10),
        (6, 6),
        (0, 0),
        (10, 10),
        (datetime.fromtimestamp(BEGIN_MS / 1000 + 3, UTC), 3),
        (datetime.fromtimestamp(BEGIN_MS / 1000 + 2.5, UTC), 3),
        (datetime(2020, 1, 1, tzinfo=UTC), 0),
        (datetime(2999, 1, 1, tzinfo=UTC), 10),
        (timedelta(seconds=95), 5),
        (timedelta(days=9_999_999), 0),
        (timedelta(0), 10),
    ],
    ids=str,
)
def test_a_group_without_members_is_moved_to_the_given_position(
    backend: LogAndStore, where: Any, to: int
) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    plan = groups.plan(GROUP, where)
    skipped, repeated = max(to - 4, 0), max(4 - to, 0)
    assert plan == [Seek(at(n), 4, to, skipped, repeated, False, ()) for n in range(2)]
    assert checkpoints_of(groups) == {0: 4, 1: 4}
    assert groups.seek(GROUP, where) == plan
    assert checkpoints_of(groups) == {0: to, 1: to}


def test_some_shards_are_moved_and_others_stay(backend: LogAndStore) -> None:
    idle_group(backend, 3)
    groups = groups_in(backend)
    moved = groups.seek(GROUP, "earliest", STREAM, [0, 2])
    assert [seek.shard.index for seek in moved] == [0, 2]
    assert checkpoints_of(groups) == {0: 0, 1: 4, 2: 0}


def test_a_seek_to_the_current_checkpoint_writes_nothing(backend: LogAndStore) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    before = backend.changes()
    assert groups.seek(GROUP, 4) == []
    assert backend.changes() == before


def test_without_a_checkpoint_a_seek_counts_from_the_first_kept_record(
    backend: LogAndStore,
) -> None:
    stream = new_stream(backend, 1)
    backend.trim(stream, 0, 3)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    coordinator.apply(GROUP, Leave("A", 1))
    groups = groups_in(backend)
    assert groups.seek(GROUP, 5) == [Seek(at(0), None, 5, 2, 0, False, ())]
    assert checkpoints_of(groups) == {0: 5}


@pytest.mark.parametrize("offset", [2, 11, -1])
def test_a_seek_to_an_unreadable_offset_is_refused_and_moves_nothing(
    backend: LogAndStore, offset: int
) -> None:
    stream = idle_group(backend)
    backend.trim(stream, 1, 3)
    groups = groups_in(backend)
    with pytest.raises(OffsetOutOfRange) as caught:
        groups.seek(GROUP, offset)
    assert caught.value.offset == offset
    assert checkpoints_of(groups) == {0: 4, 1: 4}


@pytest.mark.parametrize(
    ("asked", "error", "says"),
    [
        ({"where": "tomorrow"}, BadSetting, "an offset is a whole number"),
        ({"where": True}, BadSetting, "an offset is a whole number"),
        ({"where": None}, BadSetting, "an offset is a whole number"),
        ({"where": datetime(2026, 1, 1)}, BadQuantity, "time zone"),  # noqa: DTZ001
        ({"where": timedelta(-1)}, BadSetting, "still to come"),
        ({"where": 1, "shards": [7]}, UnknownShard, "it has 0 to 1"),
        ({"where": 1, "stream": "x"}, BadSetting, "does not read 'x'"),
    ],
    ids=str,
)
def test_a_seek_to_a_position_that_does_not_exist_is_refused(
    backend: LogAndStore, asked: dict[str, Any], error: type[Exception], says: str
) -> None:
    idle_group(backend)
    with pytest.raises(error, match=says):
        groups_in(backend).seek(GROUP, **asked)


def test_a_closed_shard_is_done_at_its_end_and_free_before_it() -> None:
    closed = Closing()
    stream = idle_group(closed, 2)
    closed.close_shard(stream, 1)
    groups = groups_in(closed)
    assert [seek.finished for seek in groups.seek(GROUP, "latest")] == [False, True]
    assert set(groups.load(GROUP).shards) == {at(0)}
    view = group_view(groups.load(GROUP), {}, groups.positions(groups.load(GROUP)), {}, [], NOW_MS)
    assert [row["state"] for row in view["shards"]] == ["free", "done"]
    groups.seek(GROUP, 3, shards=[1])
    standing = groups.load(GROUP).shards[at(1)]
    assert (standing.state, standing.parents) == ("free", (0,))
    assert checkpoints_of(groups) == {0: 10, 1: 3}


def test_a_seek_is_repeated_when_the_epoch_rises_meanwhile() -> None:
    backend = Meanwhile()
    idle_group(backend, 1)
    groups, others = groups_in(backend), groups_in(backend)
    backend.happens = lambda: others.seek(GROUP, 9)
    groups.seek(GROUP, 1)
    assert checkpoints_of(groups) == {0: 1}


class Restless(MemoryBackend):
    """A backend on which another operator moves the checkpoint right before each transaction."""

    others: Groups | None = None
    turns = 0

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        others, self.others = self.others, None
        if others is not None:
            self.turns += 1
            others.seek(GROUP, self.turns % 2)
            self.others = others
        return super().transact(checks, puts)


def test_a_seek_overtaken_too_often_raises_contended() -> None:
    backend = Restless()
    idle_group(backend, 1)
    backend.others = groups_in(backend)
    with pytest.raises(Contended, match=GROUP):
        groups_in(backend).seek(GROUP, 7)
    assert backend.turns == TRIES_MAX
    assert checkpoints_of(groups_in(backend)) == {0: TRIES_MAX % 2}


def test_a_group_created_again_meanwhile_is_not_deleted() -> None:
    backend = Meanwhile()
    stream = idle_group(backend, 1)
    groups, coordinator = groups_in(backend), coordinator_on(backend)

    def anew() -> None:
        coordinator.apply(GROUP, Delete(1))
        coordinator.apply(GROUP, join_event(stream, "B", 2))
        coordinator.apply(GROUP, Leave("B", 2))

    backend.happens = anew
    with pytest.raises((Contended, UnknownOutcome)):
        groups.delete(GROUP)
    assert groups.names() == [GROUP]


def test_records_that_cannot_be_read_are_skipped(backend: LogAndStore) -> None:
    idle_group(backend)
    groups = groups_in(backend)
    assert groups.skip(GROUP, at(1)) == Seek(at(1), 4, 5, 1, 0, False, ())
    assert checkpoints_of(groups) == {0: 4, 1: 5}
    groups.skip(GROUP, at(1), 5)
    with pytest.raises(OffsetOutOfRange, match=r"11 is beyond the end"):
        groups.skip(GROUP, at(1))
    assert checkpoints_of(groups) == {0: 4, 1: 10}


@pytest.mark.parametrize("records", [0, -1, True, 1.5])
def test_skip_takes_only_a_positive_number_of_records(backend: LogAndStore, records: Any) -> None:
    idle_group(backend)
    with pytest.raises(BadSetting, match="a whole number from 1"):
        groups_in(backend).skip(GROUP, at(1), records)
    with pytest.raises(UnknownShard):
        groups_in(backend).skip(GROUP, at(9))


def test_a_deleted_group_leaves_only_its_journal(backend: LogAndStore) -> None:
    stream = idle_group(backend)
    groups = groups_in(backend)
    groups.delete(GROUP)
    assert groups.names() == []
    left = {key[:1] for key, _ in backend.scan(b"") if key != store_keys.group_key(GROUP)}
    assert left == {b"j"}
    assert [type(entry.event).__name__ for entry in groups.history(GROUP)] == [
        "Join", "Leave", "Delete", "Swept",
    ]  # fmt: skip
    with pytest.raises(UnknownGroup):
        groups.delete(GROUP)
    coordinator_on(backend).apply(GROUP, join_event(stream, "A", 2))
    assert [entry.version for entry in groups.history(GROUP)] == [1, 2, 3, 4, 5]
    assert checkpoints_of(groups) == {0: None, 1: None}
