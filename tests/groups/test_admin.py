"""The groups of a hub: listed, measured, explained, and moved by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore, in_one_place
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.errors import (
    BadBatch,
    BadName,
    BadQuantity,
    BadSetting,
    Contended,
    Fenced,
    GroupInUse,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownOutcome,
    UnknownShard,
    UnknownStream,
)
from headrace.core.groups import journal
from headrace.core.groups.allocators import Allocator, balanced, capped
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import (
    Configure,
    Delete,
    Evict,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Release,
    Reply,
    Resume,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Group
from headrace.core.model import Bounds, RecordId, ShardId, Slice, StreamInfo
from headrace.core.ports import Append, Commit, Grant, ReadResult, Sign, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.groups.admin import Groups
from headrace.groups.coordinator import Coordinator
from headrace.groups.positions import Position, Seek
from headrace.groups.stopped import TRIES_MAX
from headrace.ops.explain import GroupChanges, changes_of
from headrace.ops.group_views import (
    explanation,
    group_view,
    history_views,
    lag_views,
    latency_views,
)

GROUP = "billing"
STREAM = "orders"
NOW_MS = 1_700_000_100_000
BEGIN_MS = 1_700_000_000_000
"""When the first record of each shard came; one comes each second."""


@pytest.fixture(params=["memory", "lmdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogAndStore]:
    memory = request.param == "memory"
    opened: LogAndStore = MemoryBackend() if memory else LmdbBackend(tmp_path / "hub")
    yield opened
    opened.close()


def _stream(
    backend: LogAndStore, shards: int = 4, records: int = 10, name: str = STREAM
) -> StreamInfo:
    info = backend.create_stream(StreamSpec(name, shards, "bytes", "md5-range", None, None, 0))
    for shard in range(shards):
        rows = [
            Row(b"key%d" % n, b"data", BEGIN_MS + 1000 * n, 0, 1, [], None) for n in range(records)
        ]
        backend.append([Append(info, shard, Batch.of_rows(rows))])
    return info


def _groups(backend: LogAndStore, *allocators: Allocator) -> Groups:
    return Groups(in_one_place(backend), allocators, now_ms=lambda: NOW_MS)


def _coordinator(backend: LogAndStore, *allocators: Allocator) -> Coordinator:
    ticks = iter(range(BEGIN_MS, NOW_MS))
    return Coordinator(
        backend, allocators, dice=lambda: 0.0, sleep=lambda _: None, now_ms=lambda: next(ticks)
    )


def _facts(stream: StreamInfo, seen: int = 0) -> StreamFacts:
    rows = tuple(ShardFacts(shard.index, shard.parents) for shard in stream.shards)
    return StreamFacts(stream.name, stream.id, rows, seen)


def _join(
    stream: StreamInfo, name: str, incarnation: int = 1, allocator: Allocator = balanced
) -> Join:
    return Join(name, incarnation, (_facts(stream),), allocator)


def _granted(reply: Reply) -> Mapping[ShardId, int]:
    assert isinstance(reply, Granted), reply
    return reply.shards


def _beat(group: Group, name: str) -> Heartbeat:
    held = {s: own.epoch for s, own in group.owned(name).items() if own.state == "held"}
    return Heartbeat(name, group.members[name].incarnation, 1, group.version, held)


def _commit(backend: LogAndStore, stream: StreamInfo, shard: int, end: int, epoch: int = 1) -> None:
    stored = backend.get(store_keys.checkpoint_key(GROUP, stream.id, shard))
    start = Checkpoint.decoded(stored.value).next if stored else 0
    grant = Grant(GROUP, stream, shard, store_keys.epoch_token(epoch))
    backend.commit(Commit(grant=grant, done=Slice(stream.name, shard, start, end)))


def _stopped(backend: LogAndStore, shards: int = 2, records: int = 10, done: int = 4) -> StreamInfo:
    """A group that has read some of each shard, and whose member has left."""
    stream = _stream(backend, shards, records)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    for shard in range(shards):
        _commit(backend, stream, shard, done)
    coordinator.apply(GROUP, Leave("A", 1))
    return stream


def _checkpoints(groups: Groups) -> dict[int, int | None]:
    positions = groups.positions(groups.load(GROUP))
    return {shard.index: position.checkpoint for shard, position in positions.items()}


def _at(index: int) -> ShardId:
    return ShardId(STREAM, index)


# What there is


def test_groups_are_listed_by_name_and_deleted_ones_are_not(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    for name in ("b", "shop/a", "c"):
        coordinator.apply(name, _join(stream, "A"))
    coordinator.apply("c", Delete(1))
    groups = _groups(backend)
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
    assert _groups(backend).names() == []
    with pytest.raises(UnknownGroup):
        _groups(backend).history(GROUP)


def test_group_shards_and_checkpoints_survive_a_restart(
    tmp_path: Path,
) -> None:
    first = LmdbBackend(tmp_path / "hub")
    stream = _stream(first)
    coordinator = _coordinator(first)
    for name in "AB":
        coordinator.apply(GROUP, _join(stream, name))
    coordinator.apply(GROUP, _beat(coordinator.load(GROUP), "A"))
    _commit(first, stream, 0, 7)
    before = coordinator.load(GROUP)
    first.close()
    again = LmdbBackend(tmp_path / "hub", create=False)
    groups = _groups(again)
    group = groups.load(GROUP)
    assert group == before
    assert {name: sorted(s.index for s in group.owned(name)) for name in group.members} == {
        "A": [0, 1],
        "B": [2, 3],
    }
    assert _checkpoints(groups) == {0: 7, 1: None, 2: None, 3: None}
    assert [entry.version for entry in groups.history(GROUP)] == [1, 2, 3]
    again.close()


# How far they have come


def test_a_position_holds_checkpoint_bounds_and_lag(backend: LogAndStore) -> None:
    stream = _stream(backend, 3)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    _commit(backend, stream, 1, 7)
    _commit(backend, stream, 2, 10)
    groups = _groups(backend)
    positions = groups.positions(groups.load(GROUP))
    assert positions == {
        _at(0): Position(stream, 0, None, Bounds(0, 10)),
        _at(1): Position(stream, 1, 7, Bounds(0, 10)),
        _at(2): Position(stream, 2, 10, Bounds(0, 10)),
    }
    assert [position.lag for position in positions.values()] == [10, 3, 0]
    rows = lag_views(GROUP, positions, groups.unread(positions), NOW_MS, each=True)
    assert [(row["shard"], row["lag"], row["lag_s"]) for row in rows] == [
        (0, 10, 100.0),
        (1, 3, 93.0),
        (2, 0, 0.0),
    ]
    assert lag_views(GROUP, positions, groups.unread(positions), NOW_MS) == [
        {
            "stream": STREAM,
            "group": GROUP,
            "shard": "all",
            "lag": 13,
            "pos": 17,
            "end": 30,
            "lag_s": 100.0,
        }
    ]


def test_trimmed_records_do_not_count_as_lag(backend: LogAndStore) -> None:
    stream = _stopped(backend, 1, done=2)
    backend.trim(stream, 0, 6)
    groups = _groups(backend)
    positions = groups.positions(groups.load(GROUP))
    assert (positions[_at(0)].lag, positions[_at(0)].next, positions[_at(0)].checkpoint) == (
        4,
        6,
        2,
    )
    assert groups.unread(positions)[_at(0)].offset == 6
    assert groups.last_read(positions) == {}


def test_with_lag_latency_is_the_age_of_the_record_before_the_checkpoint(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 3, records=3)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    groups = _groups(backend)

    def latency(each: bool = True) -> list[tuple[Any, ...]]:
        positions = groups.positions(groups.load(GROUP))
        rows = latency_views(GROUP, positions, groups.last_read(positions), NOW_MS, each=each)
        return [(row["lag"], row["latency_s"], row["key"]) for row in rows]

    assert latency() == [(3, None, None)] * 3
    for shard in (0, 1):
        _commit(backend, stream, shard, 1)
    _commit(backend, stream, 1, 2)
    _commit(backend, stream, 2, 3)
    assert latency() == [(2, 100.0, "key0"), (1, 99.0, "key1"), (0, 0.0, None)]
    assert latency(each=False) == [(3, 100.0, "key0")]


class Damaging(MemoryBackend):
    """One whose records cannot be read."""

    def read(self, stream: StreamInfo, shard: int, start: int, *_: Any, **__: Any) -> ReadResult:
        raise BadBatch(stream.name, shard, start, start + 1, "not what was written")


def test_a_damaged_record_hides_its_age_and_nothing_else() -> None:
    backend = Damaging()
    _stopped(backend, 1)
    groups = _groups(backend)
    positions = groups.positions(groups.load(GROUP))
    (row,) = lag_views(GROUP, positions, groups.unread(positions), NOW_MS)
    assert (row["lag"], row["lag_s"]) == (6, None)
    (row,) = latency_views(GROUP, positions, groups.last_read(positions), NOW_MS)
    assert (row["lag"], row["latency_s"]) == (6, None)


def test_a_stream_that_was_deleted_or_created_again_has_no_positions(backend: LogAndStore) -> None:
    _stopped(backend)
    groups = _groups(backend)
    backend.delete_stream(STREAM)
    assert groups.positions(groups.load(GROUP)) == {}
    with pytest.raises(UnknownStream):
        groups.seek(GROUP, "earliest", STREAM)
    assert groups.seek(GROUP, "earliest") == []
    _stream(backend)
    assert groups.positions(groups.load(GROUP)) == {}
    with pytest.raises(UnknownStream):
        groups.skip(GROUP, _at(0))


def test_positions_can_be_limited_to_one_stream(backend: LogAndStore) -> None:
    stream, other = _stream(backend, 1), _stream(backend, 2, name="bills")
    event = Join("A", 1, (_facts(stream), _facts(other)), balanced)
    _coordinator(backend).apply(GROUP, event)
    groups = _groups(backend)
    group = groups.load(GROUP)
    assert {str(shard) for shard in groups.positions(group)} == {"bills:0", "bills:1", "orders:0"}
    assert set(groups.positions(group, STREAM)) == {_at(0)}
    with pytest.raises(BadSetting, match=r"does not read 'x': it reads bills, orders"):
        groups.positions(group, "x")
    with pytest.raises(BadSetting, match=r"reads bills, orders: say which stream"):
        groups.plan(GROUP, 3)
    with pytest.raises(BadSetting, match=r"say which stream"):
        groups.plan(GROUP, "latest", shards=[0])
    assert len(groups.plan(GROUP, "latest")) == 3


# Seeking


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
    _stopped(backend)
    groups = _groups(backend)
    plan = groups.plan(GROUP, where)
    skipped, repeated = max(to - 4, 0), max(4 - to, 0)
    assert plan == [Seek(_at(n), 4, to, skipped, repeated, False, ()) for n in range(2)]
    assert _checkpoints(groups) == {0: 4, 1: 4}
    assert groups.seek(GROUP, where) == plan
    assert _checkpoints(groups) == {0: to, 1: to}


def test_some_shards_are_moved_and_others_stay(backend: LogAndStore) -> None:
    _stopped(backend, 3)
    groups = _groups(backend)
    moved = groups.seek(GROUP, "earliest", STREAM, [0, 2])
    assert [seek.shard.index for seek in moved] == [0, 2]
    assert _checkpoints(groups) == {0: 0, 1: 4, 2: 0}


def test_a_seek_to_the_current_checkpoint_writes_nothing(backend: LogAndStore) -> None:
    _stopped(backend)
    groups = _groups(backend)
    before = backend.changes()
    assert groups.seek(GROUP, 4) == []
    assert backend.changes() == before


def test_without_a_checkpoint_a_seek_counts_from_the_first_kept_record(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 1)
    backend.trim(stream, 0, 3)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, Leave("A", 1))
    groups = _groups(backend)
    assert groups.seek(GROUP, 5) == [Seek(_at(0), None, 5, 2, 0, False, ())]
    assert _checkpoints(groups) == {0: 5}


@pytest.mark.parametrize("offset", [2, 11, -1])
def test_a_seek_to_an_unreadable_offset_is_refused_and_moves_nothing(
    backend: LogAndStore, offset: int
) -> None:
    stream = _stopped(backend)
    backend.trim(stream, 1, 3)
    groups = _groups(backend)
    with pytest.raises(OffsetOutOfRange) as caught:
        groups.seek(GROUP, offset)
    assert caught.value.offset == offset
    assert _checkpoints(groups) == {0: 4, 1: 4}


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
    _stopped(backend)
    with pytest.raises(error, match=says):
        _groups(backend).seek(GROUP, **asked)


def test_a_closed_shard_is_done_at_its_end_and_free_before_it() -> None:
    closed = Closing()
    stream = _stopped(closed, 2)
    closed.close_shard(stream, 1)
    groups = _groups(closed)
    assert [seek.finished for seek in groups.seek(GROUP, "latest")] == [False, True]
    assert set(groups.load(GROUP).shards) == {_at(0)}
    view = group_view(groups.load(GROUP), {}, groups.positions(groups.load(GROUP)), {}, [], NOW_MS)
    assert [row["state"] for row in view["shards"]] == ["free", "done"]
    groups.seek(GROUP, 3, shards=[1])
    standing = groups.load(GROUP).shards[_at(1)]
    assert (standing.state, standing.parents) == ("free", (0,))
    assert _checkpoints(groups) == {0: 10, 1: 3}


class Closing(MemoryBackend):
    """One whose shards can be closed."""

    def close_shard(self, stream: StreamInfo, index: int) -> None:
        shards = list(stream.shards)
        shards[index] = replace(shards[index], open=False, parents=(0,))
        self._streams[stream.name] = replace(stream, shards=tuple(shards))


# Members that live, and members that do not


@pytest.mark.parametrize("action", ["seek", "skip", "delete"])
def test_a_group_with_members_is_changed_by_force_only(backend: LogAndStore, action: str) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    for number in range(7):
        coordinator.apply(GROUP, _join(stream, f"m{number}"))
    backend.liveness.beat(GROUP, "m1", 1, 5)
    groups = _groups(backend)

    def act(force: bool) -> None:
        match action:
            case "seek":
                groups.seek(GROUP, 3, force=force)
            case "skip":
                groups.skip(GROUP, _at(0), force=force)
            case _:
                groups.delete(GROUP, force=force)

    before = backend.changes()
    with pytest.raises(GroupInUse, match=r"m0, m1, m2, m3, m4 and 2 more; .*--force") as caught:
        act(force=False)
    assert caught.value.members == [f"m{number}" for number in range(7)]
    assert backend.changes() == before
    act(force=True)
    assert backend.changes() != before


def test_a_forced_seek_fences_the_owner_which_goes_on_from_there(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    for shard in (0, 1):
        _commit(backend, stream, shard, 5)
    groups = _groups(backend)
    groups.seek(GROUP, 2, shards=[0], force=True)
    with pytest.raises(Fenced):
        _commit(backend, stream, 0, 9)
    _commit(backend, stream, 1, 9)
    shards = _granted(coordinator.apply(GROUP, _beat(groups.load(GROUP), "A")))
    assert shards == {_at(0): 2, _at(1): 1}
    _commit(backend, stream, 0, 3, epoch=2)
    assert _checkpoints(groups) == {0: 3, 1: 9}


def test_a_forced_seek_to_the_current_checkpoint_fences_too(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    _coordinator(backend).apply(GROUP, _join(stream, "A"))
    _commit(backend, stream, 0, 5)
    assert len(_groups(backend).seek(GROUP, 5, force=True)) == 1
    with pytest.raises(Fenced):
        _commit(backend, stream, 0, 9)


class Dead:
    """Signs of members whose processes are dead; of those who come back in time, until they do."""

    def __init__(self, *names: str) -> None:
        self.dead = set(names)
        self.asked: list[str] = []
        self.left: list[str] = []
        self.risen = ""

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        self.asked.append(member)
        if member == self.risen and self.asked.count(member) > 1:
            return Sign(True, 2, 0.0)
        return Sign(member not in self.dead, 1, 60.0)

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None: ...

    def leave(self, group: str, member: str, incarnation: int) -> None:
        self.left.append(member)


def test_dead_members_are_evicted_and_do_not_hinder_a_seek() -> None:
    backend = MemoryBackend()
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    for name in "AB":
        coordinator.apply(GROUP, _join(stream, name))
    signs: Any = Dead("A", "B")
    backend.liveness = signs
    groups = _groups(backend)
    groups.seek(GROUP, 3)
    assert groups.load(GROUP).members == {}
    assert [type(e.event) for e in groups.history(GROUP)[2:4]] == [Evict, Evict]
    assert signs.left == ["A", "B"]
    assert _checkpoints(groups) == {0: 3, 1: 3}


def test_a_member_that_turns_out_alive_is_not_evicted() -> None:
    backend = MemoryBackend()
    stream = _stream(backend, 2)
    _coordinator(backend).apply(GROUP, _join(stream, "A"))
    signs: Any = Dead("A")
    signs.risen = "A"
    backend.liveness = signs
    groups = _groups(backend)
    with pytest.raises(GroupInUse):
        groups.seek(GROUP, 3)
    assert set(groups.load(GROUP).members) == {"A"}
    assert signs.left == []


def test_a_dead_process_is_noticed_by_its_lost_lock(tmp_path: Path) -> None:
    backend = LmdbBackend(tmp_path / "hub")
    stream = _stream(backend, 2)
    backend.liveness.beat(GROUP, "A", 1, 1)
    _coordinator(backend).apply(GROUP, _join(stream, "A"))
    groups = _groups(backend)
    with pytest.raises(GroupInUse):
        groups.seek(GROUP, 3)
    backend.liveness.let_go()  # as the kernel does for one that was killed
    groups.seek(GROUP, 3)
    assert groups.load(GROUP).members == {}
    backend.close()


class Meanwhile(MemoryBackend):
    """Something happens right before a transaction."""

    happens: Any = None
    key: bytes | None = None
    times = 1

    def when(self, key: bytes, happens: Any, times: int = 1) -> None:
        """Only right before one that puts this key."""
        self.key, self.happens, self.times = key, happens, times

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        happens, times = self.happens, self.times
        if happens is not None and (self.key is None or self.key in puts):
            self.happens = None
            happens()
            self.happens, self.times = (happens, times - 1) if times > 1 else (None, 1)
        return super().transact(checks, puts)


def test_a_member_that_joins_during_a_seek_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = _stopped(backend, 1)
    groups = _groups(backend)
    backend.happens = lambda: _coordinator(backend).apply(GROUP, _join(stream, "B", 2))
    with pytest.raises(GroupInUse, match="B"):
        groups.seek(GROUP, 1)
    assert _checkpoints(groups) == {0: 4}
    assert groups.load(GROUP).shards[_at(0)].owner == "B"


def test_a_seek_is_repeated_when_the_epoch_rises_meanwhile() -> None:
    backend = Meanwhile()
    _stopped(backend, 1)
    groups, others = _groups(backend), _groups(backend)
    backend.happens = lambda: others.seek(GROUP, 9)
    groups.seek(GROUP, 1)
    assert _checkpoints(groups) == {0: 1}


class Restless(MemoryBackend):
    """Somebody else moves the checkpoint right before each transaction of ours."""

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
    _stopped(backend, 1)
    backend.others = _groups(backend)
    with pytest.raises(Contended, match=GROUP):
        _groups(backend).seek(GROUP, 7)
    assert backend.turns == TRIES_MAX
    assert _checkpoints(_groups(backend)) == {0: TRIES_MAX % 2}


def test_a_group_created_again_meanwhile_is_not_deleted() -> None:
    backend = Meanwhile()
    stream = _stopped(backend, 1)
    groups, coordinator = _groups(backend), _coordinator(backend)

    def anew() -> None:
        coordinator.apply(GROUP, Delete(1))
        coordinator.apply(GROUP, _join(stream, "B", 2))
        coordinator.apply(GROUP, Leave("B", 2))

    backend.happens = anew
    with pytest.raises((Contended, UnknownOutcome)):
        groups.delete(GROUP)
    assert groups.names() == [GROUP]


# Skipping and deleting


def test_records_that_cannot_be_read_are_skipped(backend: LogAndStore) -> None:
    _stopped(backend)
    groups = _groups(backend)
    assert groups.skip(GROUP, _at(1)) == Seek(_at(1), 4, 5, 1, 0, False, ())
    assert _checkpoints(groups) == {0: 4, 1: 5}
    groups.skip(GROUP, _at(1), 5)
    with pytest.raises(OffsetOutOfRange, match=r"11 is beyond the end"):
        groups.skip(GROUP, _at(1))
    assert _checkpoints(groups) == {0: 4, 1: 10}


@pytest.mark.parametrize("records", [0, -1, True, 1.5])
def test_skip_takes_only_a_positive_number_of_records(backend: LogAndStore, records: Any) -> None:
    _stopped(backend)
    with pytest.raises(BadSetting, match="a whole number from 1"):
        _groups(backend).skip(GROUP, _at(1), records)
    with pytest.raises(UnknownShard):
        _groups(backend).skip(GROUP, _at(9))


def test_a_deleted_group_leaves_only_its_journal(backend: LogAndStore) -> None:
    stream = _stopped(backend)
    groups = _groups(backend)
    groups.delete(GROUP)
    assert groups.names() == []
    left = {key[:1] for key, _ in backend.scan(b"") if key != store_keys.group_key(GROUP)}
    assert left == {b"j"}
    assert [type(entry.event).__name__ for entry in groups.history(GROUP)] == [
        "Join", "Leave", "Delete", "Swept",
    ]  # fmt: skip
    with pytest.raises(UnknownGroup):
        groups.delete(GROUP)
    _coordinator(backend).apply(GROUP, _join(stream, "A", 2))
    assert [entry.version for entry in groups.history(GROUP)] == [1, 2, 3, 4, 5]
    assert _checkpoints(groups) == {0: None, 1: None}


# Records that make trouble

FAILED = Attempts(4, failed=21, deaths=2, stopped=True, at_ms=BEGIN_MS, code="c", reason="boom")
FRESH = FAILED._replace(failed=0, deaths=0, stopped=False)


def _note(
    backend: LogAndStore, stream: StreamInfo, shard: int, attempts: Attempts, epoch: int = 1
) -> None:
    """As a lane does: with a commit, under its grant."""
    at = attempts.offset
    commit = Commit(
        grant=Grant(GROUP, stream, shard, store_keys.epoch_token(epoch)),
        done=Slice(stream.name, shard, at, at),
        attempts=attempts.encoded(),
    )
    backend.commit(commit)


def _in_trouble(
    backend: LogAndStore, shards: int = 2, stopped: tuple[int, ...] = (0,), released: bool = True
) -> StreamInfo:
    """A group whose member lives, and some of whose shards were stopped at offset 4."""
    stream = _stream(backend, shards)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    for shard in range(shards):
        _commit(backend, stream, shard, 4)
    for shard in stopped:
        _note(backend, stream, shard, FAILED)
        coordinator.apply(GROUP, Stop(_at(shard), 1))
        if released:
            coordinator.apply(GROUP, Release("A", 1, {_at(shard): 1}))
    return stream


def _attempts(groups: Groups) -> dict[int, Attempts]:
    return {shard.index: found for shard, found in groups.attempts(groups.load(GROUP)).items()}


def _stands(groups: Groups, index: int = 0) -> tuple[bool, str | None, int]:
    standing = groups.load(GROUP).shards[_at(index)]
    return standing.stopped, standing.owner, standing.epoch


def test_attempts_are_listed_for_shards_that_have_some(backend: LogAndStore) -> None:
    stream, other = _stream(backend, 3), _stream(backend, 1, name="bills")
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, ShardsChanged(_facts(other, seen=1)))
    note = Attempts(3, failed=2, at_ms=BEGIN_MS, reason="boom")
    _note(backend, stream, 1, note)
    groups = _groups(backend)
    group = groups.load(GROUP)
    assert groups.attempts(group) == {_at(1): note}
    assert groups.attempts(group, "bills") == {}
    with pytest.raises(BadSetting, match="does not read 'x'"):
        groups.attempts(group, "x")
    backend.delete_stream(STREAM)
    assert groups.attempts(group) == {}


def test_a_resumed_shard_has_all_its_retries_and_others_stay_stopped(
    backend: LogAndStore,
) -> None:
    _in_trouble(backend, 3, stopped=(0, 2))
    groups = _groups(backend)
    assert groups.resume(GROUP, _at(2)) == [_at(2)]
    assert _stands(groups, 2) == (False, "A", 3)
    assert _stands(groups, 0) == (True, None, 1)
    assert _attempts(groups) == {0: FAILED, 2: FRESH}
    assert _checkpoints(groups) == {0: 4, 1: 4, 2: 4}
    assert groups.load(GROUP).shards[_at(1)].epoch == 1


def test_all_stopped_shards_are_resumed_together(backend: LogAndStore) -> None:
    _in_trouble(backend, 3, stopped=(0, 2))
    groups = _groups(backend)
    assert groups.resume(GROUP) == [_at(0), _at(2)]
    assert [_stands(groups, index) for index in range(3)] == [
        (False, "A", 3),
        (False, "A", 1),
        (False, "A", 3),
    ]
    assert _attempts(groups) == {0: FRESH, 2: FRESH}


def test_a_shard_stopped_without_attempts_is_resumed_too(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, Stop(_at(0), 1))
    coordinator.apply(GROUP, Leave("A", 1))
    groups = _groups(backend)
    assert groups.resume(GROUP, _at(0)) == [_at(0)]
    assert _stands(groups) == (False, None, 2)
    assert _attempts(groups) == {}


def test_resuming_a_shard_that_is_not_stopped_is_refused(backend: LogAndStore) -> None:
    _in_trouble(backend)
    groups = _groups(backend)
    before = backend.changes()
    with pytest.raises(
        BadSetting, match=r"orders:1 is not stopped in group 'billing'.*; stopped are orders:0"
    ):
        groups.resume(GROUP, _at(1))
    with pytest.raises(BadSetting, match="does not read 'x'"):
        groups.resume(GROUP, ShardId("x", 0))
    with pytest.raises(UnknownShard):
        groups.resume(GROUP, _at(9))
    with pytest.raises(UnknownGroup):
        groups.resume("other")
    assert backend.changes() == before
    groups.resume(GROUP)
    with pytest.raises(BadSetting, match="no shard of group 'billing' is stopped"):
        groups.resume(GROUP)
    with pytest.raises(BadSetting, match="orders:0 is not stopped in group 'billing': nothing"):
        groups.resume(GROUP, _at(0))


def test_an_owner_that_has_not_released_cannot_overwrite_reset_attempts() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend, released=False)
    groups = _groups(backend)
    stored = []

    def late() -> None:
        try:
            _note(backend, stream, 0, FAILED)
        except Fenced:
            stored.append(False)
        else:
            stored.append(True)

    backend.happens, backend.times = late, 99
    assert groups.resume(GROUP) == [_at(0)]
    assert _attempts(groups)[0] == FRESH
    assert stored == [True, False, False, False, False]
    assert _stands(groups)[:2] == (False, "A")


def test_when_two_resume_the_same_shard_both_succeed() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend)
    groups, others = _groups(backend), _groups(backend)
    note = Attempts(4, failed=1, working=True, at_ms=NOW_MS, reason="again")

    def faster() -> None:
        others.resume(GROUP)
        _note(backend, stream, 0, note, epoch=3)

    backend.happens = faster
    assert groups.resume(GROUP) == [_at(0)]
    assert _stands(groups) == (False, "A", 3)
    assert _attempts(groups) == {0: note}
    _commit(backend, stream, 0, 5, epoch=3)


def test_attempts_are_not_reset_under_a_new_owner() -> None:
    backend = Meanwhile()
    _in_trouble(backend)
    groups = _groups(backend)
    backend.happens = lambda: _coordinator(backend).apply(GROUP, Resume(_at(0), 1))
    assert groups.resume(GROUP) == [_at(0)]
    assert _stands(groups) == (False, "A", 3)
    assert _attempts(groups) == {0: FAILED}


def test_a_shard_resumed_between_reset_and_resume_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend)
    groups, others = _groups(backend), _groups(backend)
    backend.when(store_keys.group_key(GROUP), lambda: others.resume(GROUP))
    assert groups.resume(GROUP) == [_at(0)]
    assert _stands(groups) == (False, "A", 3)
    _commit(backend, stream, 0, 5, epoch=3)


def test_an_interrupted_resume_can_be_repeated() -> None:
    backend = Meanwhile()
    _in_trouble(backend)
    groups = _groups(backend)

    def dies() -> None:
        raise KeyboardInterrupt

    backend.when(store_keys.group_key(GROUP), dies)
    with pytest.raises(KeyboardInterrupt):
        groups.resume(GROUP)
    assert _stands(groups) == (True, None, 1)
    assert _attempts(groups) == {0: FRESH}
    assert _shown(groups)[0]["attempts"]["reason"] == "boom"
    assert groups.resume(GROUP) == [_at(0)]
    assert _stands(groups) == (False, "A", 3)


class Stubborn(MemoryBackend):
    """The attempts are written anew right before each transaction of ours."""

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        for key in puts:
            if key[:1] == b"a":
                super().transact({}, {key: FAILED.encoded()})
        return super().transact(checks, puts)


def test_without_a_reset_of_the_attempts_a_shard_is_not_resumed() -> None:
    backend = Stubborn()
    _in_trouble(backend)
    with pytest.raises(Contended, match=GROUP):
        _groups(backend).resume(GROUP)
    assert _stands(_groups(backend)) == (True, None, 1)


def test_skipping_the_record_that_stopped_a_shard_resumes_it(backend: LogAndStore) -> None:
    stream = _in_trouble(backend)
    groups = _groups(backend)
    skipped = groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert skipped == Seek(_at(0), 4, 5, 1, 0, False, (), resumes=True)
    assert _checkpoints(groups) == {0: 5, 1: 4}
    assert _stands(groups) == (False, "A", 4)
    assert _attempts(groups) == {0: FRESH}
    _commit(backend, stream, 0, 9, epoch=4)
    _commit(backend, stream, 1, 9)


def test_several_records_of_a_stopped_shard_can_be_skipped(backend: LogAndStore) -> None:
    _in_trouble(backend)
    groups = _groups(backend)
    assert groups.skip(GROUP, _at(0), 3).resumes
    assert _checkpoints(groups) == {0: 7, 1: 4}
    assert _stands(groups)[:2] == (False, "A")


@pytest.mark.parametrize("offset", [0, 3, 5, 10])
def test_only_the_next_record_is_skipped_by_its_id(backend: LogAndStore, offset: int) -> None:
    _stopped(backend)
    groups = _groups(backend)
    before = backend.changes()
    with pytest.raises(
        BadSetting,
        match=rf"orders:1\+{offset} is not what group 'billing' reads next there, "
        r"that is orders:1\+4: nothing was skipped",
    ):
        groups.skip(GROUP, RecordId(STREAM, 1, offset))
    assert backend.changes() == before


def test_the_next_record_can_be_skipped_by_its_id(backend: LogAndStore) -> None:
    _stopped(backend)
    groups = _groups(backend)
    assert groups.skip(GROUP, RecordId(STREAM, 1, 4)) == Seek(_at(1), 4, 5, 1, 0, False, ())
    assert _checkpoints(groups) == {0: 4, 1: 5}
    with pytest.raises(BadSetting, match="is one record, not 2"):
        groups.skip(GROUP, RecordId(STREAM, 1, 5), 2)
    with pytest.raises(UnknownShard):
        groups.skip(GROUP, RecordId(STREAM, 7, 0))
    groups.seek(GROUP, "latest")
    with pytest.raises(OffsetOutOfRange, match="beyond the end"):
        groups.skip(GROUP, RecordId(STREAM, 1, 10))


def test_records_of_a_held_shard_are_skipped_by_force_only(
    backend: LogAndStore,
) -> None:
    _in_trouble(backend, released=False)
    groups = _groups(backend)
    before = backend.changes()
    for index in (0, 1):  # one is stopped and not let go yet, the other is at work
        with pytest.raises(GroupInUse):
            groups.skip(GROUP, RecordId(STREAM, index, 4))
    assert backend.changes() == before
    groups.skip(GROUP, RecordId(STREAM, 0, 4), force=True)
    assert _checkpoints(groups) == {0: 5, 1: 4}
    assert _stands(groups)[:2] == (False, "A")
    assert _attempts(groups) == {0: FRESH}


def test_a_shard_resumed_during_a_skip_is_not_moved_back() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend)
    groups, others = _groups(backend), _groups(backend)

    def goes_on() -> None:
        others.resume(GROUP)
        _commit(backend, stream, 0, 9, epoch=3)

    backend.happens = goes_on
    with pytest.raises(BadSetting, match="orders:0 was moved to 9 meanwhile: nothing was skipped"):
        groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert _checkpoints(groups) == {0: 9, 1: 4}
    assert _stands(groups) == (False, "A", 3)


def test_a_member_granted_the_shard_during_a_skip_is_not_fenced() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend)
    groups, others = _groups(backend), _groups(backend)
    backend.happens = lambda: others.resume(GROUP)
    with pytest.raises(GroupInUse):
        groups.skip(GROUP, RecordId(STREAM, 0, 4))
    assert _stands(groups) == (False, "A", 3)
    _commit(backend, stream, 0, 5, epoch=3)


def test_when_two_skip_the_same_record_it_is_skipped_once() -> None:
    backend = Meanwhile()
    stream = _in_trouble(backend)
    coordinator = _coordinator(backend)
    groups, others = _groups(backend), _groups(backend)

    def faster() -> None:
        others.skip(GROUP, RecordId(STREAM, 0, 4))
        _note(backend, stream, 0, FAILED._replace(offset=5), epoch=4)
        coordinator.apply(GROUP, Stop(_at(0), 4))
        coordinator.apply(GROUP, Release("A", 1, {_at(0): 4}))

    backend.happens = faster
    with pytest.raises(BadSetting, match="was moved to 5 meanwhile: nothing was skipped"):
        groups.skip(GROUP, _at(0))
    assert _checkpoints(groups) == {0: 5, 1: 4}
    assert _stands(groups) == (True, None, 4)


def test_a_late_stop_does_not_stop_a_resumed_shard(backend: LogAndStore) -> None:
    _in_trouble(backend)
    groups = _groups(backend)
    groups.resume(GROUP)
    _coordinator(backend).apply(GROUP, Stop(_at(0), 1))
    _coordinator(backend).apply(GROUP, Resume(_at(0), 1))
    assert _stands(groups) == (False, "A", 3)


# What happened


def _changes(groups: Groups, name: str = GROUP) -> GroupChanges:
    return changes_of(groups.stored(name), groups.replayed(name, groups.history(name)))


def test_joins_leaves_and_evictions_are_shown_in_the_history(backend: LogAndStore) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, _join(stream, "B"))
    coordinator.apply(GROUP, _beat(coordinator.load(GROUP), "A"))
    coordinator.apply(GROUP, Leave("B", 1))
    coordinator.apply(GROUP, _join(stream, "C"))
    moving = {s: own.epoch for s, own in coordinator.load(GROUP).shards.items() if own.next}
    coordinator.apply(GROUP, Release("A", 1, moving))
    coordinator.apply(GROUP, Evict("A", 1, "dead"))
    coordinator.apply(GROUP, Evict("C", 1, "silent", 11.0))
    groups = _groups(backend)
    rows = history_views(groups.history(GROUP), _changes(groups))
    assert [(row["version"], row["what"], row["moved"]) for row in rows] == [
        (1, "A joined and made the group", ["orders:0-3 held by A under epoch 1"]),
        (2, "B joined", ["orders:2-3 moving from A to B"]),
        (3, "A let go of orders:2-3", ["orders:2-3 held by B under epoch 2"]),
        (4, "B left", ["orders:2-3 held by A under epoch 3"]),
        (5, "C joined", ["orders:2-3 moving from A to C"]),
        (6, "A let go of orders:2-3", ["orders:2-3 held by C under epoch 4"]),
        (7, "A was evicted: its process is dead", ["orders:0-1 held by C under epoch 2"]),
        (8, "C was evicted: silent for 11s", ["orders:0-3 free"]),
    ]
    assert rows[0]["time"] == "2023-11-14T22:13:20.000Z"


def test_a_change_and_its_journal_entry_are_one_write_and_a_heartbeat_is_none(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend)
    coordinator = _coordinator(backend)
    before = backend.changes()
    coordinator.apply(GROUP, _join(stream, "A"))
    assert backend.changes() == before + 1
    group = backend.get(store_keys.group_key(GROUP))
    entry = backend.get(store_keys.journal_key(GROUP, 1))
    assert group is not None
    assert entry is not None
    assert entry.version == group.version
    coordinator.apply(GROUP, _beat(coordinator.load(GROUP), "A"))
    assert [key for key, _ in backend.scan(b"j")] == [store_keys.journal_key(GROUP, 1)]


def test_the_journal_of_a_busy_group_stays_small_and_replayable(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    for turn in range(1, 200):
        coordinator.apply(GROUP, _join(stream, "A", turn))
        coordinator.apply(GROUP, Leave("A", turn))
    groups = _groups(backend)
    assert len(groups.history(GROUP)) == journal.ENTRIES_KEPT
    assert len(list(backend.scan(b"j"))) == journal.ENTRIES_KEPT + journal.SNAPSHOTS_KEPT
    story = _changes(groups)
    assert (story.begin, story.note) == (256, "")
    assert set(story.causes) == set(range(257, 399))


# Why


def _why(groups: Groups) -> dict[int, str]:
    group = groups.load(GROUP)
    shards = sorted(group.shards)
    attempts = groups.attempts(group)
    view = explanation(group, shards, groups.positions(group), _changes(groups), attempts=attempts)
    assert [row["shard"] for row in view["shards"]] == [str(shard) for shard in shards]
    return {shard.index: row["why"] for shard, row in zip(shards, view["shards"], strict=True)}


def test_the_explanation_of_a_held_shard_names_the_cause(backend: LogAndStore) -> None:
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, _join(stream, "B"))
    groups = _groups(backend)
    assert _why(groups) == {
        0: "held by A since version 1: A joined and made the group",
        1: "promised to B, waits for A to let go since version 2 (B joined)",
    }
    coordinator.apply(GROUP, Evict("B", 1, "dead"))
    assert _why(groups)[1] == "held by A since version 1: A joined and made the group"
    coordinator.apply(GROUP, Leave("A", 1))
    free = "free since version 4 (A left): the group has no members"
    assert _why(groups) == dict.fromkeys(range(2), free)


def test_the_explanation_of_a_waiting_shard_names_its_ancestors() -> None:
    backend = Closing()
    stream = _stream(backend, 3)
    rows = (ShardFacts(0), ShardFacts(1, (0,)), ShardFacts(2, (1,)))
    facts = StreamFacts(STREAM, stream.id, rows)
    _coordinator(backend).apply(GROUP, Join("A", 1, (facts,), balanced, order=True))
    _commit(backend, stream, 0, 4)
    backend.close_shard(stream, 0)
    assert _why(_groups(backend)) == {
        0: "held by A since version 1: A joined and made the group",
        1: "waits for its ancestors: orders:0 is held, read to 4 of 10",
        2: (
            "waits for its ancestors: orders:1 is waiting and open, read to 0 of 10; "
            "orders:0 is held, read to 4 of 10"
        ),
    }


def test_the_explanation_of_a_free_shard_names_the_reason(backend: LogAndStore) -> None:
    stream, other = _stream(backend, 3), _stream(backend, 1, name="bills")
    third = capped(3)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A", allocator=third))
    coordinator.apply(GROUP, ShardsChanged(_facts(other, seen=1)))
    coordinator.apply(GROUP, Stop(_at(0), 1))
    groups = _groups(backend)
    group = groups.load(GROUP)
    view = explanation(group, sorted(group.shards), groups.positions(group), _changes(groups))
    why = {row["shard"]: row["why"] for row in view["shards"]}
    assert why["bills:0"].endswith("no member reads bills")
    assert why["orders:0"] == (
        "waits for A to let go since version 3 (orders:0 was stopped): "
        "it was stopped at 2023-11-14T22:13:20.002Z"
    )
    assert why["orders:2"].endswith(
        "allocator capped(3) gives it to no member: all that may hold it have as many as they may"
    )
    coordinator.apply(GROUP, Release("A", 1, {_at(0): 1}))
    assert _why(groups)[0].endswith(
        "it was stopped at 2023-11-14T22:13:20.002Z, and is given to no member until it is resumed"
    )


def _last_first(members: Any, shards: Any, _: object) -> Mapping[str, list[ShardId]]:
    return {members[-1].name: list(shards)}


def test_an_unknown_allocator_leaves_moves_unexplained(backend: LogAndStore) -> None:
    own = Allocator("own", "3", deal=_last_first)
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend, own)
    coordinator.apply(GROUP, _join(stream, "A", allocator=own))
    coordinator.apply(GROUP, _join(stream, "B", allocator=own))
    strange, knowing = _groups(backend), _groups(backend, own)
    assert _changes(strange).note == (
        "who moved why cannot be told here: allocator 'own' version '3' is not known to this "
        "process"
    )
    rows = history_views(strange.history(GROUP), _changes(strange))
    assert [(row["what"], row["moved"]) for row in rows] == [("A joined", None), ("B joined", None)]
    assert _why(strange)[0] == "promised to B, waits for A to let go"
    assert _changes(knowing).note == ""
    assert _why(knowing)[0].endswith("since version 2 (B joined)")
    strange.seek(GROUP, 3, force=True)
    assert _changes(knowing).note == ""
    assert "is not known to this process" in _changes(strange).note
    waiting = _coordinator(backend)
    waiting.apply(GROUP, Evict("A", 1, "dead"))
    assert _why(knowing)[0] == (
        "free since version 5 (A was evicted: its process is dead): not dealt yet: the "
        "member that changed the group last does not know allocator own"
    )


def test_an_allocator_that_changed_its_result_is_detected(backend: LogAndStore) -> None:
    own = Allocator("own", "3", deal=_last_first)
    stream = _stream(backend, 2)
    coordinator = _coordinator(backend, own)
    for name in "AB":
        coordinator.apply(GROUP, _join(stream, name, allocator=own))
    changed = Allocator("own", "3", deal=balanced.deal)
    story = _changes(_groups(backend, changed))
    assert "does not lead to the group as it is" in story.note
    assert (story.by_shard, story.causes, story.begin) == ({}, {}, None)


def test_an_incomplete_journal_is_reported(backend: LogAndStore) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, Configure(1, order=True, timeout_s=5.0, allocator=capped(2)))
    backend.transact({}, {store_keys.journal_key(GROUP, 1): None})
    groups = _groups(backend)
    story = _changes(groups)
    assert "does not reach back" in story.note
    rows = history_views(groups.history(GROUP), story)
    assert [row["what"] for row in rows] == [
        "configured: order on, timeout 5s, allocator capped(2)"
    ]


# Shown


def test_the_five_states_of_a_shard_are_shown(backend: LogAndStore) -> None:
    stream, other = _stream(backend, 4), _stream(backend, 1, name="bills")
    coordinator = _coordinator(backend)
    rows = (ShardFacts(0), ShardFacts(1), ShardFacts(2, (0, 3)), ShardFacts(3))
    facts = StreamFacts(STREAM, stream.id, rows)
    for name in "AB":
        coordinator.apply(GROUP, Join(name, 1, (facts,), balanced, order=True))
    read = StreamFacts(STREAM, stream.id, (*rows[:3], ShardFacts(3, (), finished_at=1)), seen=2)
    coordinator.apply(GROUP, ShardsChanged(read))
    coordinator.apply(GROUP, ShardsChanged(_facts(other, seen=3)))
    groups = _groups(backend)
    group = groups.load(GROUP)
    positions = groups.positions(group)
    unread, entries = groups.unread(positions), groups.history(GROUP)
    view = group_view(group, groups.signs(group), positions, unread, entries, NOW_MS)
    assert {row["shard"]: row["state"] for row in view["shards"]} == {
        "bills:0": "free",
        "orders:0": "held",
        "orders:1": "moving",
        "orders:2": "waiting",
        "orders:3": "done",
    }
    moving = view["shards"][2]
    assert (moving["owner"], moving["next"], moving["epoch"]) == ("A", "B", 1)
    assert (moving["lag"], moving["lag_s"], moving["stopped"]) == (10, 100.0, False)
    assert moving["since"] == "2023-11-14T22:13:20.000Z"
    assert _why(groups)[3] == "closed, and read to its end since version 3 (orders has 4 shards)"


def _shown(groups: Groups, entries: bool = True) -> dict[int, dict[str, Any]]:
    group = groups.load(GROUP)
    positions, attempts = groups.positions(group), groups.attempts(group)
    history = groups.history(GROUP) if entries else []
    view = group_view(group, {}, positions, {}, history, NOW_MS, attempts)
    return dict(enumerate(view["shards"]))


def test_a_stopped_shard_is_shown_with_the_record_and_the_reason(backend: LogAndStore) -> None:
    _in_trouble(backend)
    groups = _groups(backend)
    attempts = {
        "record": "orders:0+4",
        "failed": 21,
        "deaths": 2,
        "at": "2023-11-14T22:13:20.000Z",
        "reason": "boom",
    }
    rows = _shown(groups)
    assert (rows[0]["stopped"], rows[0]["attempts"]) == (True, attempts)
    assert rows[0]["stopped_since"] == "2023-11-14T22:13:20.001Z"
    assert _shown(groups, entries=False)[0]["stopped_since"] == attempts["at"]
    assert [rows[1][key] for key in ("stopped", "attempts", "stopped_since")] == [False, None, None]
    assert _why(groups)[0] == (
        "free since version 3 (A let go of orders:0): it was stopped at 2023-11-14T22:13:20.001Z "
        "because orders:0+4 failed 21 times, and 2 processes died there (boom), and is given to "
        "no member until it is resumed"
    )
    groups.resume(GROUP)
    rows = _shown(groups)
    assert [rows[0][key] for key in ("stopped", "attempts", "stopped_since")] == [False, None, None]
    assert "boom" not in _why(groups)[0]


def test_a_moved_stopped_shard_still_shows_the_reason_if_there_is_one(
    backend: LogAndStore,
) -> None:
    stream = _in_trouble(backend)
    groups = _groups(backend)
    groups.seek(GROUP, 8, shards=[0], force=True)
    assert _shown(groups)[0]["attempts"]["record"] == "orders:0+4"
    _note(backend, stream, 1, Attempts(4, working=True))
    _coordinator(backend).apply(GROUP, Stop(_at(1), 1))
    row = _shown(groups)[1]
    assert (row["stopped"], row["attempts"]) == (True, None)


def test_a_shard_shows_its_attempts_until_the_record_is_committed(
    backend: LogAndStore,
) -> None:
    stream = _stream(backend, 1)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    groups = _groups(backend)
    _note(backend, stream, 0, Attempts(4, working=True))
    assert _shown(groups)[0]["attempts"] is None
    _note(backend, stream, 0, Attempts(4, failed=1, working=True, reason="boom\nmore"))
    assert _shown(groups)[0]["attempts"] == {
        "record": "orders:0+4",
        "failed": 1,
        "deaths": 0,
        "at": None,
        "reason": "boom\nmore",
    }
    assert _why(groups)[0] == (
        "held by A since version 1: A joined and made the group; "
        "it is tried again because orders:0+4 failed once (boom)"
    )
    _commit(backend, stream, 0, 5)
    assert _shown(groups)[0]["attempts"] is None
    assert "tried" not in _why(groups)[0]
    _note(backend, stream, 0, Attempts(5, deaths=1, working=True))
    assert _why(groups)[0].endswith("it is tried again because 1 process died at orders:0+5")


def test_a_member_is_shown_with_its_shards_as_ranges_and_its_last_heartbeat() -> None:
    backend = MemoryBackend()
    stream = _stream(backend, 5)
    coordinator = _coordinator(backend)
    coordinator.apply(GROUP, _join(stream, "A"))
    coordinator.apply(GROUP, Stop(_at(3), 1))
    coordinator.apply(GROUP, Release("A", 1, {_at(3): 1}))
    group = coordinator.load(GROUP)
    view = group_view(group, {"A": Sign(True, 7, 1.26)}, {}, {}, [], NOW_MS)
    assert view["members"] == [
        {
            "member_id": "A",
            "shards": "orders:0-2,4",
            "last_heartbeat": 1.3,
            "alive": True,
            "incarnation": 1,
        }
    ]
    assert view["shards"][3]["stopped"] is True
    assert view["shards"][0]["end"] is None
    never = group_view(group, {"A": None}, {}, {}, [], NOW_MS)
    assert never["members"][0]["last_heartbeat"] is None
