"""What a handler appends: gathered column by column, until it leaves with the commit of its slice.

For each output it is remembered which row of the input it was made from. So the outputs of one
attempt can be taken back, and time and trace be carried on, without anything done per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any, NamedTuple, TypedDict, Unpack

from headrace.core.errors import BadOutput
from headrace.core.model import StreamInfo
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Append, Codec
from headrace.core.quantities import Instant, shown_size
from headrace.core.records.batch import COMMIT_BYTES_MAX, ROW_OVERHEAD, Batch, Row, timed_batch
from headrace.streams.encoding import Headers, Key, key_bytes, row_of
from headrace.streams.sharding import Sharding

FULL_BYTES = COMMIT_BYTES_MAX // 2
"""With so much gathered, the slice ends behind the record in hand."""
MOST_BYTES = COMMIT_BYTES_MAX - 256 * 1024
"""More than this one record cannot have made: state and story go into the same commit."""
FEW = 16
ORIGIN = "headrace-origin"
"""The header that tells from which record of a source an output was made, where it is asked for."""

_PLAIN = (None, None, None, None)


class Target(NamedTuple):
    """A stream that a computation may append to."""

    info: StreamInfo
    codec: Codec
    shares: Sharding


class More(TypedDict, total=False):
    """What an output may have beside value and key. One dictionary, empty for most, is quicker than
    a default for each of them."""

    headers: Headers
    timestamp: Instant | None
    sequence: int | None
    flags: int
    trace: bytes | str | None
    shard: int | None


class Provenance(NamedTuple):
    """What one handled batch tells about the outputs made from it."""

    timestamps: Callable[[int], int]
    sequences: Callable[[int], int] | None = None
    traces: Callable[[int], bytes | None] | None = None
    origins: Callable[[int], bytes] | None = None
    """From which record of a source each row comes, if that is to be told."""
    time: int | None = None
    """The timestamp of all of them, if they have the same."""


class _Gathered:
    """The outputs for one stream."""

    __slots__ = ("data", "encode", "extra", "keys", "left", "rows", "target", "times")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.encode = target.codec.encode
        self.keys: list[bytes | None] = []
        self.data: list[bytes | None] = []
        self.rows: list[int] = []
        """The input row of each, of the batch being handled; then, sealed, no more."""
        self.left: list[int] = []
        """Of the last of them instead: how many rows came behind it."""
        self.times: list[int] = []
        """The timestamp of each that is sealed."""
        self.extra: dict[int, tuple[Row, int | None, bool]] = {}
        """Those that have more than key and data: with the shard asked for, and whether their
        timestamp was given."""

    def noted(
        self,
        value: Any,
        key: Key,
        *,
        headers: Headers = (),
        timestamp: Instant | None = None,
        sequence: int | None = None,
        flags: int = 0,
        trace: bytes | str | None = None,
        shard: int | None = None,
    ) -> tuple[bytes | None, bytes | None]:
        """Key and data of the one that comes next; what else it has is noted."""
        if headers or flags or (timestamp, sequence, trace, shard) != _PLAIN:
            row = row_of(
                self.target.codec, value, key, headers,
                0 if timestamp is None else timestamp, sequence or 0, flags, trace,
            )  # fmt: skip
            if shard is not None:
                self.target.shares.shard_for(None, shard)
            self.extra[len(self.keys)] = row, shard, timestamp is not None
            return row.key, row.data
        return key_bytes(key), None if value is None else self.encode(value)

    def nbytes(self, left: int | None = None) -> int:
        """Of all, or of those that were made from the row in hand, with so many left behind it."""
        first = len(self.keys)
        if left is None:
            first = 0
        else:
            of_row = len(self.left)
            while of_row and self.left[of_row - 1] == left:
                of_row, first = of_row - 1, first - 1
        return sum(
            ROW_OVERHEAD + len(self.keys[at] or b"") + len(self.data[at] or b"") + self.beside(at)
            for at in range(first, len(self.keys))
        )

    def beside(self, at: int) -> int:
        """What one has beside key and data."""
        if at not in self.extra:
            return 0
        row = self.extra[at][0]
        return row.nbytes - len(row.key or b"") - len(row.data or b"")

    def cut(self, count: int) -> None:
        del self.keys[count:], self.data[count:], self.times[count:], self.left[:]
        del self.rows[max(count - len(self.times), 0) :]
        for at in [at for at in self.extra if at >= count]:
            del self.extra[at]


def _none_left() -> int:
    return 0


class Overflow(BaseException):
    """Goes through a handler whose record does not fit into one commit with those before it: it is
    handled again, as the first of the next slice. No `Exception`, for handlers catch those."""


class Outputs:
    """``out`` of a handler."""

    def __init__(self, computation: str, targets: Mapping[str, Target]) -> None:
        self._computation = computation
        self._thread = get_ident()
        self._gathered = {name: _Gathered(target) for name, target in targets.items()}
        self._left: Callable[[], int] = _none_left
        self._last = 0
        self._on_full: Callable[[], None] = lambda: None
        self.nbytes = 0
        self.overflows = False
        """The record in hand does not fit into one commit with those before it."""

    def append(self, stream: str, value: Any, key: Key = None, **more: Unpack[More]) -> None:
        """Append to one of the computation's outputs, when the slice is committed.

        ``more`` is what a record has beside value and key: headers, timestamp, sequence, flags,
        trace; and shard, if the key shall not choose it. Without a timestamp it gets that of the
        record in hand; its trace goes on too."""
        gathered = self._gathered.get(stream)
        if gathered is None or get_ident() != self._thread:
            raise self._refusal(stream)
        if more:
            _check_more(more)
            found, data = gathered.noted(value, key, **more)
            self.nbytes += gathered.beside(len(gathered.keys))
        else:
            data = None if value is None else gathered.encode(value)
            found = key.encode() if type(key) is str and key.isascii() else key_bytes(key)
        gathered.keys.append(found)
        gathered.data.append(data)
        gathered.left.append(self._left())
        self.nbytes = nbytes = self.nbytes + ROW_OVERHEAD + len(data or b"") + len(found or b"")
        if nbytes > FULL_BYTES:
            self._full()

    def _full(self) -> None:
        self._on_full()
        if self.nbytes <= MOST_BYTES:
            return
        left = self._left()
        if sum(gathered.nbytes(left) for gathered in self._gathered.values()) > MOST_BYTES:
            raise BadOutput(
                f"{self._computation}: one record made more than {shown_size(MOST_BYTES)} of "
                "outputs, and they leave in one commit: append references to large data instead"
            )
        self.overflows = True
        raise Overflow

    def _refusal(self, stream: object) -> BadOutput:
        if stream in self._gathered:
            return BadOutput(
                f"{self._computation} appends to {stream!r} from another thread: nobody could tell "
                "to which record that belongs; append what threads have made when they are done"
            )
        known = ", ".join(self._gathered) or "nothing"
        return BadOutput(
            f"{self._computation} appends to {stream!r}, which is not among its outputs: {known}"
            f"{did_you_mean(stream, self._gathered)}"
        )

    # For the lane

    @property
    def count(self) -> int:
        return sum(len(gathered.keys) for gathered in self._gathered.values())

    def follow(self, left: Callable[[], int], last: int, on_full: Callable[[], None]) -> None:
        """How to tell how many rows are left before the last one, and what to do when enough is
        gathered."""
        self._settle()
        self._left = left
        self._last = last
        self._on_full = on_full

    def _settle(self) -> None:
        """Which row is in hand is worked out later, for all at once, and mostly never."""
        for gathered in self._gathered.values():
            gathered.rows += [self._last - left for left in gathered.left]
            gathered.left.clear()

    def take_back(self, row: int) -> None:
        """What was made from this row of the batch in hand, and from those behind it."""
        self._settle()
        for gathered in self._gathered.values():
            sealed = len(gathered.times)
            kept = len(gathered.rows)
            while kept and gathered.rows[kept - 1] >= row:
                kept -= 1
            gathered.cut(sealed + kept)
        self.nbytes = sum(gathered.nbytes() for gathered in self._gathered.values())
        self.overflows = False

    def seal(self, mark: Provenance) -> None:
        """The batch in hand is done: what was made from it gets its time."""
        carries_on = mark.traces or mark.origins or mark.sequences
        if carries_on or mark.time is None:
            self._settle()
        for gathered in self._gathered.values():
            first, count = len(gathered.times), len(gathered.keys)
            if first == count:
                continue
            if mark.time is None:
                gathered.times += map(mark.timestamps, gathered.rows)
            else:
                gathered.times += [mark.time] * (count - first)
            if carries_on:
                _carry_on(gathered, first, mark)
            gathered.rows.clear()
            gathered.left.clear()

    def appends(self) -> list[Append]:
        """All of it, by stream and shard, in the order in which it was made."""
        return [part for gathered in self._gathered.values() for part in _appends(gathered)]

    def clear(self) -> None:
        for gathered in self._gathered.values():
            gathered.cut(0)
        self.nbytes = 0
        self.overflows = False


def _check_more(more: More) -> None:
    unknown = more.keys() - More.__annotations__.keys()
    if unknown:
        known = ", ".join(More.__annotations__)
        raise TypeError(
            f"out.append takes no {', '.join(unknown)}: value, key, {known}"
            f"{did_you_mean(min(unknown), More.__annotations__)}"
        )


def _carry_on(gathered: _Gathered, first: int, mark: Provenance) -> None:
    """Sequence, trace and origin of the input, where the handler gave none."""
    before, nth = -1, 0
    for at, row in enumerate(gathered.rows, first):
        nth, before = (nth + 1 if row == before else 0), row
        found = gathered.extra.get(at)
        plain = Row(gathered.keys[at], gathered.data[at], 0)
        made, shard, timed = (plain, None, False) if found is None else found
        if mark.traces is not None and made.trace is None:
            made = made._replace(trace=mark.traces(row))
        if mark.origins is not None:
            origin = (ORIGIN, b"%s/%d" % (mark.origins(row), nth))
            made = made._replace(headers=[*made.headers, origin])
        if mark.sequences is not None and not timed and not made.sequence:
            made = made._replace(sequence=mark.sequences(row))
        gathered.extra[at] = made, shard, timed


def _appends(gathered: _Gathered) -> Iterator[Append]:
    info, _, shares = gathered.target
    keys, count = gathered.keys, len(gathered.keys)
    if not count:
        return
    if gathered.extra or count <= FEW:
        rows: dict[int, list[Row]] = {}
        for at in range(count):
            row, shard, timed = gathered.extra.get(at, (None, None, False))
            if row is None:
                row = Row(keys[at], gathered.data[at], gathered.times[at])
            elif not timed:
                row = row._replace(timestamp=gathered.times[at])
            target = shares.shard_for(row.key, shard)
            rows.setdefault(target, []).append(row.checked())
        for target, made in rows.items():
            yield Append(info, target, Batch(rows=made))
        return
    batch = timed_batch(keys, gathered.data, gathered.times)
    for share in shares.of(batch, keys):
        yield from share.appends
