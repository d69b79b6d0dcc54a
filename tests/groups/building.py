"""Groups on a small hub: streams, members, commits and stopped shards that tests start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore, in_one_place
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import (
    Granted,
    Heartbeat,
    Join,
    Leave,
    Release,
    Reply,
    ShardFacts,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Group
from headrace.core.model import ShardId, Slice, StreamInfo
from headrace.core.ports import Append, Commit, Grant, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.groups.admin import Groups
from headrace.groups.coordinator import Coordinator
from headrace.ops.explain import GroupChanges, changes_of
from headrace.ops.group_views import explanation, group_view
from tests.core.groups.building import at

GROUP = "billing"
STREAM = "orders"
NOW_MS = 1_700_000_100_000
BEGIN_MS = 1_700_000_000_000
"""The time of the first record of each shard. Each next record is one second later."""


def new_stream(
    backend: LogAndStore, shards: int = 4, records: int = 10, name: str = STREAM
) -> StreamInfo:
    info = backend.create_stream(StreamSpec(name, shards, "bytes", "md5-range", None, None, 0))
    for shard in range(shards):
        rows = [
            Row(b"key%d" % n, b"data", BEGIN_MS + 1000 * n, 0, 1, [], None) for n in range(records)
        ]
        backend.append([Append(info, shard, Batch.of_rows(rows))])
    return info


def groups_in(backend: LogAndStore, *allocators: Allocator) -> Groups:
    return Groups(in_one_place(backend), allocators, now_ms=lambda: NOW_MS)


def coordinator_on(backend: LogAndStore, *allocators: Allocator) -> Coordinator:
    ticks = iter(range(BEGIN_MS, NOW_MS))
    return Coordinator(
        backend, allocators, dice=lambda: 0.0, sleep=lambda _: None, now_ms=lambda: next(ticks)
    )


def stream_facts(stream: StreamInfo, seen: int = 0) -> StreamFacts:
    rows = tuple(ShardFacts(shard.index, shard.parents) for shard in stream.shards)
    return StreamFacts(stream.name, stream.id, rows, seen)


def join_event(
    stream: StreamInfo, name: str, incarnation: int = 1, allocator: Allocator = balanced
) -> Join:
    return Join(name, incarnation, (stream_facts(stream),), allocator)


def granted_shards(reply: Reply) -> Mapping[ShardId, int]:
    assert isinstance(reply, Granted), reply
    return reply.shards


def heartbeat_of(group: Group, name: str) -> Heartbeat:
    held = {s: own.epoch for s, own in group.owned(name).items() if own.state == "held"}
    return Heartbeat(name, group.members[name].incarnation, 1, group.version, held)


def commit_to(
    backend: LogAndStore, stream: StreamInfo, shard: int, end: int, epoch: int = 1
) -> None:
    stored = backend.get(store_keys.checkpoint_key(GROUP, stream.id, shard))
    start = Checkpoint.decoded(stored.value).next if stored else 0
    grant = Grant(GROUP, stream, shard, store_keys.epoch_token(epoch))
    backend.commit(Commit(grant=grant, done=Slice(stream.name, shard, start, end)))


def idle_group(
    backend: LogAndStore, shards: int = 2, records: int = 10, done: int = 4
) -> StreamInfo:
    """A group that has read some records of each shard and whose only member has left."""
    stream = new_stream(backend, shards, records)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    for shard in range(shards):
        commit_to(backend, stream, shard, done)
    coordinator.apply(GROUP, Leave("A", 1))
    return stream


def checkpoints_of(groups: Groups) -> dict[int, int | None]:
    positions = groups.positions(groups.load(GROUP))
    return {shard.index: position.checkpoint for shard, position in positions.items()}


class Closing(MemoryBackend):
    """A backend whose shards can be closed."""

    def close_shard(self, stream: StreamInfo, index: int) -> None:
        shards = list(stream.shards)
        shards[index] = replace(shards[index], open=False, parents=(0,))
        self._streams[stream.name] = replace(stream, shards=tuple(shards))


class Meanwhile(MemoryBackend):
    """A backend on which something happens right before a transaction."""

    happens: Any = None
    key: bytes | None = None
    times = 1

    def when(self, key: bytes, happens: Any, times: int = 1) -> None:
        """Let it happen right before a transaction that puts this key, and before no other."""
        self.key, self.happens, self.times = key, happens, times

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        happens, times = self.happens, self.times
        if happens is not None and (self.key is None or self.key in puts):
            self.happens = None
            happens()
            self.happens, self.times = (happens, times - 1) if times > 1 else (None, 1)
        return super().transact(checks, puts)


FAILED = Attempts(4, failed=21, deaths=2, stopped=True, at_ms=BEGIN_MS, code="c", reason="boom")
FRESH = FAILED._replace(failed=0, deaths=0, stopped=False)


def note_attempts(
    backend: LogAndStore, stream: StreamInfo, shard: int, attempts: Attempts, epoch: int = 1
) -> None:
    """Store attempts as a lane does: by a commit under its grant."""
    at = attempts.offset
    commit = Commit(
        grant=Grant(GROUP, stream, shard, store_keys.epoch_token(epoch)),
        done=Slice(stream.name, shard, at, at),
        attempts=attempts.encoded(),
    )
    backend.commit(commit)


def stopped_group(
    backend: LogAndStore, shards: int = 2, stopped: tuple[int, ...] = (0,), released: bool = True
) -> StreamInfo:
    """A group with a live member and with shards that were stopped at offset 4."""
    stream = new_stream(backend, shards)
    coordinator = coordinator_on(backend)
    coordinator.apply(GROUP, join_event(stream, "A"))
    for shard in range(shards):
        commit_to(backend, stream, shard, 4)
    for shard in stopped:
        note_attempts(backend, stream, shard, FAILED)
        coordinator.apply(GROUP, Stop(at(shard), 1))
        if released:
            coordinator.apply(GROUP, Release("A", 1, {at(shard): 1}))
    return stream


def attempts_in(groups: Groups) -> dict[int, Attempts]:
    return {shard.index: found for shard, found in groups.attempts(groups.load(GROUP)).items()}


def story_of(groups: Groups, name: str = GROUP) -> GroupChanges:
    return changes_of(groups.stored(name), groups.replayed(name, groups.history(name)))


def reasons(groups: Groups) -> dict[int, str]:
    group = groups.load(GROUP)
    shards = sorted(group.shards)
    attempts = groups.attempts(group)
    view = explanation(group, shards, groups.positions(group), story_of(groups), attempts=attempts)
    assert [row["shard"] for row in view["shards"]] == [str(shard) for shard in shards]
    return {shard.index: row["why"] for shard, row in zip(shards, view["shards"], strict=True)}


def shown_shards(groups: Groups, entries: bool = True) -> dict[int, dict[str, Any]]:
    group = groups.load(GROUP)
    positions, attempts = groups.positions(group), groups.attempts(group)
    history = groups.history(GROUP) if entries else []
    view = group_view(group, {}, positions, {}, history, NOW_MS, attempts)
    return dict(enumerate(view["shards"]))
