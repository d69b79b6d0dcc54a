"""A group as a value: its members, its shards, and which member owns which shard.

`machine.step` makes a new value for each change."""

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
    """Of two members of one name, the one with the higher incarnation is the newer."""
    streams: frozenset[str]
    capacity: float = 1.0
    timeout_s: float = 10.0
    """How long the member believes that it may be silent. A shorter timeout of the group holds for
    the member only once the member has seen it."""


class ShardStanding(NamedTuple):
    """How a shard stands in its group."""

    state: State
    epoch: int = 0
    """Counts the grants of the shard, and whatever else fences its owner."""
    owner: str | None = None
    """The member that owns the shard, while it is held or moving."""
    next: str | None = None
    """The member that is promised the shard, while it is moving. None if the shard was stopped, or
    if there are more shards than the members may hold."""
    granted: int = 0
    """The group's version when the owner got this epoch."""
    parents: tuple[int, ...] = ()
    stopped: bool = False
    """Whether the shard is given to no member until it is resumed."""


class Move(NamedTuple):
    """One edge of the drawing in `machine` that a shard went along."""

    shard: ShardId
    edge: str
    before: State | Literal["new"]
    after: State | Literal["gone"]


@dataclass(frozen=True)
class Group:
    name: str
    version: int = 0
    exists: bool = False
    """False for what a deleted group leaves behind, so that its version and epochs go on if it is
    created anew."""
    born: int = 0
    """The version at which the group was created, or created anew."""
    order: bool = False
    """Whether a shard waits until all its ancestors are done."""
    timeout_s: float = 10.0
    """How long a member may be silent."""
    configured: int = 0
    """The version at which order, timeout or allocator were last changed by hand."""
    allocator: Allocator = balanced
    members: Mapping[str, Member] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    """The last incarnations of the members that left or were evicted last. They cannot come
    back."""
    streams: Mapping[str, int] = field(default_factory=dict)
    """The ids of the streams, by name; in a deleted group, of those that are still to be swept."""
    shards: Mapping[ShardId, ShardStanding] = field(default_factory=dict)
    floor: int = 0
    """The lowest epoch that a new or a forgotten shard begins with."""
    entered: int = 0
    """The version at which a shard last entered."""
    removed: int = 0
    """The version at which a shard was last forgotten or dropped."""
    forgotten: int = 0
    """How many done shards the group has forgotten."""
    pending: bool = False
    """Whether shards are still to be dealt: the process of the last change did not know the
    allocator, or the allocator failed, as `fault` says."""
    fault: str = ""
    moves: tuple[Move, ...] = field(default=(), compare=False, repr=False)
    """What the last step did. It is not stored."""

    @lazy
    def by_owner(self) -> Mapping[str, Mapping[ShardId, ShardStanding]]:
        """The shards that each member owns, held and moving."""
        owned: dict[str, dict[ShardId, ShardStanding]] = {}
        for shard, standing in self.shards.items():
            if standing.owner is not None:
                owned.setdefault(standing.owner, {})[shard] = standing
        return owned

    def owned(self, member: str) -> Mapping[ShardId, ShardStanding]:
        return self.by_owner.get(member, {})
