"""``out`` of a handler: outputs are gathered column by column and leave with the commit of their
slice.

Each output remembers the row of the input that it was made from. That is enough to take back the
outputs of one attempt, and to pass time and trace on, without work per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import get_ident
from typing import Any, TypedDict, Unpack

from headrace.core.errors import BadOutput
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Append
from headrace.core.quantities import Instant, shown_size
from headrace.core.records.batch import Batch
from headrace.core.records.build import timed_batch
from headrace.core.records.row import COMMIT_BYTES_MAX, ROW_OVERHEAD, Row
from headrace.lanes.provenance import ORIGIN, Provenance
from headrace.streams.encoding import Headers, Key, key_bytes, row_of
from headrace.streams.sharding import Target

FULL_BYTES = COMMIT_BYTES_MAX // 2
"""A slice with more outputs than this ends behind the record in hand."""
OUTPUT_BYTES_MAX = COMMIT_BYTES_MAX - 256 * 1024
"""The outputs of one record must fit into this: state and story go into the same commit."""
ROWS_FEW = 16
"""Up to this many outputs become a batch row by row, which is quicker than by columns."""

_PLAIN = (None, None, None, None)


class RecordFields(TypedDict, total=False):
    """What an output may have beside value and key. One dictionary, empty for most outputs, is
    quicker than a default for each field."""

    headers: Headers
    timestamp: Instant | None
    sequence: int | None
    flags: int
    trace: bytes | str | None
    shard: int | None


class _Gathered:
    """The outputs for one stream. The first ones are *sealed*: the batch they were made from is
    done, and each of them has its timestamp."""

    __slots__ = ("data", "encode", "extra", "keys", "left", "rows", "target", "times")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.encode = target.codec.encode
        self.keys: list[bytes | None] = []
        self.data: list[bytes | None] = []
        self.rows: list[int] = []
        """The input row of each output that is not sealed, without the last ones."""
        self.left: list[int] = []
        """For those last ones: how many rows came behind the input row. `Outputs` turns these
        numbers into rows when it needs them, which is rare."""
        self.times: list[int] = []
        """The timestamp of each sealed output."""
        self.extra: dict[int, tuple[Row, int | None, bool]] = {}
        """By position, the outputs that have more than key and data: the whole row, the shard that
        the handler chose, and whether the handler gave a timestamp."""

    def note_fields(
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
        """Key and data of the next output. Its other fields go into `extra`."""
        if headers or flags or (timestamp, sequence, trace, shard) != _PLAIN:
            row = row_of(
                self.target.codec, value, key, headers,
                0 if timestamp is None else timestamp, sequence or 0, flags, trace,
            )  # fmt: skip
            if shard is not None:
                self.target.sharding.shard_for(None, shard)
            self.extra[len(self.keys)] = row, shard, timestamp is not None
            return row.key, row.data
        return key_bytes(key), None if value is None else self.encode(value)

    def nbytes(self, left: int | None = None) -> int:
        """The size of all outputs; or of those made from the row in hand, which has ``left`` rows
        behind it."""
        first = len(self.keys)
        if left is None:
            first = 0
        else:
            of_row = len(self.left)
            while of_row and self.left[of_row - 1] == left:
                of_row, first = of_row - 1, first - 1
        return sum(
            ROW_OVERHEAD
            + len(self.keys[at] or b"")
            + len(self.data[at] or b"")
            + self.extra_bytes(at)
            for at in range(first, len(self.keys))
        )

    def extra_bytes(self, at: int) -> int:
        """The size of what an output has beside key and data."""
        if at not in self.extra:
            return 0
        row = self.extra[at][0]
        return row.nbytes - len(row.key or b"") - len(row.data or b"")

    def cut(self, count: int) -> None:
        """Keep the first ``count`` outputs."""
        del self.keys[count:], self.data[count:], self.times[count:], self.left[:]
        del self.rows[max(count - len(self.times), 0) :]
        for at in [at for at in self.extra if at >= count]:
            del self.extra[at]


def _none_left() -> int:
    return 0


class Overflow(BaseException):
    """Raised through a handler whose record does not fit into one commit with the records before
    it: the record is handled again, as the first of the next slice. It is no `Exception`, because
    handlers catch those."""


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
        """The record in hand does not fit into one commit with the records before it."""

    def append(
        self, stream: str, value: Any, key: Key = None, **fields: Unpack[RecordFields]
    ) -> None:
        """Append to one of the computation's outputs, when the slice is committed.

        ``fields`` is what a record has beside value and key: headers, timestamp, sequence, flags,
        trace; and shard, if the key shall not choose the shard. An output without a timestamp gets
        the timestamp of the record in hand; an output without a trace continues that record's
        trace."""
        gathered = self._gathered.get(stream)
        if gathered is None or get_ident() != self._thread:
            raise self._refusal(stream)
        if fields:
            _check_fields(fields)
            found, data = gathered.note_fields(value, key, **fields)
            self.nbytes += gathered.extra_bytes(len(gathered.keys))
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
        if self.nbytes <= OUTPUT_BYTES_MAX:
            return
        left = self._left()
        if sum(gathered.nbytes(left) for gathered in self._gathered.values()) > OUTPUT_BYTES_MAX:
            raise BadOutput(
                f"{self._computation}: one record made more than {shown_size(OUTPUT_BYTES_MAX)} of "
                "outputs, and they leave in one commit: append references to large data instead"
            )
        self.overflows = True
        raise Overflow

    def _refusal(self, stream: object) -> BadOutput:
        if stream in self._gathered:
            return BadOutput(
                f"{self._computation} appends to {stream!r} from another thread, so its record is "
                "not known; let threads return what they make, and append it when they are done"
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
        """Outputs belong to the record in hand from now on: ``left`` counts the rows behind it, of
        which ``last`` is the last. ``on_full`` is called when enough is gathered."""
        self._settle()
        self._left = left
        self._last = last
        self._on_full = on_full

    def _settle(self) -> None:
        """Turn counts of rows left into rows: for many outputs at once, and mostly never."""
        for gathered in self._gathered.values():
            gathered.rows += [self._last - left for left in gathered.left]
            gathered.left.clear()

    def take_back(self, row: int) -> None:
        """Drop the outputs made from this row of the batch in hand and from the rows behind it."""
        self._settle()
        for gathered in self._gathered.values():
            sealed = len(gathered.times)
            kept = len(gathered.rows)
            while kept and gathered.rows[kept - 1] >= row:
                kept -= 1
            gathered.cut(sealed + kept)
        self.nbytes = sum(gathered.nbytes() for gathered in self._gathered.values())
        self.overflows = False

    def seal(self, provenance: Provenance) -> None:
        """The batch in hand is done: the outputs made from it get their timestamps."""
        inherits = provenance.traces or provenance.origins or provenance.sequences
        if inherits or provenance.time is None:
            self._settle()
        for gathered in self._gathered.values():
            first, count = len(gathered.times), len(gathered.keys)
            if first == count:
                continue
            if provenance.time is None:
                gathered.times += map(provenance.timestamps, gathered.rows)
            else:
                gathered.times += [provenance.time] * (count - first)
            if inherits:
                _inherit(gathered, first, provenance)
            gathered.rows.clear()
            gathered.left.clear()

    def appends(self) -> list[Append]:
        """All outputs, by stream and shard, in the order in which they were made."""
        return [part for gathered in self._gathered.values() for part in _appends(gathered)]

    def clear(self) -> None:
        for gathered in self._gathered.values():
            gathered.cut(0)
        self.nbytes = 0
        self.overflows = False


def _check_fields(fields: RecordFields) -> None:
    unknown = fields.keys() - RecordFields.__annotations__.keys()
    if unknown:
        known = ", ".join(RecordFields.__annotations__)
        near = did_you_mean(min(unknown), RecordFields.__annotations__)
        raise TypeError(f"out.append takes no {', '.join(unknown)}: value, key, {known}{near}")


def _inherit(gathered: _Gathered, first: int, provenance: Provenance) -> None:
    """Pass on sequence, trace and origin of the input, where the handler gave none."""
    before, nth = -1, 0
    for at, row in enumerate(gathered.rows, first):
        nth, before = (nth + 1 if row == before else 0), row
        found = gathered.extra.get(at)
        plain = Row(gathered.keys[at], gathered.data[at], 0)
        made, shard, timed = (plain, None, False) if found is None else found
        if provenance.traces is not None and made.trace is None:
            made = made._replace(trace=provenance.traces(row))
        if provenance.origins is not None:
            origin = (ORIGIN, b"%s/%d" % (provenance.origins(row), nth))
            made = made._replace(headers=[*made.headers, origin])
        if provenance.sequences is not None and not timed and not made.sequence:
            made = made._replace(sequence=provenance.sequences(row))
        gathered.extra[at] = made, shard, timed


def _appends(gathered: _Gathered) -> Iterator[Append]:
    info, _, sharding = gathered.target
    keys, count = gathered.keys, len(gathered.keys)
    if not count:
        return
    if gathered.extra or count <= ROWS_FEW:
        rows: dict[int, list[Row]] = {}
        for at in range(count):
            row, shard, timed = gathered.extra.get(at, (None, None, False))
            if row is None:
                row = Row(keys[at], gathered.data[at], gathered.times[at])
            elif not timed:
                row = row._replace(timestamp=gathered.times[at])
            rows.setdefault(sharding.shard_for(row.key, shard), []).append(row.checked())
        for index, made in rows.items():
            yield Append(info, index, Batch.of_rows(made))
        return
    batch = timed_batch(keys, gathered.data, gathered.times)
    for part in sharding.parts(batch, keys):
        yield from part.appends
