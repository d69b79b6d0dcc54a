"""Rows of a batch that are handed out as records, until another thread cuts them off.

No Python instruction is spent per record: the number of rows that are left tells which record was
handed out last, and an emptied gate ends the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import length_hint

from headrace.core.model import Record
from headrace.core.records.batch import Batch


class CuttableRows:
    """The rows of one batch from `begin` to `end`. One thread iterates over `left`; any thread may
    ask for `given` and call `cut`."""

    __slots__ = ("_gate", "_rows", "batch", "begin", "end", "is_cut", "left")

    def __init__(self, batch: Batch, begin: int, end: int) -> None:
        self.batch = batch
        self.begin = begin
        self.end = end
        self.is_cut = False
        # The gate has one entry per row. `map` asks the gate first: once the gate is empty, no
        # further row is taken.
        self._gate = [batch] * (end - begin)
        self._rows = iter(range(begin, end))
        self.left: Iterator[Record] = map(Record, self._gate, self._rows)
        """The records that are not handed out yet."""

    @property
    def given(self) -> int:
        """The row that is handed out next."""
        return self.end - length_hint(self._rows)

    @property
    def count_left(self) -> Callable[[], int]:
        """A function that counts the rows behind the record in hand. It is built in, so that a
        caller can afford to call it for each record."""
        return self._rows.__length_hint__  # type: ignore[attr-defined, no-any-return]

    def cut(self) -> None:
        """Hand out no further row."""
        self.is_cut = True
        self._gate.clear()
