"""The slice that a lane works on, seen from outside: which record is in hand, and a way to end the
slice early."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.core.model import Record
from headrace.core.records.batch import Batch
from headrace.core.records.cuttable_rows import CuttableRows

APART = -1
"""The offset in hand while the handler is called without a record."""


class SliceInHand:
    """Belongs to one lane. Any thread may ask for `offset` and call `cut`."""

    def __init__(self, number: int, start: int) -> None:
        self.number = number
        self.is_cut = False
        self.is_busy = False
        """The user's code is at work."""
        self._is_apart = False
        self._start = start
        self._rows: CuttableRows | None = None
        """What was handed out last. Batch and rows change together, by one assignment: another
        thread never combines the rows of one batch with the offsets of another."""

    def records(self, batch: Batch, begin: int, end: int) -> Iterator[Record]:
        """The records in these rows, until the slice is cut."""
        rows = self._rows = CuttableRows(batch, begin, end)
        if self.is_cut:  # by another thread, which may not have seen these rows
            rows.cut()
        return rows.left

    @property
    def rows(self) -> CuttableRows:
        """What `records` handed out last."""
        assert self._rows is not None, "no record was handed out yet"
        return self._rows

    @property
    def row(self) -> Callable[[], int]:
        """A function that tells the row of the record in hand."""
        last, count_left = self.rows.end - 1, self.rows.count_left
        return lambda: last - count_left()

    @property
    def offset(self) -> int | None:
        """The offset of the record in hand; None while the user's code is not at work."""
        if not self.is_busy:
            return None
        if self._is_apart:
            return APART
        rows = self._rows
        if rows is None or (row := rows.given - 1) < 0:
            return self._start
        return rows.batch.offsets[row]

    def __enter__(self) -> SliceInHand:
        """The handler is at work from here on."""
        self.is_busy = True
        return self

    def __exit__(self, *why: object) -> None:
        self.is_busy = self._is_apart = False

    def apart(self) -> SliceInHand:
        """For a call without a record: ``with slice_in_hand.apart(): ...``"""
        self._is_apart = True
        return self

    def cut(self) -> None:
        """Hand out no further record of this slice."""
        self.is_cut = True
        if self._rows is not None:
            self._rows.cut()
