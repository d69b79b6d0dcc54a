"""The stories that the store keeps of commits, for each group and shard the newest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from headrace.core import store_keys
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.group_bytes import title
from headrace.core.ports import Store
from headrace.core.transaction import STORIES_KEPT, OutputRange, story_entry

SHARDS_REMEMBERED = 64
"""Of how many shards the stories stay in memory once they are read."""
_PART_SLOTS = 256
"""How many slots one scan reads: those whose numbers share the first byte."""


class StoredStory(NamedTuple):
    """One commit: where its outputs went, and the bytes in which its lane tells of it."""

    outputs: tuple[OutputRange, ...]
    """Those of dead letters come last."""
    story: bytes


class ShardStories:
    """The stories of one group in one shard."""

    def __init__(
        self, store: Store, key: bytes, group: str, checkpoint: Checkpoint, *, remembers: bool
    ) -> None:
        self.group = group
        self.stream_id, self.shard = store_keys.shard_of(key)
        self.checkpoint = checkpoint
        self._store = store
        self._prefix = store_keys.story_prefix_beside(key)
        self._remembers = remembers
        self._known: list[StoredStory] = []
        self._rest: Iterator[StoredStory] | None = None

    def newest_first(self) -> Iterator[StoredStory]:
        """The kept stories, one after the other: who has seen enough stops, and the rest is not
        read. A commit that comes meanwhile may be told last."""
        if not self._remembers:
            yield from _newest_first(self._store, self._prefix, self.checkpoint.commits)
            return
        if self._rest is None:
            self._rest = _newest_first(self._store, self._prefix, self.checkpoint.commits)
        for at in itertools.count():
            if at == len(self._known):
                found = next(self._rest, None)
                if found is None:
                    return
                self._known.append(found)
            yield self._known[at]


class StoredStories:
    """The stories of all groups of a hub, as the checkpoints beside them say who has any."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._groups: dict[bytes, str] = {}
        self._known: dict[bytes, ShardStories] = {}
        self._every: list[ShardStories] | None = None

    def of_shard(self, stream_id: int, shard: int) -> list[ShardStories]:
        """Those of every group that has a checkpoint in this shard, sorted by group."""
        return self._beside(store_keys.checkpoint_prefix(stream_id, shard))

    def every(self) -> list[ShardStories]:
        """Those of every group in every shard, sorted by group."""
        if self._every is None:
            self._every = self._beside(store_keys.checkpoint_prefix())
        return self._every

    def _beside(self, prefix: bytes) -> list[ShardStories]:
        for key, found in self._store.scan(prefix):
            if key not in self._known:
                self._known[key] = ShardStories(
                    self._store,
                    key,
                    self._group(key),
                    Checkpoint.decoded(found.value),
                    remembers=len(self._known) < SHARDS_REMEMBERED,
                )
        mine = [stories for key, stories in self._known.items() if key.startswith(prefix)]
        return sorted(mine, key=lambda each: (each.group, each.stream_id, each.shard))

    def _group(self, key: bytes) -> str:
        group_key = store_keys.group_key_of(key)
        if group_key not in self._groups:
            found = self._store.get(group_key)
            # A checkpoint without a group is a commit of somebody who never joined one.
            self._groups[group_key] = (
                group_key[1:].hex() if found is None else title(found.value)[0]
            )
        return self._groups[group_key]


def _newest_first(store: Store, prefix: bytes, commits: int) -> Iterator[StoredStory]:
    """The slots are a ring: from the last one written back to the first, then the ones above it,
    which are the oldest. The newest story is read alone, because it often is enough."""
    newest = (commits - 1) % STORIES_KEPT
    last = store.get(prefix + newest.to_bytes(2, "big"))
    if last is not None:
        yield StoredStory(*story_entry(last.value))
    parts = STORIES_KEPT // _PART_SLOTS
    oldest: list[StoredStory] = []
    for back in range(parts):
        part = (newest // _PART_SLOTS - back) % parts
        for key, found in reversed(list(store.scan(prefix + part.to_bytes(1, "big")))):
            slot = store_keys.story_slot(key)
            if slot == newest:
                continue
            told = StoredStory(*story_entry(found.value))
            if back == 0 and slot > newest:
                oldest.append(told)
            else:
                yield told
    yield from oldest
