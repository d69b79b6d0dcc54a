"""A shard that a consumer holds: where it is read, what is read ahead, what is done."""

from __future__ import annotations

from collections import deque

from headrace.core.groups.handed_out import HandedOut
from headrace.core.model import ShardId
from headrace.core.ports import Grant, ReadResult
from headrace.core.records.batch import Batch
from headrace.core.records.cuttable_rows import CuttableRows

TURN_S = 0.05
"""About how long the records of one shard are handed out before another shard has its turn."""

STRIDE_S = 0.001
"""About how long the records of one stride take."""
STRIDE_MAX = 128
FIRST_TURN = 16
"""Records of the first turn, when it is not known yet how long they take."""


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
    """One granted shard: where it is read, what is read ahead, what is done.

    `HeldShards` changes it under its lock, and so does the reader that `HeldShards` calls. Others
    look at `grant` and `shard` only, which never change."""

    def __init__(self, grant: Grant, start: int) -> None:
        self.grant = grant
        self.shard = ShardId(grant.stream.name, grant.shard)
        self.at = start
        """The offset at which the log is read next."""
        self.has_more = True
        """There may be something to read there."""
        self.handed_out = HandedOut(start)
        self.ending_s: float | None = None
        """When the shard is let go at the latest; None while it is held."""
        self.is_end_told = False
        """The user knows that the shard ends."""
        self.is_finish_told = False
        """The group knows that the shard is closed, and committed to its end."""
        self.few_since_s: float | None = None
        """Since when there are records to read, but too few."""
        self._ahead: deque[Batch] = deque()
        self._row = 0
        """The row of the first batch read ahead that is handed out next."""
        self._open_reads: deque[tuple[int, int, int]] = deque()
        """Next offset, records and bytes of each read that is not done as a whole."""
        self._turn = FIRST_TURN

    @property
    def is_ahead(self) -> bool:
        """Whether something is read and not handed out."""
        return bool(self._ahead)

    def room(self, records_max: int, bytes_max: int) -> tuple[int, int]:
        """How many records and bytes may be read, if no more than these may be open."""
        reads = self._open_reads
        while reads and reads[0][0] <= self.handed_out.next:
            reads.popleft()
        records = sum(read[1] for read in reads)
        nbytes = sum(read[2] for read in reads)
        return records_max - records, bytes_max - nbytes

    def take_in(self, reading: ReadResult) -> None:
        """Keep what was read until it is handed out."""
        self.at = reading.next
        self.few_since_s = None
        self._ahead.extend(reading.batches)
        records = sum(len(batch) for batch in reading.batches)
        nbytes = sum(batch.nbytes for batch in reading.batches)
        self._open_reads.append((reading.next, records, nbytes))

    def next_handout(self, records_max: int) -> Handout:
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
        """Read at this offset next. What was read ahead is dropped, or was never there."""
        self.at = offset
        self.has_more = True
        self._ahead.clear()
        self._row = 0
        reads = self._open_reads
        unread = [read for read in reads if read[0] > offset]
        if unread:
            # Of the first of these reads something was handed out: it counts until that is done.
            while reads and reads[-1][0] > offset:
                reads.pop()
            reads.append((offset, *unread[0][1:]))

    @property
    def turn(self) -> int:
        """How many records are handed out before another shard has its turn."""
        return self._turn

    @property
    def stride(self) -> int:
        """How many records are handed out between two looks at the lease: one, unless many take no
        longer than a millisecond at the pace of now."""
        return min(max(int(self._turn * STRIDE_S / TURN_S), 1), STRIDE_MAX)

    def took(self, records: int, seconds: float) -> None:
        """The user worked this long on this many records: the next turn fits that, and grows
        slowly."""
        fitting = int(records * TURN_S / max(seconds, 1e-6))
        self._turn = max(1, min(fitting, self._turn * 2))
