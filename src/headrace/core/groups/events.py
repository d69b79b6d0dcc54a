"""What can happen to a group, and what the group answers: input and output of `machine.step`.

Every event may come twice, late, or out of order. So each names exactly what it speaks of: a member
by name and incarnation, a shard by its epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace.core.errors import BadSetting
from headrace.core.groups.allocators import Allocator
from headrace.core.model import OFFSET_MAX, ShardId
from headrace.core.names import checked_name

MEMBER_CHARS_MAX = 200
STREAMS_MAX = 1_000
AMOUNT_MAX = 1e9
INDEX_END = 2**32
NUMBER_END = 2**63

Proof = Literal["dead", "silent"]
"""Why a member is thought gone: its process is dead, or it was silent for a whole session."""

Why = Literal[
    "fenced",  # a newer incarnation is there, or this one was evicted
    "no group",  # it was deleted, or never was
    "allocator",  # the group's allocator is another one
    "allocation",  # the allocator's result cannot be carried out
    "late",  # what it speaks of is another by now: an epoch, a group, its attributes
    "unknown",  # no event of this version
    "full",  # more members or shards than a group can hold
]


class ShardFacts(NamedTuple):
    """What an observer found out about a shard of a stream."""

    index: int  # type: ignore[assignment]  # instead of tuple.index
    parents: tuple[int, ...] = ()
    finished_at: int | None = None
    """The shard's epoch in the group while the observer found it closed and its checkpoint at its
    end; 0 if the group did not know it. A checkpoint moved meanwhile has raised the epoch."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """All shards of a stream, closed ones too; none if the stream is gone."""

    stream: str
    id: int
    """Streams of one name that come one after the other have growing ids."""
    shards: tuple[ShardFacts, ...]
    seen: int = 0
    """The group's version that the observer saw before it looked: what the group has forgotten
    since is not new, and the checkpoints of an earlier group of this name say nothing about this
    one."""

    def __post_init__(self) -> None:
        checked_name(self.stream)
        _check_index(self.id)
        for fact in self.shards:
            _check_index(fact.index, *fact.parents)


@dataclass(frozen=True, slots=True)
class Join:
    """A member enters; a newer incarnation of a name takes the place of the older one. One that is
    there already takes on the streams that are new to it."""

    member: str
    incarnation: int
    streams: tuple[StreamFacts, ...]
    allocator: Allocator
    capacity: float = 1.0
    order: bool = False
    """For a group that is not there yet, as is the timeout; changed by `Configure` only."""
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _check_member(self.member)
        if not (isinstance(self.incarnation, int) and 0 <= self.incarnation < NUMBER_END):
            raise BadSetting(f"bad incarnation {self.incarnation!r} of {self.member}")
        if not (isinstance(self.capacity, int | float) and 0 < self.capacity <= AMOUNT_MAX):
            raise BadSetting(
                f"bad capacity {self.capacity!r} of {self.member}: above 0, up to {AMOUNT_MAX:g}"
            )
        _check_timeout(self.timeout_s)
        _check_order(self.order)
        names = {facts.stream for facts in self.streams}
        if len(names) != len(self.streams) or len(names) > STREAMS_MAX:
            count = len(self.streams)
            raise BadSetting(f"{self.member}: {count} streams: each once, at most {STREAMS_MAX}")


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A member tells what it works on, and asks what it may work on."""

    member: str
    incarnation: int
    beat: int
    seen: int
    """The version of the last answer it has applied: of what was granted later it cannot know."""
    held: Mapping[ShardId, int]
    """Epochs of the shards it works on, also of those it is about to let go."""


@dataclass(frozen=True, slots=True)
class Release:
    """A member has let go of shards, without waiting for its next heartbeat."""

    member: str
    incarnation: int
    shards: Mapping[ShardId, int]


