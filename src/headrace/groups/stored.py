"""What our own groups store: for each shard checkpoint, token of the grant, attempts and state;
for each group its value and its journal. Only this file and the coordinator know the keys."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core import store_keys
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import StreamInfo
from headrace.core.ports import ABSENT, Grant, Store, Versioned
from headrace.core.transaction import state_entry


def granted(group: str, info: StreamInfo, shard: int, epoch: int) -> Grant:
    """The grant of a shard at an epoch."""
    return Grant(group, info, shard, store_keys.epoch_token(epoch), epoch)


def epoch_of(grant: Grant) -> int:
    """The epoch of a grant that `granted` made."""
    return store_keys.epoch_of(grant.token)


def checkpoint_of(store: Store, group: str, stream_id: int, shard: int) -> Checkpoint | None:
    """How far the group has come in a shard; None if it has not committed there."""
    found = store.get(store_keys.checkpoint_key(group, stream_id, shard))
    return None if found is None else Checkpoint.decoded(found.value)


def attempts_of(store: Store, group: str, stream_id: int, shard: int) -> Versioned | None:
    """What is stored about attempts at the next record of a shard."""
    return store.get(store_keys.attempts_key(group, stream_id, shard))


def is_granted(store: Store, grant: Grant) -> bool:
    """Whether the grant is still in force: under one epoch only its holder commits."""
    token = store.get(store_keys.epoch_key(grant.group, grant.stream.id, grant.shard))
    return token is not None and token.value == grant.token


def group_values(store: Store) -> Iterator[bytes]:
    """The stored value of each group, in parts: all of them at once might not fit in memory."""
    for first in range(256):
        for _, found in store.scan(store_keys.GROUPS + bytes([first])):
            yield found.value


def journal_rows(store: Store, group: str) -> list[bytes]:
    return [found.value for _, found in store.scan(store_keys.journal_prefix(group))]


def snapshot_rows(store: Store, group: str) -> list[bytes]:
    return [found.value for _, found in store.scan(store_keys.snapshot_prefix(group))]


def story_rows(store: Store, group: str, stream_id: int, shard: int) -> Iterator[bytes]:
    """The stories of the last commits of a shard, in no order."""
    for _, found in store.scan(store_keys.story_prefix(group, stream_id, shard)):
        yield found.value


class ShardState:
    """The committed state of one shard."""

    def __init__(self, store: Store, group: str, stream_id: int, shard: int) -> None:
        self._store = store
        self._place = group, stream_id, shard

    def get(self, name: bytes) -> bytes | None:
        found = self._store.get(store_keys.state_key(*self._place, name))
        return None if found is None else state_entry(found.value)[1]

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        for _, found in self._store.scan(store_keys.state_prefix(*self._place)):
            yield state_entry(found.value)


def reset_attempts(
    store: Store, group: str, stream_id: int, shard: int, epoch: int, fresh: bytes, version: int
) -> bool:
    """Write attempts without a grant, for a shard that is stopped at this epoch.

    False if the shard is granted anew, or the attempts were written meanwhile."""
    epoch_key = store_keys.epoch_key(group, stream_id, shard)
    token = store.get(epoch_key)
    if token is not None and token.value != store_keys.epoch_token(epoch):
        return False
    key = store_keys.attempts_key(group, stream_id, shard)
    checks = {key: version, epoch_key: ABSENT if token is None else token.version}
    return store.transact(checks, {key: fresh})
