"""The seams: what a log, a home of groups and a codec must offer to the rooms above.

A hub stands on a `Log`, where its records live, and a `GroupHome`, where its groups live. The rooms
above speak in streams, shards, slices and grants. What a backend cannot do it publishes as a
missing capability, asked for at start. How each port is meant on LMDB and on Kafka:
docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from headrace.core.capabilities import Capabilities
from headrace.core.errors import BadSetting, HeadraceError
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.model import Bounds, Slice, StreamInfo
from headrace.core.records.batch import Batch


class StreamSpec(NamedTuple):
    """A stream to be made."""

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
    """Whether the offset of each record is wanted, not only where the batch begins and ends."""


class Producer(NamedTuple):
    """The name of a producer and the number of its append. The same pair again is the same
    append."""

    name: str
    seq: int
    after: int | None = None
    """Unless None, the number that the producer's last append must have had, `NOTHING_BEFORE` for
    none. Otherwise the append is `Fenced`, and so is a repetition."""


NOTHING_BEFORE = -1
"""The number before the first append of a producer."""


class Place(NamedTuple):
    """Where an appended batch went: the records follow each other from ``base`` on, unless an end
    is given."""

    shard: int
    base: int
    end: int | None = None
    """One behind the last record, where records of other producers lie between."""
    offsets: Sequence[int] | None = None
    """The offset of each record, if `Append.each` asked for them and they do not follow."""

    def behind(self, count: int) -> int:
        """One behind the last of ``count`` records."""
        return self.base + count if self.end is None else self.end

    def of(self, row: int) -> int:
        """The offset of a row of the batch."""
        return self.base + row if self.offsets is None else self.offsets[row]


class ReadResult(NamedTuple):
    """What a read found, and where to read next. ``next`` lies behind gaps too, so it is not
    always the last offset plus one."""

    batches: Sequence[Batch]
    next: int


class Versioned(NamedTuple):
    """A small value. Its version changes with every write, and no version comes again."""

    value: bytes
    version: int


ABSENT = 0
"""The version to check for when a key must not exist yet."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to work on one shard for a group. Only the home of the group reads the token: an
    epoch, or the metadata of a member."""

    group: str
    stream: StreamInfo
    shard: int
    token: bytes
    epoch_shown: int | None = None
    """The epoch of the grant, to be shown to people; None where the token holds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one slice produced, and its checkpoint: all of it becomes visible, or nothing."""

    grant: Grant
    done: Slice
    """The slice: the checkpoint becomes its end."""
    outputs: Sequence[Append] = ()
    state: Mapping[bytes, bytes | None] = field(default_factory=dict)
    """Changed entries of the shard's state; None removes one."""
    dead_letters: Sequence[Append] = ()
    attempts: bytes | None = None
    """Attempts at the next record; empty forgets the stored ones, None leaves them."""
    story: bytes = b""
    """What happened, told by the lane; the backend adds where the outputs went."""

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
        """Delete a stream, or `UnknownStream`. No process sees it any more on return; its space is
        freed afterwards."""


class Records(Protocol):
    """Records of streams."""

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        """Append batches, each in order; all are durable on return. They become visible together
        unless ``atomic_append`` is missing.

        Together they may hold `COMMIT_BYTES_MAX`. An append whose producer number was seen before
        appends nothing, and returns the places of the first time."""

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
        """Records with ``start <= offset < end`` from the first on, within the limits, and at least
        one if there is any. Does not wait for records that are still to come.

        `OffsetOutOfRange` before the first kept offset or beyond the end; `BadBatch` for a damaged
        batch."""

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds: ...

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        """The bounds of several shards, at little more than the cost of one."""

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        """The ends of several shards, at little more than the cost of one."""

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        """The first offset whose timestamp is not earlier; the end if all records are earlier."""

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        """Drop the records before an offset, which must lie within the bounds."""

    def changes(self) -> int:
        """A number that differs after any process has written anything."""

    def wait(self, seen: int, timeout_s: float) -> int:
        """`changes()` as soon as it differs from ``seen``, or after the time; at next to no CPU."""


