"""The groups of a hub: what they are, how far they have come, and moving that by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.errors import (
    BadSetting,
    Contended,
    Damaged,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownGroup,
    UnknownStream,
)
from headrace.core.groups import journal
from headrace.core.groups.allocators import Allocator
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import Delete, Denied, ForceCheckpoint, Swept
from headrace.core.groups.group import Group
from headrace.core.groups.group_bytes import decoded, title
from headrace.core.groups.journal import Entry
from headrace.core.model import Record, RecordId, ShardId, StreamInfo
from headrace.core.names import checked_name
from headrace.core.ports import Backend, Sign
from headrace.core.quantities import instant_ms
from headrace.core.records.limits import check_shard
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.groups.coordinator import Coordinator
from headrace.groups.in_use import GroupUse
from headrace.groups.kept_progress import GroupProgress, does_not_read, kept_progress
from headrace.groups.positions import Position, Seek, SeekTo, check_is_next, seek_of
from headrace.groups.stopped import TRIES_MAX, StoppedShards
from headrace.process.clock import now_ms as wall_ms

GAP_MAX = 16
"""So far back the record before a checkpoint is looked for, where offsets have gaps."""


class Groups:
    """Made by `Hub.groups`."""

    def __init__(
        self,
        backend: Backend,
        allocators: Iterable[Allocator] = (),
        *,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._backend = backend
        self._now_ms = now_ms
        self._coordinator = Coordinator(backend, allocators, now_ms=now_ms)
        self._occupants = GroupUse(lambda: backend.liveness, self._coordinator)
        self._troubles = StoppedShards(backend, self._coordinator)

    # What there is

    def names(self) -> list[str]:
        """All groups, sorted by name."""
        titles = (title(value) for value in self._stored())
        return sorted(name for name, exists in titles if exists)

    def every(self) -> Iterator[Group]:
        """All groups, one at a time, in no order."""
        for value in self._stored():
            if title(value)[1]:
                yield decoded(value, self._coordinator.allocator)

    def load(self, name: str) -> Group:
        """The group of that name, or `UnknownGroup`."""
        group = self._coordinator.load(name)
        if not group.exists:
            raise UnknownGroup(name)
        return group

    def stored(self, name: str) -> Group:
        """The same, or what a deleted group left behind."""
        return self._coordinator.load(name)

    def signs(self, group: Group) -> dict[str, Sign | None]:
        """The last sign of life of each member."""
        sign = self._backend.liveness.sign
        return {
            name: sign(group.name, name, member.incarnation)
            for name, member in group.members.items()
        }

    def _stored(self) -> Iterator[bytes]:
        # In parts: all groups at once might be more than fits in memory.
        for first in range(256):
            for _, found in self._backend.scan(b"g" + bytes([first])):
                yield found.value

    # How far they have come

    def progress(
        self, name: str | None = None, stream: str | None = None
    ) -> Iterator[GroupProgress]:
        """How far each group has come, or one, in all its streams or in one; also where the backend
        itself keeps the groups."""
        kept = self._backend.kept_groups
        if kept is not None:
            yield from kept_progress(self._backend, kept, name, stream)
            return
        for group in self.every() if name is None else [self.load(name)]:
            if name is not None or stream is None or stream in group.streams:
                yield GroupProgress(group.name, self.positions(group, stream))

    def positions(self, group: Group, stream: str | None = None) -> dict[ShardId, Position]:
        """How far the group has come in each shard of its streams, or of one; those of a stream
        that is gone are left out."""
        found = {}
        for info in self._infos(group, stream):
            for shard in info.shards:
                checkpoint = self._checkpoint(group.name, info.id, shard.index)
                bounds = self._backend.bounds(info, shard.index)
                position = Position(info, shard.index, checkpoint, bounds)
                found[ShardId(info.name, shard.index)] = position
        return found

    def attempts(self, group: Group, stream: str | None = None) -> dict[ShardId, Attempts]:
        """What is known of the attempts at the next records, where anything is stored; for the same
        shards as `positions`."""
        return self._troubles.attempts(group, self._infos(group, stream))

    def unread(self, positions: Mapping[ShardId, Position]) -> dict[ShardId, Record]:
        """The oldest record that is still to be read, where there is one that can be."""
        ahead = {s: (p.next, p.bounds.end) for s, p in positions.items() if p.lag}
        return {shard: records[0] for shard, records in self._records(ahead, positions, 1).items()}

    def last_read(self, positions: Mapping[ShardId, Position]) -> dict[ShardId, Record]:
        """The record just before the checkpoint, where there is lag and it is still kept."""
        dense = "dense_offsets" not in self._backend.capabilities.missing
        far = 1 if dense else GAP_MAX
        before = {
            shard: (max(position.checkpoint - far, position.bounds.start), position.checkpoint)
            for shard, position in positions.items()
            if position.lag and position.checkpoint and position.checkpoint > position.bounds.start
        }
        found = self._records(before, positions, far)
        return {shard: records[-1] for shard, records in found.items()}

    def _records(
        self,
        ranges: Mapping[ShardId, tuple[int, int]],
        positions: Mapping[ShardId, Position],
        most: int,
    ) -> dict[ShardId, list[Record]]:
        """The first of the records in each range, where there is one."""
        found = {}
        for shard, (start, end) in ranges.items():
            info = positions[shard].stream
            try:
                reading = self._backend.read(
                    info,
                    shard.index,
                    start,
                    end,
                    max_records=most,
                    max_bytes=most * COMMIT_BYTES_MAX,
                )
            except (Damaged, OffsetOutOfRange, RecordTooLarge, UnknownStream):
                continue  # trimmed or deleted meanwhile, or damaged: it cannot be told
            records = [record for batch in reading.batches for record in batch.records()]
            if records:
                found[shard] = records[:most]
        return found

    def _checkpoint(self, name: str, stream_id: int, shard: int) -> int | None:
        stored = self._backend.get(store_keys.checkpoint_key(name, stream_id, shard))
        return None if stored is None else Checkpoint.decoded(stored.value).next

    def _infos(self, group: Group, stream: str | None) -> list[StreamInfo]:
        if stream is not None and stream not in group.streams:
            raise does_not_read(group.name, stream, group.streams)
        infos = []
        for name in sorted(group.streams) if stream is None else [stream]:
            try:
                info = self._backend.stream(name)
            except UnknownStream:
                continue
            if info.id == group.streams[name]:
                infos.append(info)
        return infos

    # What happened to them

    def history(self, name: str) -> list[Entry]:
        """What the journal tells of a group, also of a deleted one; `UnknownGroup` if nothing."""
        prefix = store_keys.journal_prefix(checked_name(name))
        rows = [found.value for _, found in self._backend.scan(prefix)]
        entries = [journal.decoded(row, self._coordinator.allocator) for row in rows]
        if not entries:
            self.load(name)
        return sorted(entries, key=lambda entry: entry.version)

    def replayed(
        self, name: str, entries: Collection[Entry]
    ) -> Iterator[tuple[Entry, Group, Group]]:
        """The entries with the group before and after each, from the earliest group that is kept
        whole, as far as they can be told here."""
        allocator = self._coordinator.allocator
        rows = [found.value for _, found in self._backend.scan(store_keys.snapshot_prefix(name))]
        begin = journal.whole(name, [decoded(row, allocator) for row in rows], list(entries))
        return iter(()) if begin is None else journal.replayed(begin, entries, allocator)

    # Moving checkpoints by hand

    def plan(
        self,
        name: str,
        where: SeekTo,
        stream: str | None = None,
        shards: Collection[int] | None = None,
    ) -> list[Seek]:
        """What `seek` would do, shard by shard; nothing is done."""
        group = self.load(name)
        if stream is None and (shards is not None or _is_offset(where)) and len(group.streams) > 1:
            raise BadSetting(
                f"group {name!r} reads {', '.join(sorted(group.streams))}: say which stream"
            )
        positions = self.positions(group, stream)
        if stream is not None and not positions:
            raise UnknownStream(stream)
        if shards is not None:
            for index in shards if positions else ():
                check_shard(next(iter(positions.values())).stream, index)
            positions = {s: p for s, p in positions.items() if s.index in shards}
        return [seek_of(s, p, self._target(p, where)) for s, p in positions.items()]

    def seek(
        self,
        name: str,
        where: SeekTo,
        stream: str | None = None,
        shards: Collection[int] | None = None,
        force: bool = False,
    ) -> list[Seek]:
        """Move checkpoints to "earliest", "latest", an offset, a time, or so long ago; what was
        moved. `GroupInUse` while members live: ``force`` fences those who work there."""
        return self.move(name, self.plan(name, where, stream, shards), force)

    def plan_skip(self, name: str, what: ShardId | RecordId, records: int = 1) -> Seek:
        """What `skip` would do; nothing is done."""
        if isinstance(records, bool) or not isinstance(records, int) or records < 1:
            raise BadSetting(f"skip {records!r} records: a whole number from 1")
        shard = ShardId(what.stream, what.shard) if isinstance(what, RecordId) else what
        group = self.load(name)
        positions = self.positions(group, shard.stream)
        if not positions:
            raise UnknownStream(shard.stream)
        check_shard(next(iter(positions.values())).stream, shard.index)
        position = positions[shard]
        if isinstance(what, RecordId):
            check_is_next(name, what, records, position)
        to = Checkpoint().moved(shard, position.next + records, position.bounds).next
        standing = group.shards.get(shard)
        resumes = standing is not None and standing.stopped
        return seek_of(shard, position, to)._replace(resumes=resumes)

    def skip(
        self, name: str, what: ShardId | RecordId, records: int = 1, force: bool = False
    ) -> Seek:
        """Leave out the next records of a shard, or the one that is named; what was moved. A
        stopped shard goes on. `GroupInUse` as in `seek`, but not for a stopped shard that is
        nobody's any more."""
        seek = self.plan_skip(name, what, records)
        self.move(name, [seek], force)
        return seek

    def resume(self, name: str, shard: ShardId | None = None) -> list[ShardId]:
        """Let the stopped shards go on, or one of them, with all their retries; which they are.
        An error if nothing is stopped."""
        group = self.load(name)
        if shard is not None:
            for info in self._infos(group, shard.stream):
                check_shard(info, shard.index)
        return self._troubles.resume(group, shard)

    def move(self, name: str, plan: Collection[Seek], force: bool = False) -> list[Seek]:
        """Carry out a plan, shard by shard; what was moved."""
        self._occupants.evict_dead(name)
        if not plan or not all(seek.resumes for seek in plan):
            self._occupants.check_unused(name, force)
        moved = []
        for seek in plan:
            # Who works ahead of a checkpoint that stays is fenced too, if it is forced.
            if force or seek.checkpoint != seek.to:
                self._force(name, seek, force)
                moved.append(seek)
            if seek.resumes:
                self._troubles.go_on(self.load(name), seek.shard)
        return moved

    def delete(self, name: str, force: bool = False) -> None:
        """Delete a group with its checkpoints and state, for good; its journal stays.
        `GroupInUse` as in `seek`."""
        self._occupants.evict_dead(name)
        self._occupants.check_unused(name, force)
        born = self.load(name).born
        reply = self._coordinator.apply(
            name, Delete(born), self._occupants.still_unused(name, force)
        )
        if isinstance(reply, Denied):
            raise Contended(name, 1)
        # Any event lets the coordinator sweep what the group left; this one says nothing new.
        self._coordinator.apply(name, Swept(reply.version))

    def _target(self, position: Position, where: SeekTo) -> int:
        shard = ShardId(position.stream.name, position.shard)
        match where:
            case "earliest":
                return position.bounds.start
            case "latest":
                return position.bounds.end
            case datetime():
                at_ms = instant_ms(where, what="time to seek to")
            case timedelta():
                ago_ms = where // timedelta(milliseconds=1)
                if ago_ms < 0:
                    raise BadSetting(f"seek to {where} ago: that is still to come")
                at_ms = max(self._now_ms() - ago_ms, 0)
            case _:
                return Checkpoint().moved(shard, where, position.bounds).next
        return self._backend.offset_at(position.stream, position.shard, at_ms)

    def _force(self, name: str, seek: Seek, force: bool) -> None:
        unused = self._occupants.still_unused(name, force)
        for _ in range(TRIES_MAX):
            group = self.load(name)
            standing = group.shards.get(seek.shard)
            epoch = group.floor if standing is None else standing.epoch
            idle = False
            if seek.resumes:
                self._check_not_moved(group, seek)
                # What is stopped and nobody's is given to nobody under this epoch.
                idle = standing is not None and standing.stopped and standing.owner is None
            event = ForceCheckpoint(seek.shard, epoch, seek.to, seek.finished, seek.parents)
            reply = self._coordinator.apply(name, event, None if idle else unused)
            if not isinstance(reply, Denied):
                return
        raise Contended(name, TRIES_MAX)

    def _check_not_moved(self, group: Group, seek: Seek) -> None:
        """Somebody may have let it go on meanwhile: then its checkpoint is not moved back."""
        shard = seek.shard
        at = self._checkpoint(group.name, group.streams.get(shard.stream, 0), shard.index)
        if at != seek.checkpoint:
            raise BadSetting(
                f"{shard} was moved to {at} meanwhile: nothing was skipped; "
                f"look again with headrace group show {group.name}"
            )


def _is_offset(where: object) -> bool:
    return not isinstance(where, str | datetime | timedelta)
