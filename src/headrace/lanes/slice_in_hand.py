"""The slice in a lane's hand, as seen from outside: how far it is, and that it shall end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint

from headrace.core.model import Record
from headrace.core.records.batch import Batch

APART = -1
"""The offset in hand while a call is about no record."""


class SliceInHand:
    """Used by its lane; `cut` and `offset` by any thread.

    Nothing is counted or asked for each record: how many rows are left tells which one is in hand,
    and the gate, emptied by whoever wants an end, ends the iteration behind it."""

    def __init__(self, number: int, start: int) -> None:
        self.number = number
        self.is_cut = False
        self.is_busy = False
        """The user's code is at work."""
        self._is_apart = False
        self._start = start
        self._batch: Batch | None = None
        self._gate: list[Batch] = []
        self._rows: Iterator[int] = iter(())
        self._end = 0

    def records(self, batch: Batch, begin: int, end: int) -> Iterator[Record]:
        """The records at these positions, until it is cut."""
        self._batch = None  # so that nobody combines the old one with the new rows
        self._end = end
        self._rows = iter(range(begin, end))
        self._gate = [batch] * (end - begin)
        self._batch = batch
        if self.is_cut:
            self._gate.clear()
        return map(Record, self._gate, self._rows)

    @property
    def row(self) -> Callable[[], int]:
        """How to tell the row in hand of what was given out last."""
        last, left = self._end - 1, self._rows.__length_hint__  # type: ignore[attr-defined]
        return lambda: last - left()

    @property
    def rows_left(self) -> tuple[Callable[[], int], int]:
        """The same in two parts, of which only the first is asked for each record: how many rows
        come behind the one in hand, and which is the last of them."""
        return self._rows.__length_hint__, self._end - 1  # type: ignore[attr-defined]

    @property
    def given(self) -> int:
        """The row that comes next."""
        return self._end - length_hint(self._rows)

    @property
    def offset(self) -> int | None:
        """Of the record in hand; None if the user's code is not at work."""
        if not self.is_busy:
            return None
        if self._is_apart:
            return APART
        batch, row = self._batch, self.given - 1
        if batch is None or not 0 <= row < len(batch):
            return self._start
        return batch.offsets[row]

    def __enter__(self) -> SliceInHand:
        """A handler is at work."""
        self.is_busy = True
        return self

    def __exit__(self, *why: object) -> None:
        self.is_busy = self._is_apart = False

    def apart(self) -> SliceInHand:
        """For a call that is about no record."""
        self._is_apart = True
        return self

    def cut(self) -> None:
        """No further record of this slice."""
        self.is_cut = True
        self._gate.clear()
