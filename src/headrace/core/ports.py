"""The seams: what a backend, a codec and a watch over members must offer to the rooms above.

A hub stands on one `Backend`. Everything above it speaks in streams, shards, slices and grants;
what a backend cannot do it publishes as a missing capability, asked for at start. How each port is
meant on LMDB and on Kafka: docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from headrace.core.errors import BadSetting, HeadraceError, Unsupported
from headrace.core.model import Bounds, Record, Slice, StreamInfo
from headrace.core.nearest import did_you_mean
from headrace.core.records.batch import Batch

Capability = Literal[
    "atomic_append",  # all records of one append become visible together, or none does
    "commit",  # outputs, state and checkpoint in one step
    "copying",  # records of another log come with the position there, in one step
    "dense_offsets",  # the record after offset n has offset n + 1
    "durable",  # an acknowledged record survives the process and the power
    "merge",  # two neighbouring shards become one
    "processes",  # several processes may use it at once
    "producer_seq",  # a repeated append is recognised, also after a restart
    "remote",  # other machines can reach it
    "split",  # one shard becomes two
    "store",  # small values written by checked transactions
    "trim",  # records before an offset can be dropped
]
CAPABILITIES: tuple[Capability, ...] = (
    "atomic_append", "commit", "copying", "dense_offsets", "durable", "merge",
    "processes", "producer_seq", "remote", "split", "store", "trim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The published table: which capabilities are missing, each with the reason."""

    backend: str
    missing: Mapping[Capability, str] = field(default_factory=dict)

    def require(self, *wanted: Capability) -> None:
        """Raise `Unsupported`, with its reason, for the first capability that is missing."""
        for capability in wanted:
            if capability not in CAPABILITIES:
                raise BadSetting(
                    f"unknown capability {capability!r}: known are {', '.join(CAPABILITIES)}"
                    f"{did_you_mean(capability, CAPABILITIES)}"
                )
            if capability in self.missing:
                raise self.refusal(capability)

    def refusal(self, capability: Capability) -> Unsupported:
        """What whoever wants a missing one is told."""
        return Unsupported(self.backend, f"offer {capability!r}", self.missing[capability])


class StreamSpec(NamedTuple):
    """What a stream shall be."""

    name: str
    shards: int
    codec: str
    routing: str
    retention_s: float | None
    retention_bytes: int | None
    created_ms: int


class Append(NamedTuple):
    """A batch for one shard."""

    stream: StreamInfo
    shard: int
    batch: Batch
    each: bool = False
    """Whether the offset of each record is asked for, not only where they begin and end."""


class Producer(NamedTuple):
    """Who appends, and the number of this append: the same pair again is the same append."""

    name: str
    seq: int
    after: int | None = None
    """Unless None, the number its last append must have had, `NOTHING_BEFORE` for none: else it is
    `Fenced`, and so is a repetition."""


NOTHING_BEFORE = -1
"""The number before a producer's first."""


class Place(NamedTuple):
    """Where an appended batch went: one record behind the other from ``base`` on, unless an end
    is given."""

    shard: int
    base: int
    end: int | None = None
    """One behind the last record, where records of others lie between."""
    offsets: Sequence[int] | None = None
    """Then those of all records, if they were asked for."""

    def behind(self, count: int) -> int:
        """One behind the last of so many records."""
        return self.base + count if self.end is None else self.end

    def of(self, row: int) -> int:
        """The offset of a record whose offsets were asked for."""
        return self.base + row if self.offsets is None else self.offsets[row]


class ReadResult(NamedTuple):
    """What a read found, and where to read next: behind gaps too, so never the last offset plus
    one."""

    batches: Sequence[Batch]
    next: int


class Versioned(NamedTuple):
    """A small value; its version changes with every write, and never comes again."""

    value: bytes
    version: int


