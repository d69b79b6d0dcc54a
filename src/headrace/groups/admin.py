"""The groups of a hub: listed, measured, and their checkpoints moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta

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
from headrace.core.lazy import lazy
from headrace.core.model import Record, RecordId, ShardId, StreamInfo
from headrace.core.names import checked_name
from headrace.core.ports import Backend, GroupStore, Sign
from headrace.core.quantities import instant_ms
from headrace.core.records.limits import check_shard
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.groups.coordinator import Coordinator
from headrace.groups.in_use import GroupUse
from headrace.groups.kept_progress import GroupProgress, does_not_read, kept_progress
from headrace.groups.positions import Position, Seek, SeekTo, check_is_next, seek_of
from headrace.groups.stopped import TRIES_MAX, StoppedShards
from headrace.groups.stored import checkpoint_of, group_values, journal_rows, snapshot_rows
from headrace.process.clock import now_ms as wall_ms

GAP_MAX = 16
"""How far back the record before a checkpoint is looked for, where offsets have gaps."""


class Groups:
    """The groups of one hub. Made by `Hub.groups`."""

    def __init__(
        self,
        backend: Backend,
        allocators: Iterable[Allocator] = (),
        *,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._records = backend.log
        self._kept_groups = backend.kept_groups
        self._backend = backend
        self._allocators = tuple(allocators)
        self._now_ms = now_ms

    @lazy
    def _store(self) -> GroupStore:
        """Where groups of ours live; `Unsupported` with the reason where they cannot."""
        if self._backend.store is None:
            raise self._backend.capabilities.refusal("store")
        return self._backend.store

    @lazy
    def _coordinator(self) -> Coordinator:
        return Coordinator(self._store, self._allocators, now_ms=self._now_ms)

    @lazy
    def _use(self) -> GroupUse:
        return GroupUse(self._store.liveness, self._coordinator)

    @lazy
    def _stopped(self) -> StoppedShards:
        return StoppedShards(self._store, self._coordinator)

    # What there is

    def names(self) -> list[str]:
        """All groups, sorted by name."""
        titles = (title(value) for value in group_values(self._store))
        return sorted(name for name, exists in titles if exists)

    def every(self) -> Iterator[Group]:
        """All groups, one at a time, in no order."""
        for value in group_values(self._store):
            if title(value)[1]:
                yield decoded(value, self._coordinator.allocator)

    def load(self, name: str) -> Group:
        """The group of that name, or `UnknownGroup`."""
        group = self._coordinator.load(name)
        if not group.exists:
            raise UnknownGroup(name)
        return group

    def stored(self, name: str) -> Group:
        """The group of that name as it is stored, also what a deleted group left behind."""
        return self._coordinator.load(name)

    def signs(self, group: Group) -> dict[str, Sign | None]:
        """The last sign of life of each member."""
        sign = self._store.liveness.sign
        return {
            name: sign(group.name, name, member.incarnation)
            for name, member in group.members.items()
        }

    # How far they have come

    def progress(
        self, name: str | None = None, stream: str | None = None
    ) -> Iterator[GroupProgress]:
        """How far each group has come, or one group, in all its streams or in one. Also for groups
        that the place of the log keeps by itself, as Kafka does."""
        if self._kept_groups is not None:
            yield from kept_progress(self._records, self._kept_groups, name, stream)
            return
        for group in self.every() if name is None else [self.load(name)]:
            if name is not None or stream is None or stream in group.streams:
                yield GroupProgress(group.name, self.positions(group, stream))

    def positions(self, group: Group, stream: str | None = None) -> dict[ShardId, Position]:
        """How far the group has come in each shard of its streams, or of one stream. Deleted
        streams are left out."""
        found = {}
        for info in self._infos(group, stream):
            for shard in info.shards:
                checkpoint = self._checkpoint(group.name, info.id, shard.index)
                bounds = self._records.bounds(info, shard.index)
                position = Position(info, shard.index, checkpoint, bounds)
                found[ShardId(info.name, shard.index)] = position
        return found

    def attempts(self, group: Group, stream: str | None = None) -> dict[ShardId, Attempts]:
        """The stored attempts at the next records, for the same shards as `positions`. Shards
        without attempts are left out."""
        return self._stopped.attempts(group, self._infos(group, stream))

    def unread(self, positions: Mapping[ShardId, Position]) -> dict[ShardId, Record]:
        """The oldest unread record of each shard that has a readable one."""
        ahead = {s: (p.next, p.bounds.end) for s, p in positions.items() if p.lag}
        return {
            shard: records[0] for shard, records in self._read_ranges(ahead, positions, 1).items()
        }

    def last_read(self, positions: Mapping[ShardId, Position]) -> dict[ShardId, Record]:
        """The record just before the checkpoint, where there is lag and it is still kept."""
        dense = "dense_offsets" not in self._records.capabilities.missing
        far = 1 if dense else GAP_MAX
        before = {
            shard: (max(position.checkpoint - far, position.bounds.start), position.checkpoint)
            for shard, position in positions.items()
            if position.lag and position.checkpoint and position.checkpoint > position.bounds.start
        }
        found = self._read_ranges(before, positions, far)
        return {shard: records[-1] for shard, records in found.items()}

    def _read_ranges(
        self,
        ranges: Mapping[ShardId, tuple[int, int]],
        positions: Mapping[ShardId, Position],
        most: int,
    ) -> dict[ShardId, list[Record]]:
        """The first records in each range; ranges without a readable record are left out."""
        found = {}
        for shard, (start, end) in ranges.items():
            info = positions[shard].stream
            try:
                reading = self._records.read(
                    info,
                    shard.index,
                    start,
                    end,
                    max_records=most,
                    max_bytes=most * COMMIT_BYTES_MAX,
                )
            except (Damaged, OffsetOutOfRange, RecordTooLarge, UnknownStream):
                continue  # trimmed or deleted meanwhile, or damaged
            records = [record for batch in reading.batches for record in batch.records()]
            if records:
                found[shard] = records[:most]
        return found

    def _checkpoint(self, name: str, stream_id: int, shard: int) -> int | None:
        stored = checkpoint_of(self._store, name, stream_id, shard)
        return None if stored is None else stored.next

    def _infos(self, group: Group, stream: str | None) -> list[StreamInfo]:
        if stream is not None and stream not in group.streams:
            raise does_not_read(group.name, stream, group.streams)
        infos = []
        for name in sorted(group.streams) if stream is None else [stream]:
            try:
                info = self._records.stream(name)
            except UnknownStream:
                continue
            if info.id == group.streams[name]:
                infos.append(info)
        return infos

    # What happened to them

    def history(self, name: str) -> list[Entry]:
        """The journal of a group, also of a deleted one; `UnknownGroup` if there is none."""
        rows = journal_rows(self._store, checked_name(name))
        entries = [journal.decoded(row, self._coordinator.allocator) for row in rows]
        if not entries:
            self.load(name)
        return sorted(entries, key=lambda entry: entry.version)

    def replayed(
        self, name: str, entries: Collection[Entry]
    ) -> Iterator[tuple[Entry, Group, Group]]:
        """The entries with the group before and after each, from the earliest whole group in the
        journal on, as far as this process knows the allocators."""
        allocator = self._coordinator.allocator
        rows = snapshot_rows(self._store, name)
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
        """Move checkpoints to "earliest", "latest", an offset, a time, or a duration ago; what was
        moved. `GroupInUse` while members live: ``force`` fences the members that work there."""
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
        """Leave out the next records of a shard, or the named record; what was moved. A stopped
        shard goes on. `GroupInUse` as in `seek`, but not for a stopped shard without an owner."""
        seek = self.plan_skip(name, what, records)
        self.move(name, [seek], force)
        return seek

    def resume(self, name: str, shard: ShardId | None = None) -> list[ShardId]:
        """Let the stopped shards go on, or one of them, with all their retries; the resumed shards.
        An error if none is stopped."""
        group = self.load(name)
        if shard is not None:
            for info in self._infos(group, shard.stream):
                check_shard(info, shard.index)
        return self._stopped.resume(group, shard)

    def move(self, name: str, plan: Collection[Seek], force: bool = False) -> list[Seek]:
        """Carry out a plan, shard by shard; what was moved."""
        self._use.evict_dead(name)
        if not plan or not all(seek.resumes for seek in plan):
            self._use.check_unused(name, force)
        moved = []
        for seek in plan:
            # A member that works ahead of a checkpoint that stays is fenced too, with ``force``.
            if force or seek.checkpoint != seek.to:
                self._force(name, seek, force)
                moved.append(seek)
            if seek.resumes:
                self._stopped.go_on(self.load(name), seek.shard)
        return moved

    def delete(self, name: str, force: bool = False) -> None:
        """Delete a group with its checkpoints and state, for good; its journal stays.
        `GroupInUse` as in `seek`."""
        self._use.evict_dead(name)
        self._use.check_unused(name, force)
        born = self.load(name).born
        reply = self._coordinator.apply(name, Delete(born), self._use.still_unused(name, force))
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
        return self._records.offset_at(position.stream, position.shard, at_ms)

    def _force(self, name: str, seek: Seek, force: bool) -> None:
        unused = self._use.still_unused(name, force)
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
