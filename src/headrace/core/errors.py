"""Every error this package raises, in one tree.

HeadraceError
├── Invalid                   the caller gave something that can never work
│   ├── BadName               a stream or group name outside the grammar
│   ├── BadQuantity           a duration, size or time that cannot be read
│   ├── BadRecordId           text that is not stream:shard+offset
│   ├── BadRecord             a record field out of range, or a record too large
│   ├── BadValue              a value its codec cannot encode, or data it cannot decode
│   ├── BadSetting            a setting outside its limits
│   ├── BadAllocation         an allocator's result that cannot be carried out
│   ├── BadTopology           computations that cannot be wired like that
│   ├── BadOutput             a handler's output that cannot be appended
│   ├── UnknownAllocator      no allocator of that name is shipped
│   ├── UnknownCodec          no codec of that name is registered
│   └── BadHub                text that names no kind of hub
├── UnknownStream             no stream of that name in this hub
├── UnknownShard              the stream has no such shard
├── StreamExists              the name is taken by a stream that differs
├── ShardClosed               a closed shard takes no more records
├── OffsetOutOfRange          before the first kept record, or beyond the end
├── RecordTooLarge            a stored record is larger than the reader allows
├── SequenceForgotten         a producer_seq too old to tell a retry from a new append
├── Unsupported               this backend cannot do that; it says so in its capabilities
├── Fenced                    the grant behind a commit is no longer valid
│   └── Replaced              a newer member of the same name has taken the place
├── UnknownGroup              no group of that name in this hub
├── GroupInUse                a group with living members is changed by force only
├── NoRetry                   raised by a handler: trying this record again is of no use
├── Rewind                    raised by a handler: go back to an offset and read on from there
├── LaneLost                  the dispatcher does not know this lane any more
├── Retryable                 the same call may succeed later
│   ├── Contended             others kept changing a group first
│   ├── DiskFull              no room to write; nothing of the call was written
│   ├── NotDurable            the disk refused to make the write durable
│   ├── Unreachable           no broker answers
│   └── UnknownOutcome        no answer in time; written or not, a retry by producer_seq is safe
├── Damaged                   stored bytes are not what was written
│   ├── BadBatch              one batch; others stay readable
│   ├── BadStored             one small value
│   └── TruncatedStore        the data file is shorter than its own index says
├── Refused                   the hub will not be opened or used like this
│   ├── NoHub                 there is no hub at that place
│   ├── AccessRefused         credentials or a certificate were refused, or a right is missing
│   ├── ForeignStore          the files there are not a hub's
│   ├── NewerFormat           written by a newer Headrace
│   ├── NetworkFilesystem     memory-mapped files are not safe there
│   ├── ForkedHandle          opened in the parent of this process
│   ├── StoreGone             the directory was deleted or replaced while open
│   └── HubBusy               no free reader slot, or no address space for the map
└── Closed                    the hub or appender was closed
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.core.nearest import did_you_mean


class HeadraceError(Exception):
    """The root of the tree. Catch this to catch every error that Headrace raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By its message and facts: the arguments of `__init__` are gone when an error goes to
        # another process.
        return _again, (type(self), self.args, vars(self))


def _again(
    kind: type[HeadraceError], args: tuple[Any, ...], facts: dict[str, Any]
) -> HeadraceError:
    error = kind.__new__(kind, *args)
    vars(error).update(facts)
    return error


class Invalid(HeadraceError, ValueError):
    """The caller gave an argument that can never work. The message says what would."""


class BadName(Invalid):
    def __init__(self, name: object, why: str) -> None:
        super().__init__(f"bad name {name!r}: {why}")
        self.name = name


class BadQuantity(Invalid):
    pass


class BadRecordId(Invalid):
    pass


class BadRecord(Invalid):
    pass


class BadValue(Invalid):
    pass


class BadSetting(Invalid):
    pass


