"""A group while it is changed: shards go along the edges drawn in `machine`, then it is
finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from headrace.core.errors import BadAllocation
from headrace.core.groups.allocators import dealt
from headrace.core.groups.even_shares import Candidate
from headrace.core.groups.events import StreamFacts
from headrace.core.groups.group import Group, Move, ShardStanding, State
from headrace.core.model import ShardId

GONE_KEPT = 64
"""How many of the members that left last are remembered."""


class Draft:
    """A copy of a group's shards and members that is changed edge by edge, then finished."""

    def __init__(self, group: Group, before: Group | None = None) -> None:
        self.group = group
        self.before = before or group
        """The group that the result is compared with: an equal result is no change."""
        self.version = group.version + 1
        self.shards = dict(group.shards)
        self.members = dict(group.members)
        self.streams = dict(group.streams)
        self.gone = dict(group.gone)
        self.entered = group.entered
        self.removed = group.removed
        self.forgotten = group.forgotten
        self.read: set[ShardId] = set()
        """The waiting shards that are read already. They are done as soon as they are free."""
        self.hints: dict[ShardId, str] = {}
        """The member that should rather get a free shard: the one that owned it as an older
        incarnation."""
        self.floor = group.floor
        self.fault = ""
        """Why the shards could not be dealt; set by `finished`."""
        self.moves: list[Move] = []

    def go(self, shard: ShardId, edge: str, after: State) -> None:
        before = self.shards[shard]
        self.shards[shard] = before._replace(state=after)
        self.moves.append(Move(shard, edge, before.state, after))

    def without(self, member: str) -> None:
        """Remove a member: its shards become free; shards promised to it stay with their owners."""
        if member not in self.members:
            return
        self.gone = remembered(self.gone, {member: self.members.pop(member).incarnation})
        for shard, standing in self.group.shards.items():
            if standing.owner == member:
                self.go(shard, "4 gone" if standing.state == "held" else "9 gone", "free")
                self._disown(shard)
                self.hints[shard] = member
            elif standing.next == member:
                self.go(shard, "6 kept", "held")
                self.shards[shard] = self.shards[shard]._replace(next=None)

    def let_go(self, shards: Iterable[ShardId]) -> None:
        """The owner does not work on these shards any more."""
        for shard in shards:
            standing = self.shards[shard]
            if standing.state == "moving" and standing.next is not None:
                self.go(shard, "6 released", "held")
                self._grant(shard, standing.next)
            else:
                self.go(shard, "let go", "free")
                self._disown(shard)

    def fence(self, shard: ShardId) -> None:
        standing = self.shards[shard]
        self.go(shard, "fence", standing.state)
        granted = self.version if standing.owner is not None else 0
        self.shards[shard] = self.shards[shard]._replace(epoch=standing.epoch + 1, granted=granted)

    def done(self, shard: ShardId) -> None:
        state = self.shards[shard].state
        if state == "waiting":
            self.read.add(shard)
        elif state != "done":
            self.go(shard, f"8 {state}", "done")
            self._disown(shard)

    def recall(self, shard: ShardId, parents: tuple[int, ...]) -> None:
        """Enter a shard that the group does not know: it was forgotten as done, or is not known
        yet."""
        self.shards[shard] = ShardStanding("done", self.floor, parents=parents)
        self.entered = self.version
        self.forgotten = max(self.forgotten - 1, 0)

    def reopen(self, shard: ShardId) -> None:
        """The shard's checkpoint was moved back, so it is to be read again."""
        if self.shards[shard].state == "done":
            waits = self.group.order and self._waits(shard)
            self.go(shard, "7", "waiting" if waits else "free")

    def take_in(self, facts: StreamFacts) -> None:
        """New shards enter, finished shards are done, shards that are gone are dropped."""
        known = self.streams.get(facts.stream)
        if known is not None and facts.id < known:
            return
        fresh = facts.seen >= self.group.removed or (known is not None and facts.id > known)
        if known is None and not fresh:
            return
        if known is not None and (facts.id > known or not facts.shards):
            self.removed = self.version
            self._drop(shard for shard in list(self.shards) if shard.stream == facts.stream)
        if not facts.shards:
            self.streams.pop(facts.stream, None)
            return
        self.streams[facts.stream] = facts.id
        entering = []
        current = facts.seen >= self.group.born
        for fact in facts.shards:
            shard = ShardId(facts.stream, fact.index)
            standing = self.shards.get(shard)
            finished = current and fact.finished_at is not None
            if standing is None:
                if not fresh:
                    continue
                state: State = "done" if finished else "free"
                self.shards[shard] = ShardStanding(state, self.floor, parents=fact.parents)
                entering.append(shard)
            elif finished and fact.finished_at == standing.epoch:
                self.done(shard)
        self._enter(entering)
        if facts.seen >= self.group.entered:
            listed = {fact.index for fact in facts.shards}
            mine = [shard for shard in self.shards if shard.stream == facts.stream]
            self._drop(shard for shard in mine if shard.index not in listed)

    def finished(self) -> Group:
        """The group after the changes. Shards that need not wait are freed, done shards are
        forgotten, the rest is dealt."""
        self._free_waiters()
        self._forget_done()
        fault = self._deal()
        self.fault = fault or ""
        after = replace(
            self.group,
            version=self.version,
            members=self.members,
            gone=self.gone,
            streams=self.streams,
            shards=self.shards,
            floor=self.floor,
            entered=self.entered,
            removed=self.removed,
            forgotten=self.forgotten + sum(move.edge == "forget" for move in self.moves),
            pending=fault is not None,
            # An allocator may fail with other words each time. That is no change.
            fault=(self.before.fault or self.fault) if fault else "",
            moves=tuple(self.moves),
        )
        unchanged = replace(after, version=self.before.version) == self.before
        return self.before if unchanged else after

    def _enter(self, entering: Iterable[ShardId]) -> None:
        """Find the state of new shards. All of them are in the draft already, because one may
        descend from another."""
        for shard in entering:
            standing = self.shards[shard]
            waits = self._waits(shard)
            if standing.state == "done" and not waits:
                del self.shards[shard]
                continue
            if standing.state == "free" and waits and self.group.order:
                standing = self.shards[shard] = standing._replace(state="waiting")
            self.moves.append(Move(shard, f"1 {standing.state}", "new", standing.state))
            self.entered = self.version

    def _waits(self, shard: ShardId) -> bool:
        """Whether any ancestor is still to be read. An ancestor that the group does not know was
        read."""
        ahead = [shard]
        met = {shard}
        while ahead:
            for index in self.shards[ahead.pop()].parents:
                parent = ShardId(shard.stream, index)
                if parent in met or parent not in self.shards:
                    continue
                if self.shards[parent].state != "done":
                    return True
                met.add(parent)
                ahead.append(parent)
        return False

    def _free_waiters(self) -> None:
        ended = True
        while ended:
            ended = False
            for shard, standing in list(self.shards.items()):
                if standing.state == "waiting" and not (self.group.order and self._waits(shard)):
                    self.go(shard, "2", "free")
                    if shard in self.read:
                        self.done(shard)
                        ended = True

    def _forget_done(self) -> None:
        """Forget done shards, but keep the ancestors of a waiting shard and the descendants of a
        shard that is still to be read. So a shard that waits, or will wait, keeps all its
        ancestors."""
        if all(standing.state != "done" for standing in self.shards.values()):
            return
        needed: set[ShardId] = set()
        ahead = [shard for shard, s in self.shards.items() if s.state == "waiting"]
        while ahead:
            shard = ahead.pop()
            for index in self.shards[shard].parents:
                parent = ShardId(shard.stream, index)
                if parent in self.shards and parent not in needed:
                    needed.add(parent)
                    ahead.append(parent)
        for shard, standing in list(self.shards.items()):
            if standing.state == "done" and shard not in needed and not self._waits(shard):
                self._remove(shard, "forget")

    def _drop(self, shards: Iterable[ShardId]) -> None:
        for shard in shards:
            self._remove(shard, "drop")

    def _remove(self, shard: ShardId, edge: str) -> None:
        standing = self.shards.pop(shard)
        self.moves.append(Move(shard, edge, standing.state, "gone"))
        self.floor = max(self.floor, standing.epoch)
        self.removed = self.version

    def _deal(self) -> str | None:
        """Carry out what the allocator says. Returns the fault if that is impossible; then no shard
        moves."""
        if not self.members:
            return None
        if self.group.allocator.deal is None:
            return ""
        shards = [
            shard
            for shard, s in self.shards.items()
            if s.state in ("free", "held", "moving") and not s.stopped
        ]
        current = dict(self.hints)
        for shard in shards:
            standing = self.shards[shard]
            if standing.owner is not None:
                owner = standing.next if standing.state == "moving" else standing.owner
                if owner is not None:
                    current[shard] = owner
        candidates = [Candidate(n, m.streams, m.capacity) for n, m in self.members.items()]
        try:
            target = dealt(self.group.allocator, candidates, shards, current)
        except BadAllocation as error:
            return str(error)
        for shard in shards:
            self._aim(shard, target.get(shard))
        return None

    def _aim(self, shard: ShardId, target: str | None) -> None:
        standing = self.shards[shard]
        match standing.state:
            case "free" if target is not None:
                self.go(shard, "3", "held")
                self._grant(shard, target)
            case "held" if target != standing.owner:
                self.go(shard, "5", "moving")
                self.shards[shard] = self.shards[shard]._replace(next=target)
            case "moving" if target == standing.owner:
                self.go(shard, "6 kept", "held")
                self.shards[shard] = self.shards[shard]._replace(next=None)
            case "moving" if target != standing.next:
                self.go(shard, "next", "moving")
                self.shards[shard] = self.shards[shard]._replace(next=target)
            case _:
                pass

    def _grant(self, shard: ShardId, member: str) -> None:
        standing = self.shards[shard]
        self.shards[shard] = standing._replace(
            owner=member, next=None, epoch=standing.epoch + 1, granted=self.version
        )

    def _disown(self, shard: ShardId) -> None:
        self.shards[shard] = self.shards[shard]._replace(owner=None, next=None, granted=0)


def remembered(gone: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """The incarnations of the members that left, the last ones last; at most `GONE_KEPT`."""
    kept = {name: incarnation for name, incarnation in gone.items() if name not in more}
    return dict([*kept.items(), *more.items()][-GONE_KEPT:])
