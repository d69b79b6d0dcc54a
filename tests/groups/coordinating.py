"""Coordinators on a store: events, commits and epoch keys; stores with races and lost answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import UnknownOutcome
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import (
    Granted,
    Heartbeat,
    Join,
    Reply,
    ShardFacts,
    StreamFacts,
)
from headrace.core.groups.group import Group
from headrace.core.model import Slice, StreamInfo
from headrace.core.ports import Commit, Grant, StreamSpec
from headrace.core.store_keys import epoch_key, epoch_token
from headrace.groups.coordinator import (
    Coordinator,
)

GROUP = "billing"
WAIT_S = 30.0


def empty_stream(backend: LogAndStore, shards: int = 4, name: str = "orders") -> StreamInfo:
    return backend.create_stream(StreamSpec(name, shards, "bytes", "md5-range", None, None, 0))


def facts_of(stream: StreamInfo) -> StreamFacts:
    rows = tuple(ShardFacts(shard.index, shard.parents) for shard in stream.shards)
    return StreamFacts(stream.name, stream.id, rows)


def eager_coordinator(backend: LogAndStore, *allocators: Allocator) -> Coordinator:
    """A coordinator that repeats a lost race at once."""
    return Coordinator(backend, allocators, dice=lambda: 0.0, sleep=lambda _: None)


def join_of(stream: StreamInfo, name: str, incarnation: int = 1) -> Join:
    return Join(name, incarnation, (facts_of(stream),), balanced)


def granted_epochs(reply: Reply) -> dict[int, int]:
    assert isinstance(reply, Granted), reply
    return {shard.index: epoch for shard, epoch in reply.shards.items()}


def beat_of(group: Group, name: str) -> Heartbeat:
    """The heartbeat of a member that has seen the present group and works on its grants."""
    held = {s: own.epoch for s, own in group.owned(name).items() if own.state == "held"}
    return Heartbeat(name, group.members[name].incarnation, 1, group.version, held)


def grant_of(stream: StreamInfo, shard: int, epoch: int) -> Grant:
    return Grant(GROUP, stream, shard, store_keys.epoch_token(epoch))


def commit_of(grant: Grant, start: int, end: int) -> Commit:
    return Commit(grant=grant, done=Slice(grant.stream.name, grant.shard, start, end))


def stored_checkpoint(backend: LogAndStore, stream: StreamInfo, shard: int) -> Checkpoint | None:
    found = backend.get(store_keys.checkpoint_key(GROUP, stream.id, shard))
    return None if found is None else Checkpoint.decoded(found.value)


def stored_epoch_keys(backend: LogAndStore) -> dict[bytes, bytes]:
    return {key: found.value for key, found in backend.scan(b"e")}


def expected_epoch_keys(group: Group) -> dict[bytes, bytes]:
    """The epoch keys of the shards that have an owner: those that must be stored."""
    return {
        epoch_key(group.name, group.streams[shard.stream], shard.index): epoch_token(standing.epoch)
        for shard, standing in group.shards.items()
        if standing.owner is not None
    }


class Interrupted(MemoryBackend):
    """A backend on which something happens right before the next transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.next: list[Callable[[], object]] = []
        self.tried: list[bool] = []

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        if self.next:
            self.next.pop(0)()
        happened = super().transact(checks, puts)
        self.tried.append(happened)
        return happened


Fate = str
"""What happens to a transaction: ``ok``; ``conflict``; ``lost``: not written, and the caller does
not know; ``unheard``: written, and the caller does not know."""


class LosingAnswers(MemoryBackend):
    """A backend that takes the fates of its next transactions from a list; later ones succeed."""

    def __init__(self, fates: Sequence[Fate] = ()) -> None:
        super().__init__()
        self.fates = list(fates)
        self.calls = 0

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        self.calls += 1
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate == "conflict":
            return False
        happened = fate != "lost" and super().transact(checks, puts)
        if fate in ("lost", "unheard"):
            raise UnknownOutcome("no answer in time", withdrawn=False)
        return happened