class Store(Protocol):
    """Small values under short keys, written by checked transactions."""

    def get(self, key: bytes) -> Versioned | None: ...

    def version(self, key: bytes) -> int:
        """The version under a key, `ABSENT` if there is none: cheaper than `get`."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        """All values whose keys begin with the prefix, in order, from one moment."""

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        """Write all puts (None removes a key) if every checked key has its version (`ABSENT`: the
        key does not exist); else write nothing. Whether the puts happened."""


class Committer(Protocol):
    """The one commit."""

    def commit(self, commit: Commit) -> list[Place]:
        """Where the outputs went; or `Fenced`, and nothing happened."""

    def commit_each(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """Store several commits at the cost of one, each for itself: the error of each, None if it
        is stored. Raises only if the outcome of none is known."""


class Sign(NamedTuple):
    """What an observer sees of a member: whether its process lives, and the number of its last
    beat."""

    alive: bool
    beat: int
    age_s: float | None = None
    """How long ago the beat was, by the clock on the wall: to be shown, never to judge by."""


class Liveness(Protocol):
    """Signs of life, apart from the store, so that a slow disk never looks like death."""

    def beat(self, group: str, member: str, incarnation: int, beat: int) -> None:
        """Give a sign of life. Must not wait for anything but its own small write."""

    def sign(self, group: str, member: str, incarnation: int) -> Sign | None:
        """The last sign of a member, None if it never gave one."""

    def leave(self, group: str, member: str, incarnation: int) -> None:
        """Remove the signs of a member: of this process, or of a member that is gone."""


class KeptGroups(Protocol):
    """Groups of another kind that the place of a log keeps by itself, as a Kafka cluster does."""

    def checkpoints(self, name: str | None = None) -> dict[str, dict[tuple[StreamInfo, int], int]]:
        """For each group, or the named one, the next offset to read in each shard that it has
        committed in: the end where nothing but a gap is left. `UnknownGroup` if no group has that
        name."""


class Copying(Protocol):
    """Copies records of another log into one shard. Records and their position in the source are
    stored in one step. Used by one thread."""

    at: int | None
    """The next position in the source; None if nothing was copied yet."""

    def append(self, batch: Batch, next: int) -> None:
        """Append records and the position behind them. The position may lie behind a gap, so there
        may be no record.

        A batch may hold `COMMIT_BYTES_MAX`; `BadRecord` names a record that is too large. `Fenced`
        if another copy from the same source was faster: nothing was written. After any other error
        the batch may have been written: a new copy tells by its ``at``."""

    def close(self) -> None:
        """End the copy. Every reader sees what was appended, on return."""


class Log(Streams, Records, Protocol):
    """Where the records of a hub live."""

    capabilities: Capabilities

    @property
    def identity(self) -> str:
        """The name of this log: no other log has it, and this log keeps it for as long as its
        records are there. With the id of a stream it names a source for ever."""

    @property
    def address(self) -> str | None:
        """What another process opens this log by; None if no other process can."""

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> Copying:
        """Go on with copying into this shard what comes from ``origin``, a stable name of the
        source. An earlier copy from there is fenced, at the latest by the first append."""

    def describe(self) -> dict[str, Any]:
        """Facts for people: where the log is, how large, who uses it."""

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        """For each stream the facts that people should know; none where all is as usual."""

    def close(self) -> None: ...


class GroupStore(Store, Committer, Protocol):
    """A store where our own groups can live: small values, signs of life, and commits."""

    capabilities: Capabilities

    @property
    def liveness(self) -> Liveness:
        """Signs of life of the members of its groups."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """What a hub stands on: a log, and where groups can live."""

    log: Log
    store: GroupStore | None = None
    """Where groups of ours live. Often the same object as the log: then one commit holds records
    and checkpoints."""
    kept_groups: KeptGroups | None = None

    @property
    def capabilities(self) -> Capabilities:
        elsewhere = self._store_elsewhere
        if elsewhere is None:
            return self.log.capabilities
        return self.log.capabilities.with_groups_in(elsewhere.capabilities)

    def close(self) -> None:
        self.log.close()
        elsewhere = self._store_elsewhere
        if elsewhere is not None:
            elsewhere.close()

    @property
    def _store_elsewhere(self) -> GroupStore | None:
        one_place: object = self.log
        return None if self.store is one_place else self.store


@dataclass(frozen=True, slots=True)
class Begin:
    """Work on a shard may begin, under this grant."""

    grant: Grant
    checkpoint: int | None
    """Where the group has come to; None if it has not committed anything there."""


@dataclass(frozen=True, slots=True)
class End:
    """Work under this grant shall end: finish the record in hand, commit, release."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Lost:
    """Work under this grant must stop: another member may hold the shard already, and nothing can
    be committed."""

    grant: Grant


