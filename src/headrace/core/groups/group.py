"""How a group stands: its members, its shards, and who owns which. Values; `core.group` makes new
ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.lazy import lazy
from headrace.core.model import ShardId

State = Literal["waiting", "free", "held", "moving", "done"]


class Member(NamedTuple):
    incarnation: int
    """Of two of one name, the higher one is the newer."""
    streams: frozenset[str]
    capacity: float = 1.0
    timeout_s: float = 10.0
    """The one it knows of: a shorter one holds for it when it has seen it."""


class ShardStanding(NamedTuple):
    """How a shard stands in its group."""

    state: State
    epoch: int = 0
    """Counts its grants, and whatever else fences who works on it."""
    owner: str | None = None
    """While held or moving."""
    next: str | None = None
    """While moving; nobody if it was stopped, or if there are more shards than may be held."""
    granted: int = 0
    """The group's version when the owner got this epoch."""
    parents: tuple[int, ...] = ()
    stopped: bool = False
    """Given to nobody."""


class Move(NamedTuple):
    """One edge that a shard went along."""

    shard: ShardId
    edge: str
    before: State | Literal["new"]
    after: State | Literal["gone"]


@dataclass(frozen=True)
class Group:
    name: str
    version: int = 0
    exists: bool = False
    """A deleted group leaves this behind, so that its version and epochs go on if it comes back."""
    born: int = 0
    """The version when it was created, or created anew."""
    order: bool = False
    """A shard waits until all its ancestors are done."""
    timeout_s: float = 10.0
    """How long a member may be silent."""
    configured: int = 0
    """The version when order, timeout or allocator were changed by hand."""
    allocator: Allocator = balanced
    members: Mapping[str, Member] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    """The last incarnations of those who left or were evicted last: they do not come back."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """Ids by name; of a deleted group, those that are still to be swept."""
    shards: Mapping[ShardId, ShardStanding] = field(default_factory=dict)
    floor: int = 0
    """No shard that is new, or was forgotten, begins with a lower epoch."""
    entered: int = 0
    """The version when a shard last entered."""
    removed: int = 0
    """The version when a shard was last forgotten or dropped."""
    forgotten: int = 0
    """How many done shards are only counted any more."""
    pending: bool = False
    """Not dealt: by somebody who does not know the allocator, or because of the fault."""
    fault: str = ""
    moves: tuple[Move, ...] = field(default=(), compare=False, repr=False)
    """What the last step did; not stored."""

    @lazy
    def by_owner(self) -> Mapping[str, Mapping[ShardId, ShardStanding]]:
        """What each member owns: held and moving."""
        owned: dict[str, dict[ShardId, ShardStanding]] = {}
        for shard, standing in self.shards.items():
            if standing.owner is not None:
                owned.setdefault(standing.owner, {})[shard] = standing
        return owned

    def owned(self, member: str) -> Mapping[ShardId, ShardStanding]:
        return self.by_owner.get(member, {})
