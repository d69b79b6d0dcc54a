"""Stopped shards: the stored attempts at the record that stopped them, and resuming them.

Commits write attempts, under a grant. Here they are written without a grant: only while it is
certain that no member holds one, because the shard is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.computations.attempts import Attempts
from headrace.core.errors import BadSetting, Contended
from headrace.core.groups.events import Denied, Fence, Resume
from headrace.core.groups.group import Group
from headrace.core.model import ShardId, StreamInfo
from headrace.core.ports import Store, Versioned
from headrace.groups.coordinator import Coordinator
from headrace.groups.stored import attempts_of, reset_attempts

TRIES_MAX = 8


class StoppedShards:
    """The stopped shards of the groups of one hub."""

    def __init__(self, store: Store, coordinator: Coordinator) -> None:
        self._store = store
        self._coordinator = coordinator

    def attempts(self, group: Group, streams: Iterable[StreamInfo]) -> dict[ShardId, Attempts]:
        """The stored attempts for the shards of these streams."""
        found = {}
        for info in streams:
            for shard in info.shards:
                stored = attempts_of(self._store, group.name, info.id, shard.index)
                if stored is not None:
                    found[ShardId(info.name, shard.index)] = Attempts.decoded(stored.value)
        return found

    def resume(self, group: Group, shard: ShardId | None) -> list[ShardId]:
        """Let the stopped shards go on, or one of them; an error if none is stopped."""
        stopped = sorted(s for s, standing in group.shards.items() if standing.stopped)
        if shard is None and not stopped:
            raise BadSetting(f"no shard of group {group.name!r} is stopped: nothing to resume")
        if shard is not None and shard not in stopped:
            others = f"; stopped are {', '.join(map(str, stopped[:5]))}" if stopped else ""
            raise BadSetting(
                f"{shard} is not stopped in group {group.name!r}: nothing to resume{others}"
            )
        wanted = stopped if shard is None else [shard]
        for one in wanted:
            self.go_on(group, one)
        return wanted

    def go_on(self, group: Group, shard: ShardId) -> None:
        """Let a stopped shard go on, with all its retries; a shard that goes on already stays as it
        is.

        The attempts are reset first: the next owner finds them so. If this process dies halfway,
        the shard is still stopped, and can be resumed."""
        name, stream_id = group.name, group.streams.get(shard.stream)
        if stream_id is None:
            return
        for _ in range(TRIES_MAX):
            # Read before the group: attempts written after the shard was seen stopped are noticed.
            stored = attempts_of(self._store, name, stream_id, shard.index)
            now = self._coordinator.load(name)
            standing = now.shards.get(shard)
            if standing is None or not standing.stopped or now.streams[shard.stream] != stream_id:
                return  # it was resumed by another process, or the stream is gone
            epoch = standing.epoch
            if standing.owner is not None:
                # The owner has not let go yet: fenced, it cannot overwrite the reset attempts.
                if isinstance(self._coordinator.apply(name, Fence(shard, epoch)), Denied):
                    continue
                epoch += 1
            if not self._reset(name, stream_id, shard.index, epoch, stored):
                continue
            if not isinstance(self._coordinator.apply(name, Resume(shard, epoch)), Denied):
                return
        raise Contended(name, TRIES_MAX)

    def _reset(
        self, name: str, stream_id: int, shard: int, epoch: int, stored: Versioned | None
    ) -> bool:
        """Reset the attempts; False if a member has begun to work on the shard meanwhile."""
        if stored is None:
            return True
        fresh = Attempts.decoded(stored.value)._replace(
            failed=0, deaths=0, working=False, named=False, stopped=False
        )
        return reset_attempts(
            self._store, name, stream_id, shard, epoch, fresh.encoded(), stored.version
        )