GrantNews = Begin | End | Lost


class Lease:
    """Until when, on the monotonic clock, work under the grants of a membership may go on."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s


class Membership(Protocol):
    """A member of a group, seen from the code that works on its shards: grants, and their ends.
    Called by one thread at a time; `lease`, `commit` and `move` by any."""

    lease: Lease

    def join(self) -> None:
        """Join the group; an error tells why not."""

    def changes(self) -> list[GrantNews]:
        """The news of grants since the last call. To be called often: this keeps the membership.
        `Replaced` or `UnknownGroup` if the membership is lost for good."""

    def release(self, grants: Sequence[Grant]) -> None:
        """Give grants back: no work goes on under them."""

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        """Store commits: the error of each, None if it is stored, `Fenced` if it never will be. An
        outcome that could not be told at first was looked up."""

    def move(self, grant: Grant, to: int) -> None:
        """Move the checkpoint; stored on return. The grant is over, a new one comes."""

    def fence(self, grant: Grant) -> None:
        """End a grant, so that no lane can commit under it any more; a new one comes. Nothing
        happens if the grant is over already; `Retryable` if that cannot be told now."""

    def stop(self, grant: Grant) -> None:
        """Stop a shard: no member gets it until it is resumed. The grant is over, as in `fence`."""

    def finished(self, grant: Grant) -> None:
        """Tell the group that a closed shard is committed to its end."""

    def leave(self) -> None:
        """Leave the group: its shards are free at once."""


class StoredState(Protocol):
    """The committed state of one shard, by name."""

    def get(self, name: bytes) -> bytes | None: ...

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All names with their values, from one moment, in no order."""


class GroupHome(Protocol):
    """Where the groups of a hub live: memberships, commits, and what is stored of a group."""

    def membership(self, subscription: Subscription, settings: MemberSettings) -> Membership:
        """A membership that has not joined yet. `Unsupported` with the reason if groups of this
        home cannot do what the settings ask for."""

    def commit(self, commit: Commit) -> None:
        """Store a commit, once. `Fenced` if it was not stored, or if that cannot be told: then its
        grant must end before the work is done again."""

    def checkpoint(self, group: str, stream: StreamInfo, shard: int) -> int | None:
        """The next offset that the group reads in this shard; None if it has not committed."""

    def attempts(self, group: str, stream: StreamInfo, shard: int) -> bytes | None:
        """What the last commits stored about attempts at the next record."""

    def state(self, group: str, stream: StreamInfo, shard: int) -> StoredState:
        """The committed state of a computation for this shard."""


class Codec(Protocol):
    """Turns a value into data and back. Instances are shared between threads."""

    name: str

    def encode(self, value: Any) -> bytes:
        """The data, or `BadValue`."""

    def decode(self, data: bytes) -> Any:
        """The value, or `BadValue`."""

    # A codec may also have ``encode_many(values) -> list`` and ``decode_many(data) -> list``, where
    # None stays None. They are then asked for a whole batch, and one by one only if that raises
    # `BadValue`.