class BadAllocation(Invalid):
    def __init__(self, allocator: str, why: str) -> None:
        super().__init__(f"allocator {allocator}: {why}")
        self.allocator = allocator


class BadTopology(Invalid):
    pass


class BadOutput(Invalid):
    pass


class UnknownAllocator(Invalid):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"unknown allocator {name!r}: shipped are {', '.join(known)}; give your own as "
            f"Allocator(name, deal=function){did_you_mean(name, known)}"
        )
        self.name = name


class UnknownCodec(Invalid):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"unknown codec {name!r}: known are {', '.join(known)}; "
            "add your own with register_codec or the entry point headrace.codecs"
            f"{did_you_mean(name, known)}"
        )
        self.name = name


class BadHub(Invalid):
    pass


class UnknownStream(HeadraceError, LookupError):
    """``known`` are the streams of the hub, where they are at hand."""

    def __init__(self, name: str, *, anew: bool = False, known: Iterable[str] = ()) -> None:
        super().__init__(
            f"stream {name!r} was deleted and created anew: open it again with hub.stream({name!r})"
            if anew
            else f"no stream {name!r} in this hub: headrace stream list shows which there are, "
            f"create_stream or headrace stream create {name} makes it{did_you_mean(name, known)}"
        )
        self.name = name


class UnknownShard(HeadraceError, LookupError):
    def __init__(self, stream: str, shard: object, count: int) -> None:
        super().__init__(f"stream {stream!r} has no shard {shard!r}: it has 0 to {count - 1}")
        self.stream = stream
        self.shard = shard


class StreamExists(HeadraceError):
    @classmethod
    def named(cls, name: str) -> StreamExists:
        return cls(
            f"stream {name!r} exists already: take it as it is with exist_ok=True (--exist-ok), or "
            "choose another name"
        )


class ShardClosed(HeadraceError):
    def __init__(self, stream: str, shard: int) -> None:
        super().__init__(f"shard {shard} of {stream!r} is closed and takes no more records")
        self.stream = stream
        self.shard = shard


class OffsetOutOfRange(HeadraceError, LookupError):
    """It has the bounds of the shard, so that the caller can decide where to go on."""

    def __init__(self, stream: str, shard: int, offset: int, start: int, end: int) -> None:
        where = (
            f"before the first kept offset {start}"
            if offset < start
            else f"beyond the end, the next offset is {end}"
        )
        super().__init__(f"{stream}:{shard}+{offset} is {where}; start at {start} up to {end}")
        self.stream = stream
        self.shard = shard
        self.offset = offset
        self.start = start
        self.end = end


class RecordTooLarge(HeadraceError):
    """It has the offset of the record, so that the caller can read on behind it."""

    def __init__(
        self,
        stream: str,
        shard: int,
        offset: int,
        nbytes: int,
        limit: int,
        setting: str = "fetch_max",
    ) -> None:
        super().__init__(
            f"{stream}:{shard}+{offset} holds {nbytes} bytes, more than {setting} {limit}: "
            f"raise {setting}, or read on from offset {offset + 1}"
        )
        self.stream = stream
        self.shard = shard
        self.offset = offset
        self.nbytes = nbytes
        self.limit = limit


class SequenceForgotten(HeadraceError):
    def __init__(self, producer: str, producer_seq: int, last: int, remembered: int) -> None:
        super().__init__(
            f"producer {producer!r} is at producer_seq {last}: {producer_seq} is lower and not "
            f"among the last {remembered} remembered; use numbers that grow"
        )
        self.producer = producer
        self.producer_seq = producer_seq
        self.last = last


class Unsupported(HeadraceError):
    def __init__(self, backend: str, what: str, why: str) -> None:
        super().__init__(f"the {backend} backend does not {what}: {why}")
        self.backend = backend


