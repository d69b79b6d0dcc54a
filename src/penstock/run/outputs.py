"""What a handler appends: gathered column by column, until it leaves with the commit of its slice.

For each output it is remembered which row of the input it was made from. So the outputs of one
attempt can be taken back, and time and trace be carried on, without anything done per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from penstock.core.batch import COMMIT_BYTES_MAX, ROW_OVERHEAD, Batch, Row, timed_batch
from penstock.core.errors import BadOutput
from penstock.core.model import StreamInfo
from penstock.core.ports import Append, Codec
from penstock.core.quantities import Instant, shown_size
from penstock.run.rows import Headers, Key, key_bytes, row_of
from penstock.run.shares import Shares

FULL_BYTES = COMMIT_BYTES_MAX // 2
"""With so much gathered, the slice ends behind the record in hand."""
MOST_BYTES = COMMIT_BYTES_MAX - 256 * 1024
"""More than this one record cannot have made: state and story go into the same commit."""
FEW = 16
ORIGIN = "penstock-origin"
"""The header that tells from which record of a source an output was made, where it is asked for."""

_PLAIN = (None, None, None, None)


class Target(NamedTuple):
    """A stream that a computation may append to."""

    info: StreamInfo
    codec: Codec
    shares: Shares


class Mark(NamedTuple):
    """What one handled batch tells about the outputs made from it."""

    timestamps: Callable[[int], int]
    sequences: Callable[[int], int] | None = None
    traces: Callable[[int], bytes | None] | None = None
    origins: Callable[[int], bytes] | None = None
    """From which record of a source each row comes, if that is to be told."""


class _Gathered:
    """The outputs for one stream."""

    __slots__ = ("data", "encode", "extra", "keys", "rows", "target", "times")

    def __init__(self, target: Target) -> None:
        self.target = target
        self.encode = target.codec.encode
        self.keys: list[bytes | None] = []
        self.data: list[bytes | None] = []
        self.rows: list[int] = []
        """The input row of each, of the batch being handled; then, sealed, no more."""
        self.times: list[int] = []
        """The timestamp of each that is sealed."""
        self.extra: dict[int, tuple[Row, int | None, bool]] = {}
        """Those that have more than key and data: with the shard asked for, and whether their
        timestamp was given."""

    def cut(self, count: int) -> None:
        del self.keys[count:], self.data[count:], self.times[count:]
        del self.rows[max(count - len(self.times), 0) :]
        for at in [at for at in self.extra if at >= count]:
            del self.extra[at]


class Outputs:
    """``out`` of a handler."""

    def __init__(self, computation: str, targets: Mapping[str, Target]) -> None:
        self._computation = computation
        self._gathered = {name: _Gathered(target) for name, target in targets.items()}
        self._row: Callable[[], int] = lambda: 0
        self._on_full: Callable[[], None] = lambda: None
        self.nbytes = 0

    def append(
        self,
        stream: str,
        value: Any,
        key: Key = None,
        *,
        headers: Headers = (),
        timestamp: Instant | None = None,
        sequence: int | None = None,
        flags: int = 0,
        trace: bytes | str | None = None,
        shard: int | None = None,
    ) -> None:
        """Append to one of the computation's outputs, when the slice is committed.

        Without a timestamp it gets that of the record in hand; its trace goes on too."""
        gathered = self._gathered.get(stream)
        if gathered is None:
            raise self._unknown(stream)
        if headers or flags or (timestamp, sequence, trace, shard) != _PLAIN:
            row = row_of(
                gathered.target.codec, value, key, headers,
                0 if timestamp is None else timestamp, sequence or 0, flags, trace,
            )  # fmt: skip
            if shard is not None:
                gathered.target.shares.shard_for(None, shard)
            gathered.extra[len(gathered.keys)] = row, shard, timestamp is not None
            found, data = row.key, row.data
        else:
            data = None if value is None else gathered.encode(value)
            found = key.encode() if type(key) is str and key.isascii() else key_bytes(key)
        gathered.keys.append(found)
        gathered.data.append(data)
        gathered.rows.append(self._row())
        self.nbytes += ROW_OVERHEAD + len(data or b"") + len(found or b"")
        if self.nbytes > FULL_BYTES:
            self._full()

    def _full(self) -> None:
        if self.nbytes > MOST_BYTES:
            raise BadOutput(
                f"{self._computation}: one record made more than {shown_size(MOST_BYTES)} of "
                "outputs, and they leave in one commit: append references to large data instead"
            )
        self._on_full()

    def _unknown(self, stream: object) -> BadOutput:
        known = ", ".join(self._gathered) or "nothing"
        return BadOutput(
            f"{self._computation} appends to {stream!r}, which is not among its outputs: {known}"
        )

    # For the lane

    @property
    def count(self) -> int:
        return sum(len(gathered.keys) for gathered in self._gathered.values())

    def follow(self, row: Callable[[], int], on_full: Callable[[], None]) -> None:
        """How to tell the row in hand, and what to do when enough is gathered."""
        self._row = row
        self._on_full = on_full

    def take_back(self, row: int) -> None:
        """What was made from this row of the batch in hand, and from those behind it."""
        for gathered in self._gathered.values():
            sealed = len(gathered.times)
            kept = len(gathered.rows)
            while kept and gathered.rows[kept - 1] >= row:
                kept -= 1
            gathered.cut(sealed + kept)
        self.nbytes = sum(
            ROW_OVERHEAD + len(data or b"") + len(key or b"")
            for gathered in self._gathered.values()
            for key, data in zip(gathered.keys, gathered.data, strict=True)
        )

    def seal(self, mark: Mark) -> None:
        """The batch in hand is done: what was made from it gets its time."""
        for gathered in self._gathered.values():
            if not gathered.rows:
                continue
            first = len(gathered.times)
            gathered.times += map(mark.timestamps, gathered.rows)
            if mark.traces or mark.origins or mark.sequences:
                _carry_on(gathered, first, mark)
            gathered.rows.clear()

    def appends(self) -> list[Append]:
        """All of it, by stream and shard, in the order in which it was made."""
        return [part for gathered in self._gathered.values() for part in _appends(gathered)]

    def clear(self) -> None:
        for gathered in self._gathered.values():
            gathered.cut(0)
        self.nbytes = 0


def _carry_on(gathered: _Gathered, first: int, mark: Mark) -> None:
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
