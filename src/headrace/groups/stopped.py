"""Records that make trouble: what is stored of the attempts at them, and letting the shards go on
that were stopped because of them.

Attempts are written by commits, under a grant. Here they are written without one: only while it is
certain that nobody has a grant of the shard, for it is stopped.
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
    """Of the groups of one hub."""

    def __init__(self, store: Store, coordinator: Coordinator) -> None:
        self._store = store
        self._coordinator = coordinator

    def attempts(self, group: Group, streams: Iterable[StreamInfo]) -> dict[ShardId, Attempts]:
        """What is stored for the shards of these streams."""
        found = {}
        for info in streams:
            for shard in info.shards:
                stored = attempts_of(self._store, group.name, info.id, shard.index)
                if stored is not None:
                    found[ShardId(info.name, shard.index)] = Attempts.decoded(stored.value)
        return found

    def resume(self, group: Group, shard: ShardId | None) -> list[ShardId]:
        """The stopped shards go on, or the one; an error if nothing is stopped."""
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
        """A stopped shard goes on, with all its retries; one that goes on already is left alone.

        The attempts are reset first: whoever gets the shard finds them so. If this ends halfway it
        is still stopped, and can be resumed."""
        name, stream_id = group.name, group.streams.get(shard.stream)
        if stream_id is None:
            return
        for _ in range(TRIES_MAX):
            # Looked at before the group: what is written after it was seen stopped is noticed.
            stored = attempts_of(self._store, name, stream_id, shard.index)
            now = self._coordinator.load(name)
            standing = now.shards.get(shard)
            if standing is None or not standing.stopped or now.streams[shard.stream] != stream_id:
                return  # by somebody else, or it is gone
            epoch = standing.epoch
            if standing.owner is not None:
                # It has not let go yet: now it cannot write what it knows over what is reset.
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
        """Whether nobody has begun to work there meanwhile; then nothing counts any more."""
        if stored is None:
            return True
        fresh = Attempts.decoded(stored.value)._replace(
            failed=0, deaths=0, working=False, named=False, stopped=False
        )
        return reset_attempts(
            self._store, name, stream_id, shard, epoch, fresh.encoded(), stored.version
        )
