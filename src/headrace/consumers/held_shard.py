"""A granted shard in a consumer's hands: where it reads, what it has read ahead, what is done."""

from __future__ import annotations

from collections import deque

from headrace.core.groups.checkpoint import HandedOut
from headrace.core.model import ShardId
from headrace.core.ports import Grant, ReadResult
from headrace.core.records.batch import Batch
from headrace.core.records.cuttable_rows import CuttableRows

TURN_S = 0.05
"""About so long one shard's records are handed out before it is another shard's turn."""

STRIDE_S = 0.001
STRIDE_MAX = 128
FIRST_TURN = 16


class Handout(CuttableRows):
    """Some rows of a batch, being handed out one by one or all together."""

    __slots__ = ("holding", "is_looped", "next", "whole")

    def __init__(self, holding: HeldShard, batch: Batch, begin: int, end: int, next: int) -> None:
        super().__init__(batch, begin, end)
        self.holding = holding
        self.next = next
        """The offset to go on at when all of it is done."""
        self.whole = False
        """It was handed out all together."""
        self.is_looped = False
        """Handed out by a loop, which may be left in the middle."""

    def give_all(self) -> int:
        """Hand out what is left; the row behind it."""
        deque(self.left, maxlen=0)
        return self.given

    @property
    def done(self) -> int:
        """Rows before this one are done: the last one handed out is still in hand."""
        return self.begin if self.whole else max(self.given - 1, self.begin)

    def offset(self, row: int) -> int:
        """Where to go on when the rows before this one are done."""
        return self.next if row >= self.end else self.batch.offsets[row]


class HeldShard:
    """Touched under the lock of `Hands` only."""

    def __init__(self, grant: Grant, start: int) -> None:
        self.grant = grant
        self.shard = ShardId(grant.stream.name, grant.shard)
        self.at = start
        """Where the log is read next."""
        self.more = True
        """There may be something to read there."""
        self.marks = HandedOut(start)
        self.ending_s: float | None = None
        """When it is let go at the latest; None while it is held."""
        self.told_end = False
        """Its user knows that it ends."""
        self.told_finished = False
        """The group knows that it is read to its closed end."""
        self.few_since_s: float | None = None
        """Since when there are records to read, but too few."""
        self._ahead: deque[Batch] = deque()
        self._row = 0
        self._flying: deque[tuple[int, int, int]] = deque()
        """Next offset, records and bytes of each read that is not done as a whole."""
        self._turn = FIRST_TURN

    @property
    def ahead(self) -> bool:
        """Whether something is read and not handed out."""
        return bool(self._ahead)

    def room(self, records_max: int, bytes_max: int) -> tuple[int, int]:
        """How many records and bytes may be read, of so many in all that are not done."""
        while self._flying and self._flying[0][0] <= self.marks.next:
            self._flying.popleft()
        records = sum(flying[1] for flying in self._flying)
        nbytes = sum(flying[2] for flying in self._flying)
        return records_max - records, bytes_max - nbytes

    def take_in(self, reading: ReadResult) -> None:
        self.at = reading.next
        self.few_since_s = None
        self._ahead.extend(reading.batches)
        records = sum(len(batch) for batch in reading.batches)
        nbytes = sum(batch.nbytes for batch in reading.batches)
        self._flying.append((reading.next, records, nbytes))

    def piece(self, records_max: int) -> Handout:
        """The next records, all of one batch."""
        batch, begin = self._ahead[0], self._row
        end = min(begin + records_max, len(batch))
        if end < len(batch):
            self._row = end
            return Handout(self, batch, begin, end, batch.offsets[end])
        self._ahead.popleft()
        self._row = 0
        behind = self._ahead[0].offsets[0] if self._ahead else self.at
        return Handout(self, batch, begin, end, behind)

    def go_on_at(self, offset: int) -> None:
        """Read there next. What was read ahead is dropped, or was never there."""
        self.at = offset
        self.more = True
        self._ahead.clear()
        self._row = 0
        unread = [flying for flying in self._flying if flying[0] > offset]
        if unread:
            # Of the first of them something was handed out: it counts until that is done.
            while self._flying and self._flying[-1][0] > offset:
                self._flying.pop()
            self._flying.append((offset, *unread[0][1:]))

    @property
    def turn(self) -> int:
        """How many records are handed out before it is another shard's turn."""
        return self._turn

    @property
    def stride(self) -> int:
        """After so many, at the pace of now, another look whether it may still be worked on: one
        by one, unless many take no longer than a millisecond."""
        return min(max(int(self._turn * STRIDE_S / TURN_S), 1), STRIDE_MAX)

    def took(self, records: int, seconds: float) -> None:
        """So long it took to work through so many: the next turn fits, and grows slowly."""
        fitting = int(records * TURN_S / max(seconds, 1e-6))
        self._turn = max(1, min(fitting, self._turn * 2))