ABSENT = 0
"""The version to check for when a key must not exist yet."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to work on one shard for a group. Only the backend reads the token: an epoch, or a
    member's metadata."""

    group: str
    stream: StreamInfo
    shard: int
    token: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one slice produced, and the checkpoint behind it: all becomes visible, or nothing."""

    grant: Grant
    done: Slice
    """The checkpoint becomes its end."""
    outputs: Sequence[Append] = ()
    state: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Changed entries of the shard's state; None removes one."""
    dead_letters: Sequence[Append] = ()
    attempts: bytes | None = None
    """What is known of the attempts at the next record; empty forgets it, None leaves it."""
    story: bytes = b""
    """What happened, told by who did it; the backend adds where the outputs went."""

    def __post_init__(self) -> None:
        if (self.done.stream, self.done.shard) != (self.grant.stream.name, self.grant.shard):
            raise BadSetting(
                f"a commit of {self.done} under a grant for {self.grant.stream.name}:"
                f"{self.grant.shard}"
            )


class Streams(Protocol):
    """Streams by name."""

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        """The new stream, or `StreamExists`: exactly one of several callers creates it."""

    def stream(self, name: str) -> StreamInfo:
        """The stream, or `UnknownStream`."""

    def streams(self) -> list[StreamInfo]:
        """All streams, sorted by name."""

    def delete_stream(self, name: str) -> None:
        """Gone at once for everybody, or `UnknownStream`; space is freed afterwards."""


class Records(Protocol):
    """Records of streams."""

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        """All parts become durable, each in order, before this returns; they become visible
        together unless ``atomic_append`` is missing.

        Together they may hold `COMMIT_BYTES_MAX`. A producer's number that was seen before appends
        nothing and returns the places of the first time."""

    def read(
        self,
        stream: StreamInfo,
        shard: int,
        start: int,
        end: int | None = None,
        *,
        max_records: int,
        max_bytes: int,
    ) -> ReadResult:
        """Records with ``start <= offset < end`` from the first on, at least one if there is any,
        within the limits.

        `OffsetOutOfRange` before the first kept offset or beyond the end; `BadBatch` for a damaged
        one."""

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds: ...

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        """The bounds of several shards, at little more than the cost of one."""

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        """The ends of several shards, at little more than the cost of one."""

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        """The first offset whose timestamp is not earlier; the end if all are."""

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        """Drop the records before that offset; it must lie within the bounds."""

    def changes(self) -> int:
        """A number that differs after anything was written by anybody."""

    def wait(self, seen: int, timeout_s: float) -> int:
        """`changes()` as soon as it differs from ``seen``, or after the time; at next to no CPU."""


class Store(Protocol):
    """Small values under short keys, written by checked transactions."""

    def get(self, key: bytes) -> Versioned | None: ...

    def version(self, key: bytes) -> int:
        """The version of what is there, `ABSENT` if nothing is; cheaper than to get it."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        """All keys that begin so, in order, from one moment."""

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        """If every checked key has its version (`ABSENT`: does not exist), all puts happen (None
        removes). Else none."""


class Committer(Protocol):
    """The one commit."""

    def commit(self, commit: Commit) -> list[Place]:
        """Where the outputs went; or `Fenced`, and nothing happened."""

    def commit_each(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """Several at the cost of one, each for itself: what was wrong with each, None if it is
        stored. Raises only if nothing is known of any."""


class Sign(NamedTuple):
    """What an observer sees of a member: whether its process lives, and the number of its last
    beat."""

    alive: bool
    beat: int
    age_s: float | None = None
    """How long ago that was, by the clock on the wall: to be shown, never to judge by."""


class Liveness(Protocol):
    """Signs of life, apart from the store, so that a slow disk never looks like death."""

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None:
        """Show a sign of life."""

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        """The last sign of a member, None if it never gave one."""

    def leave(self, group: str, member: str, incarnation: int) -> None:
        """Take the signs away: one's own, or those of a member that is gone."""


class KeptGroups(Protocol):
    """Groups that are in the books of the backend itself, whoever made them."""

    def checkpoints(self, name: str | None = None) -> dict[str, dict[tuple[StreamInfo, int], int]]:
        """For each group, or the one that is named, the next offset to read in each shard it has
        committed in: the end where nothing but a gap is left. `UnknownGroup` if there is none of
        that name."""


