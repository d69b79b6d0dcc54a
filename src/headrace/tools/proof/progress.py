"""The progress of a topology on a hub, seen from outside: lag, working replicas, stopped shards,
and gaps without output."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.computations.topology import Topology
from headrace.core.errors import UnknownGroup
from headrace.core.groups.group import Group
from headrace.core.model import RecordId, ShardId
from headrace.groups.positions import Position
from headrace.hub.hub import Hub


@dataclass(frozen=True)
class Stopped:
    computation: str
    record: str
    reason: str


@dataclass
class _Gap:
    progress: tuple[int, ...] = ()
    since_s: float | None = None
    """Since when there is work and no progress; None if there is no work."""
    longest_s: float = 0.0

    def look(self, progress: tuple[int, ...], has_work: bool, now_s: float) -> None:
        if not has_work:
            self.since_s = None
        elif self.since_s is None or progress != self.progress:
            self.since_s = now_s
        else:
            self.longest_s = max(self.longest_s, now_s - self.since_s)
        self.progress = progress


class ProgressWatch:
    def __init__(self, hub: Hub, topology: Topology) -> None:
        self._hub = hub
        self._topology = topology
        written = [name for name in topology.streams if name not in topology.sources]
        self._written = {name: hub.stream(name).info for name in written}
        self._gaps = {name: _Gap() for name in written}
        self._shard_gaps: dict[tuple[str, ShardId], _Gap] = {}
        self.groups: dict[str, Group] = {}
        self.positions: dict[str, dict[ShardId, Position]] = {}
        self.moved_s = 0.0
        """When a position last changed."""
        self._before: object = None

    def look(self, now_s: float) -> None:
        groups = self._hub.groups
        for each in self._topology.computations:
            try:
                group = self.groups[each.name] = groups.load(each.name)
            except UnknownGroup:
                continue
            self.positions[each.name] = groups.positions(group)
            for shard, position in self.positions[each.name].items():
                gap = self._shard_gaps.setdefault((each.name, shard), _Gap())
                gap.look((position.next,), bool(self._shard_lag(group, shard, position)), now_s)
        if self.positions != self._before:
            self._before, self.moved_s = dict(self.positions), now_s
        for name, gap in self._gaps.items():
            self._look_at(name, gap, now_s)

    def longest_gap_s(self, stream: str) -> float | None:
        """The longest time in which the stream was not written, and its input not read, while there
        was work; None for a source."""
        gap = self._gaps.get(stream)
        return None if gap is None else gap.longest_s

    def longest_shard_gap_s(self, stream: str) -> float | None:
        """The longest time in which one input shard of its writers was not worked on while it had
        work; None for a source."""
        writers = {each.name for each in self._topology.writers(stream)}
        found = [gap.longest_s for (name, _), gap in self._shard_gaps.items() if name in writers]
        return max(found, default=None)

    @property
    def lag(self) -> int:
        return sum(self.lag_of(each.name) for each in self._topology.computations)

    def lag_of(self, computation: str) -> int:
        """The lag of a computation without its stopped shards, which no lane works on."""
        group = self.groups.get(computation)
        if group is None:
            return 0
        positions = self.positions[computation]
        return sum(self._shard_lag(group, shard, there) for shard, there in positions.items())

    def everything_begun(self) -> bool:
        """Whether every shard has been begun: the load starts only then."""
        return len(self.positions) == len(self._topology.computations) and all(
            position.checkpoint is not None
            for positions in self.positions.values()
            for position in positions.values()
        )

    def is_member(self, name: str) -> bool:
        """Whether the replica is a member of the group of every computation."""
        return len(self.groups) == len(self._topology.computations) and all(
            name in group.members for group in self.groups.values()
        )

    def at_work(self, name: str) -> bool:
        """Whether the replica owns a shard."""
        return any(group.owned(name) for group in self.groups.values())

    def stopped(self) -> list[Stopped]:
        found = []
        for name, group in self.groups.items():
            shards = [shard for shard, standing in group.shards.items() if standing.stopped]
            attempts = self._hub.groups.attempts(group) if shards else {}
            for shard in sorted(shards):
                known = attempts.get(shard)
                at = self.positions[name][shard].next if known is None else known.offset
                reason = "" if known is None else known.reason
                found.append(Stopped(name, str(RecordId(*shard, at)), reason))
        return found

    def _shard_lag(self, group: Group, shard: ShardId, position: Position) -> int:
        standing = group.shards.get(shard)
        return 0 if standing is not None and standing.stopped else position.lag

    def _look_at(self, name: str, gap: _Gap, now_s: float) -> None:
        stream = self._written[name]
        ends = self._hub.log.ends([(stream, shard.index) for shard in stream.shards])
        writers = [each.name for each in self._topology.writers(name)]
        read = [p.next for each in writers for p in self.positions.get(each, {}).values()]
        gap.look((*ends, *read), any(map(self.lag_of, writers)), now_s)
