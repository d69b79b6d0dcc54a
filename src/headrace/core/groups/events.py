"""What can happen to a group, and what the group answers: input and output of `machine.step`.

Every event may come twice, late, or out of order. So each event names exactly what it is about: a
member by name and incarnation, a shard by its epoch.
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
"""Why a member is called gone: its process is dead, or it was silent for a whole session."""

Why = Literal[
    "fenced",  # a newer incarnation joined, or this one was evicted
    "no group",  # the group was deleted, or never existed
    "allocator",  # the group's allocator is another one
    "allocation",  # the allocator's result cannot be carried out
    "late",  # the epoch, the group or the attributes that the event names have changed
    "unknown",  # this version knows no such event
    "full",  # more members or shards than a group can hold
]


class ShardFacts(NamedTuple):
    """What an observer has found out about a shard of a stream."""

    index: int  # type: ignore[assignment]  # instead of tuple.index
    parents: tuple[int, ...] = ()
    finished_at: int | None = None
    """The shard's epoch in the group at which the observer found the shard closed and its
    checkpoint at its end; 0 if the group did not know the shard; None if it is not finished. A
    checkpoint that was moved meanwhile has raised the epoch."""


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """All shards of a stream, open and closed; no shards if the stream is gone."""

    stream: str
    id: int
    """The id of the stream. A stream created later under the same name has a higher id."""
    shards: tuple[ShardFacts, ...]
    seen: int = 0
    """The group's version that the observer saw before it looked at the stream. A shard that the
    group has forgotten since then is not new, and checkpoints of an earlier group of the same name
    do not count."""

    def __post_init__(self) -> None:
        checked_name(self.stream)
        _check_index(self.id)
        for fact in self.shards:
            _check_index(fact.index, *fact.parents)


@dataclass(frozen=True, slots=True)
class Join:
    """A member enters. A newer incarnation of a name takes the place of the older one. An
    incarnation that is a member already takes on the streams that are new to it."""

    member: str
    incarnation: int
    streams: tuple[StreamFacts, ...]
    allocator: Allocator
    capacity: float = 1.0
    order: bool = False
    """Used only if the event creates the group, as is the timeout. Only `Configure` changes
    them."""
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
    """A member reports which shards it works on, and asks which ones it may work on."""

    member: str
    incarnation: int
    beat: int
    seen: int
    """The version of the last answer that the member has applied. It cannot know of later
    grants."""
    held: Mapping[ShardId, int]
    """The epochs of the shards that the member works on, also of those that it is letting go."""


@dataclass(frozen=True, slots=True)
class Release:
    """A member has let go of shards. This need not wait for its next heartbeat."""

    member: str
    incarnation: int
    shards: Mapping[ShardId, int]


@dataclass(frozen=True, slots=True)
class Leave:
    member: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Evict:
    """An observer has found a member gone, and has looked once more right before this event."""

    member: str
    incarnation: int
    proof: Proof
    silent_s: float = 0.0
    """How long the observer saw the member silent. The group decides whether that is too long."""


@dataclass(frozen=True, slots=True)
class ShardsChanged:
    """A stream was split, merged, read to a closed end, or deleted."""

    stream: StreamFacts


@dataclass(frozen=True, slots=True)
class Fence:
    """No commit under this epoch may succeed any more. The owner stays."""

    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The shard is given to no member until it is resumed."""

    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class Resume:
    shard: ShardId
    epoch: int


@dataclass(frozen=True, slots=True)
class ForceCheckpoint:
    """The checkpoint is moved by force, back or forth. The owner is fenced."""

    shard: ShardId
    epoch: int
    """The shard's epoch; the group's floor if the group does not know the shard."""
    next: int
    finished: bool
    """Whether the shard is closed and ``next`` is its end."""
    parents: tuple[int, ...] = ()
    """The shard's parents, in case the group has forgotten the shard as done."""

    def __post_init__(self) -> None:
        if not (isinstance(self.next, int) and 0 <= self.next <= OFFSET_MAX):
            raise BadSetting(f"a checkpoint at {self.next!r}: an offset is 0 to {OFFSET_MAX}")
        _check_index(self.shard.index, *self.parents)


@dataclass(frozen=True, slots=True)
class Configure:
    """Attributes of the group are changed. None leaves an attribute as it is."""

    configured: int
    """The version of the last such change that the sender knows of. A late event changes
    nothing."""
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
    """The group is deleted. What it leaves in the store is swept afterwards."""

    born: int
    """The version at which the meant group was created: another of its name may exist by now."""


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
    """The shards that a member may work on: exactly those that it holds, none that is moving."""

    version: int
    shards: Mapping[ShardId, int]
    """The epoch of each shard."""
    streams: Mapping[str, int]
    """The ids of the streams. A stream that was deleted and created anew has another id."""
    beat: int = 0
    timeout_s: float = 10.0
    """How long this member may be silent."""
    fault: str = ""
    """Why the shards could not be dealt anew. The old assignment stands."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The event has changed the group, or there was nothing left to change."""

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