class Copying(Protocol):
    """Records of another log on their way into one shard: the position in the source is kept with
    them, in one step. Used by one thread."""

    at: int | None
    """Where in the source it has come to; None if nothing was copied yet."""

    def append(self, batch: Batch, next: int) -> None:
        """The records, and the position behind them: behind gaps too, so there may be no record.

        Together they may hold `COMMIT_BYTES_MAX`; `BadRecord` names one that is too large. `Fenced`
        if another copied from the same source meanwhile: nothing was written. After any other
        error it may have been: a new one tells by its ``at``."""

    def close(self) -> None:
        """What was appended can be read by everybody when this returns."""


class Backend(Streams, Records, Store, Committer, Protocol):
    """What a hub stands on."""

    capabilities: Capabilities

    @property
    def identity(self) -> str:
        """What no other log is called, and this one for as long as its records are there: with the
        id of a stream it names a source for ever."""

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> Copying:
        """Go on with copying into this shard what comes from ``origin``, a stable name of the
        source. Whoever did before is fenced, at the latest by the first append."""

    @property
    def liveness(self) -> Liveness:
        """Signs of life of the members of its groups."""

    @property
    def kept_groups(self) -> KeptGroups | None:
        """None where groups live in the store."""

    def describe(self) -> dict[str, Any]:
        """Facts for people: where it is, how large, who uses it."""

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        """For each stream facts that people should know of; none where all is as usual."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Begin:
    """Work on a shard may begin, under this grant."""

    grant: Grant
    checkpoint: int | None
    """Where the group has come to; None if it has not committed anything there."""


@dataclass(frozen=True, slots=True)
class End:
    """Work under this grant shall end: finish, commit, release."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Lost:
    """Work under this grant must stop: another may have it already, nothing can be committed."""

    grant: Grant


GrantNews = Begin | End | Lost


class Lease:
    """Until when, on the monotonic clock, work under the grants of a membership may go on."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s


class Membership(Protocol):
    """A place among those who share the shards of some streams: who uses it sees grants and their
    ends, nothing else. Called by one thread at a time; `lease`, `commit` and `move`
    by any."""

    lease: Lease

    def join(self) -> None:
        """Take a place; or the reason why not, as an error."""

    def changes(self) -> list[GrantNews]:
        """What has changed since the last call. To be called often: this is what keeps the place.
        `Replaced` or `UnknownGroup` if it is lost for good."""

    def release(self, grants: Sequence[Grant]) -> None:
        """Nothing is worked on under these grants any more."""

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """What was wrong with each: None if it is stored, `Fenced` if it never will be. Where
        that could not be told at first, it was looked up."""

    def move(self, grant: Grant, to: int) -> None:
        """Move the checkpoint, stored on return: the grant is over, a new one comes."""

    def fence(self, grant: Grant) -> None:
        """Whoever works under this grant shall not commit any more: it is over, a new one comes.
        Nothing happens if it is over already; `Retryable` if it cannot be told now."""

    def stop(self, grant: Grant) -> None:
        """The shard is given to nobody until it is resumed: the grant is over. As `fence`."""

    def finished(self, grant: Grant) -> None:
        """The shard is closed, and committed to its end."""

    def leave(self) -> None:
        """Give the place up: what was granted is free at once."""


class Codec(Protocol):
    """A value to data and back. Instances are shared between threads."""

    name: str

    def encode(self, value: Any) -> bytes:
        """The data, or `BadValue`."""

    def decode(self, data: bytes) -> Any:
        """The value, or `BadValue`."""

    # A codec may also have ``encode_many(values) -> list`` and ``decode_many(data) -> list``, where
    # None stays None. They are then asked for a whole batch, and one by one only if that raises
    # `BadValue`.


class Envelope(Protocol):
    """A whole record to another system's bytes and back; apart from `Codec`, which sees the value
    only."""

    name: str

    def seal(self, record: Record) -> bytes: ...

    def unseal(self, data: bytes) -> Batch:
        """A batch of that one record."""
