"""The nouns: record, stream, shard, slice. They are frozen values without behaviour."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntFlag
from typing import Any, NamedTuple, Protocol

from headrace.core.errors import BadRecordId, BadSetting
from headrace.core.names import checked_name
from headrace.core.records.watermark import Watermark

Header = tuple[str, bytes | None]

HASH_END = 2**128
"""One more than the highest 128-bit hash of a key: the end of the last shard's range."""

SHARDS_MAX = 10_000
OFFSET_MAX = 2**63 - 1
ROUTINGS = ("md5-range", "java-hash", "murmur2")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RECORD_ID = re.compile(
    r"(?P<stream>[^:]+):(?P<shard>0|[1-9][0-9]{0,8})\+(?P<offset>0|[1-9][0-9]{0,18})", re.ASCII
)


class Flag(IntFlag):
    """A record's flags: the eight of Nuxeo, and a ninth for the bit of its watermark."""

    DEFAULT = 0x01
    COMMIT = 0x02
    POISON_PILL = 0x04
    EXTERNAL_VALUE = 0x08
    INTERNAL1 = 0x10
    INTERNAL2 = 0x20
    USER1 = 0x40
    USER2 = 0x80
    COMPLETED = 0x100


class RecordId(NamedTuple):
    """The id of a record: stream, shard and offset. Use it as an idempotency key for effects in
    other systems. It prints as ``shop/orders:2+17``."""

    stream: str
    shard: int
    offset: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.shard}+{self.offset}"

    @classmethod
    def parse(cls, text: str) -> RecordId:
        found = _RECORD_ID.fullmatch(text) if isinstance(text, str) else None
        if found is None or int(found["offset"]) > OFFSET_MAX:
            raise BadRecordId(
                f"bad record id {str(text)[:300]!r}: write stream:shard+offset, "
                "as in shop/orders:2+17"
            )
        return cls(checked_name(found["stream"]), int(found["shard"]), int(found["offset"]))


class ShardId(NamedTuple):
    """The id of a shard among those of all streams. It prints as ``shop/orders:2``."""

    stream: str
    index: int  # type: ignore[assignment]  # instead of tuple.index

    def __str__(self) -> str:
        return f"{self.stream}:{self.index}"


@dataclass(frozen=True, slots=True)
class Slice:
    """The unit of work: the records of one shard with ``start <= offset < end``."""

    stream: str
    shard: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= OFFSET_MAX:
            raise BadSetting(f"bad slice {self}: 0 <= start <= end must hold")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.stream}:{self.shard}+{self.start}..{self.end}"


class Bounds(NamedTuple):
    """``start`` is the first kept offset, ``end`` the offset that the next record will get."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One ordered part of a stream. It gets the keys with ``begin <= hash < end``."""

    index: int
    begin: int
    end: int
    open: bool = True
    """Whether the shard takes records. The end of a closed shard is final."""
    parents: tuple[int, ...] = ()
    """The closed shards that it was split or merged from."""

    @property
    def hash_range(self) -> tuple[str, str]:
        """The range as LogHub writes it: 32 hex digits each; the last shard ends at ``ff…ff``."""
        return f"{self.begin:032x}", f"{min(self.end, HASH_END - 1):032x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """What a stream is, without its records."""

    name: str
    id: int
    """Given at creation and never used again: a stream that is created anew has another id."""
    codec: str
    routing: str
    retention_s: float | None
    retention_bytes: int | None
    created_ms: int
    shards: tuple[Shard, ...]


def even_shards(count: int) -> tuple[Shard, ...]:
    """``count`` open shards that share the hash range evenly."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= SHARDS_MAX:
        raise BadSetting(f"bad number of shards {count!r}: 1 to {SHARDS_MAX}")
    ends = [HASH_END * i // count for i in range(count + 1)]
    return tuple(Shard(i, ends[i], ends[i + 1]) for i in range(count))


class Values(Protocol):
    """The decoded data of records, by their row in a batch."""

    def __getitem__(self, row: int, /) -> Any: ...


class Columns(Protocol):
    """Records of one shard, column by column. `headrace.core.records.batch.Batch` is one."""

    stream: str
    shard: int

    @property
    def values(self) -> Values: ...
    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def keys(self) -> Sequence[bytes | None]: ...
    @property
    def data(self) -> Sequence[bytes | None]: ...
    @property
    def timestamps(self) -> Sequence[int]: ...
    @property
    def sequences(self) -> Sequence[int]: ...
    @property
    def flags(self) -> Sequence[int]: ...
    @property
    def headers(self) -> Sequence[Sequence[Header]]: ...
    @property
    def traces(self) -> Sequence[bytes | None]: ...


class Record:
    """One record as it was read: a row of a batch. A field is looked up when it is asked for."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Columns, row: int) -> None:
        self._columns = columns
        self._row = row

    @property
    def value(self) -> Any:
        """The data, decoded once by the stream's codec; None for a tombstone."""
        return self._columns.values[self._row]

    @property
    def data(self) -> bytes | None:
        return self._columns.data[self._row]

    @property
    def key(self) -> str | None:
        """The key as text. Bytes that are not UTF-8 become surrogates, which encode to the same
        bytes again."""
        key = self._columns.keys[self._row]
        return None if key is None else key.decode("utf-8", "surrogateescape")

    @property
    def key_bytes(self) -> bytes | None:
        return self._columns.keys[self._row]

    @property
    def timestamp_ms(self) -> int:
        return self._columns.timestamps[self._row]

    @property
    def timestamp(self) -> datetime:
        return _EPOCH + timedelta(milliseconds=self.timestamp_ms)

    @property
    def sequence(self) -> int:
        return self._columns.sequences[self._row]

    @property
    def flags(self) -> Flag:
        return Flag(self._columns.flags[self._row])

    @property
    def watermark(self) -> Watermark:
        return Watermark(self.timestamp_ms, self.sequence, Flag.COMPLETED in self.flags)

    @property
    def headers(self) -> tuple[Header, ...]:
        """The headers in the order written. A name may occur more than once."""
        return tuple(self._columns.headers[self._row])

    @property
    def trace(self) -> bytes | None:
        return self._columns.traces[self._row]

    @property
    def stream(self) -> str:
        return self._columns.stream

    @property
    def shard(self) -> int:
        return self._columns.shard

    @property
    def offset(self) -> int:
        return self._columns.offsets[self._row]

    @property
    def id(self) -> RecordId:
        return RecordId(self._columns.stream, self._columns.shard, self.offset)

    def __repr__(self) -> str:
        data = self.data
        shown = data if data is None or len(data) <= 40 else data[:40] + b"..."
        return f"<Record {self.id} key={self.key_bytes!r} data={shown!r}>"