class Fenced(HeadraceError):
    """With ``copying`` it is a copy into the shard that is fenced, by another one, and ``group``
    names the source of both."""

    def __init__(
        self,
        group: str,
        stream: str,
        shard: int,
        outcome: str = "nothing was written",
        *,
        copying: bool = False,
    ) -> None:
        super().__init__(
            f"another copy into {stream}:{shard} has taken over; {outcome}"
            if copying
            else f"the grant of group {group!r} for {stream}:{shard} is no longer valid; {outcome}"
        )
        self.group = group
        self.stream = stream
        self.shard = shard


class Replaced(Fenced):
    def __init__(self, group: str, member: str) -> None:
        HeadraceError.__init__(
            self,
            f"another consumer joined group {group!r} under the name {member!r} and took over: "
            "give each its own name, or none",
        )
        self.group = group
        self.member = member


class UnknownGroup(HeadraceError, LookupError):
    """``known`` are the groups of the hub, where they are at hand."""

    def __init__(
        self,
        name: str,
        *,
        deleted: bool = False,
        look: str = "headrace group list",
        known: Iterable[str] = (),
    ) -> None:
        super().__init__(
            f"group {name!r} was deleted while this consumer was in it"
            if deleted
            else f"no group {name!r} in this hub: the first consumer makes one; see {look}"
            f"{did_you_mean(name, known)}"
        )
        self.name = name


class GroupInUse(HeadraceError):
    def __init__(self, group: str, members: list[str]) -> None:
        shown = ", ".join(members[:5]) + (f" and {len(members) - 5} more" if members[5:] else "")
        super().__init__(
            f"group {group!r} has living members: {shown}; stop them first, or use --force "
            "(force=True), which fences them"
        )
        self.group = group
        self.members = members


class NoRetry(HeadraceError):
    """Raise this in a handler for a record that further attempts would not help."""


class Rewind(HeadraceError):
    """Raise this in a handler to go back: what was done from that offset on is dropped, and reading
    goes on there. An offset before the checkpoint moves the checkpoint back."""

    def __init__(self, offset: int) -> None:
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63:
            raise BadSetting(f"Rewind({offset!r}): an offset, as in Rewind(record.offset)")
        super().__init__(f"back to offset {offset}")
        self.offset = offset


class LaneLost(HeadraceError):
    pass


class Retryable(HeadraceError):
    """The same call may succeed later."""


class Contended(Retryable):
    def __init__(self, group: str, attempts: int) -> None:
        super().__init__(
            f"group {group!r} was changed by others {attempts} times in a row; try again"
        )
        self.group = group


class DiskFull(Retryable):
    pass


class NotDurable(Retryable):
    pass


class Unreachable(Retryable):
    pass


class UnknownOutcome(Retryable):
    """``withdrawn`` tells whether the write was taken back before any transaction saw it."""

    def __init__(self, message: str, *, withdrawn: bool) -> None:
        super().__init__(message)
        self.withdrawn = withdrawn


class Damaged(HeadraceError):
    """Stored bytes are not what was written. None of them are delivered."""


class BadBatch(Damaged):
    def __init__(self, stream: str, shard: int, start: int, end: int, why: str) -> None:
        super().__init__(
            f"damaged batch {stream}:{shard}, offsets {start} to {end - 1}: {why}; "
            f"read on from offset {end}, restore the rest from a copy"
        )
        self.stream = stream
        self.shard = shard
        self.start = start
        self.end = end


class BadStored(Damaged):
    pass


class TruncatedStore(Damaged):
    pass


class Refused(HeadraceError):
    """The hub cannot be opened or used like this."""


class NoHub(Refused):
    pass


class AccessRefused(Refused):
    pass


class ForeignStore(Refused):
    pass


class NewerFormat(Refused):
    pass


class NetworkFilesystem(Refused):
    pass


class ForkedHandle(Refused):
    pass


class StoreGone(Refused):
    pass


class HubBusy(Refused):
    pass


class Closed(HeadraceError):
    pass