@dataclass(frozen=True, slots=True)
class Leave:
    member: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Evict:
    """An observer found a member gone; it looked once more right before this."""

    member: str
    incarnation: int
    proof: Proof
    silent_s: float = 0.0
    """How long it was watched being silent: the group knows best how long it may be."""


@dataclass(frozen=True, slots=True)
class ShardsChanged:
    """A stream was split, merged, read to a closed end, or deleted."""

    stream: StreamFacts


@dataclass(frozen=True, slots=True)
class Fence:
    """Whoever works under this epoch shall not commit any more; the owner stays."""

    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The shard is given to nobody until it is resumed."""

    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class Resume:
    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class ForceCheckpoint:
    """The checkpoint is moved by force, back or forth; whoever works there is fenced."""

    shard: ShardId
    epoch: int
    """Of a shard that the group does not know: the group's floor."""
    next: int
    finished: bool
    """The shard is closed, and this is its end."""
    parents: tuple[int, ...] = ()
    """Of the shard, in case the group has forgotten it as done."""

    def __post_init__(self) -> None:
        if not (isinstance(self.next, int) and 0 <= self.next <= OFFSET_MAX):
            raise BadSetting(f"a checkpoint at {self.next!r}: an offset is 0 to {OFFSET_MAX}")
        _check_index(self.shard.index, *self.parents)


@dataclass(frozen=True, slots=True)
class Configure:
    """Attributes changed; None leaves one as it is."""

    configured: int
    """When they were last changed, as far as is known: who comes late changes nothing."""
    order: bool | None = None
    timeout_s: float | None = None
    allocator: Allocator | None = None

    def __post_init__(self) -> None:
        if self.timeout_s is not None:
            _check_timeout(self.timeout_s)
        if self.order is not None:
            _check_order(self.order)


@dataclass(frozen=True, slots=True)
class Delete:
    """The group ends; what it left in the store is swept afterwards."""

    born: int
    """Which group of this name is meant."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Nothing of the deleted group is left in the store."""

    version: int


Event = (
    Join
    | Heartbeat
    | Release
    | Leave
    | Evict
    | ShardsChanged
    | Fence
    | Stop
    | Resume
    | ForceCheckpoint
    | Configure
    | Delete
    | Swept
)


@dataclass(frozen=True, slots=True)
class Granted:
    """What a member may work on: exactly the shards it holds, none that is moving away."""

    version: int
    shards: Mapping[ShardId, int]
    """Each with its epoch."""
    streams: Mapping[str, int]
    """Ids of the streams: one that was deleted and made anew is another one."""
    beat: int = 0
    timeout_s: float = 10.0
    """How long this member may be silent."""
    fault: str = ""
    """Why the group could not be dealt anew; the old assignment stands."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The event has been taken in, or had nothing left to change."""

    version: int


@dataclass(frozen=True, slots=True)
class Denied:
    """Nothing was changed."""

    why: Why
    text: str = field(compare=False)


Reply = Granted | Settled | Denied


def _check_timeout(timeout_s: float) -> None:
    if not (isinstance(timeout_s, int | float) and 0 < timeout_s <= AMOUNT_MAX):
        raise BadSetting(f"bad timeout {timeout_s!r}: seconds above 0, up to {AMOUNT_MAX:g}")


def _check_order(order: bool) -> None:
    if not isinstance(order, bool):
        raise BadSetting(f"bad order {order!r}: True or False")


def _check_member(name: str) -> None:
    if not (isinstance(name, str) and 0 < len(name) <= MEMBER_CHARS_MAX and name.isprintable()):
        raise BadSetting(
            f"bad member name {str(name)[:50]!r}: 1 to {MEMBER_CHARS_MAX} printable characters"
        )


def _check_index(*indexes: int) -> None:
    for index in indexes:
        if not (isinstance(index, int) and 0 <= index < INDEX_END):
            raise BadSetting(f"bad shard or id {index!r}: 0 to {INDEX_END - 1}")
