"""Where the story of a record is looked up: streams, records, and the stories of commits."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.computations.attempts import Attempts
from headrace.core.errors import Damaged, OffsetOutOfRange, RecordTooLarge
from headrace.core.model import Record, RecordId, Slice, StreamInfo
from headrace.core.ports import Log, Store
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.core.transaction import OutputRange
from headrace.groups.stored import attempts_of
from headrace.groups.stored_stories import StoredStories

RECORDS_MAX = 10_000
"""How many records of one slice are looked at to find out which one is meant."""


class Lookup:
    """Streams, records and stories of a hub."""

    def __init__(self, records: Log, store: Store) -> None:
        self._records = records
        self._store = store
        streams = records.streams()
        self.by_id = {info.id: info for info in streams}
        self.by_name = {info.name: info for info in streams}
        self.stories = StoredStories(store)

    def slices(self, outputs: Iterable[OutputRange]) -> tuple[Slice, ...]:
        """Outputs by the names of their streams; neighbours become one."""
        found: list[Slice] = []
        for stream_id, shard, start, end in outputs:
            info = self.by_id.get(stream_id)
            name = f"(deleted stream {stream_id})" if info is None else info.name
            last = found[-1] if found else None
            if last is not None and (last.stream, last.shard, last.end) == (name, shard, start):
                found[-1] = Slice(name, shard, last.start, end)
            else:
                found.append(Slice(name, shard, start, end))
        return tuple(found)

    def record(self, wanted: RecordId) -> Record | None:
        """The record, None if it cannot be read any more."""
        return next(iter(self.records(alone(wanted)) or ()), None)

    def records(self, wanted: Slice) -> list[Record] | None:
        """The records of a slice; None if not all of them can be read, or they are too many."""
        info = self.by_name.get(wanted.stream)
        if info is None or len(wanted) > RECORDS_MAX:
            return None
        found: list[Record] = []
        at = wanted.start
        while at < wanted.end:
            try:
                read = self._records.read(
                    info,
                    wanted.shard,
                    at,
                    wanted.end,
                    max_records=RECORDS_MAX,
                    max_bytes=COMMIT_BYTES_MAX,
                )
            except (Damaged, OffsetOutOfRange, RecordTooLarge):
                return None  # trimmed or damaged: what its headers said cannot be told
            if read.next == at:
                break
            found += [record for batch in read.batches for record in batch.records()]
            at = read.next
        return found

    def attempts(self, group: str, info: StreamInfo, shard: int) -> Attempts:
        found = attempts_of(self._store, group, info.id, shard)
        return Attempts() if found is None else Attempts.decoded(found.value)


def alone(record_id: RecordId) -> Slice:
    return Slice(record_id.stream, record_id.shard, *span(record_id))


def span(record_id: RecordId) -> tuple[int, int]:
    return record_id.offset, record_id.offset + 1


def holds(whole: Slice, one: RecordId) -> bool:
    return meet(whole, alone(one))


def meet(one: Slice, other: Slice) -> bool:
    same = (one.stream, one.shard) == (other.stream, other.shard)
    return same and one.start < other.end and other.start < one.end
