"""What was made from a record: which commits read it, and what became of their outputs.

An input is read by one commit of each group, and by more after a seek or a rewind, so all kept
stories of its own shard are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.core.model import Record, RecordId, Slice
from headrace.hub.story.lineage import letter_origin, lineage_of, lineage_on, parent_of
from headrace.hub.story.lookup import alone, holds, meet
from headrace.hub.story.record_story import CommitStory
from headrace.hub.story.walk import FoundCommit, Walk
from headrace.lanes.story import decoded


class Followed(NamedTuple):
    """The records that are followed: by their slices, and one by one where they are known."""

    slices: tuple[Slice, ...]
    records: Mapping[RecordId, str | None] | None
    """Each with the lineage that its outputs carry, None if the record cannot be read. None where
    only slices are known."""

    @classmethod
    def of_record(cls, record_id: RecordId, record: Record | None) -> Followed:
        lineage = None if record is None else lineage_on(record)
        return cls((alone(record_id),), {record_id: lineage})

    @classmethod
    def of_records(cls, records: Sequence[Record]) -> Followed:
        return cls(
            tuple(alone(record.id) for record in records),
            {record.id: lineage_on(record) for record in records},
        )

    def within(self, read: Slice) -> Followed:
        """Those that lie in this slice."""
        slices = tuple(each for each in self.slices if meet(each, read))
        if self.records is None:
            return Followed(slices, None)
        known = {each: how for each, how in self.records.items() if holds(read, each)}
        return Followed(slices, known)


class Downstream(Walk):
    """The walk to the commits that read a record, and on to those that read their outputs."""

    def read_by(self, followed: Followed, level: int = 1) -> tuple[CommitStory, ...]:
        readers = list(self._readers(followed))
        return tuple(
            self._told_of(reader, followed.within(reader.read(self._lookup)), level)
            for reader in readers
            if self._enters()
        )

    def _readers(self, followed: Followed) -> Iterator[FoundCommit]:
        shards = sorted({(each.stream, each.shard) for each in followed.slices})
        for stream, shard in shards:
            info = self._lookup.by_name.get(stream)
            if info is None:
                continue
            wanted = [
                each for each in followed.slices if (each.stream, each.shard) == (stream, shard)
            ]
            for stories in self._lookup.stories.of_shard(info.id, shard):
                found = []
                for stored in stories.newest_first():
                    one = FoundCommit(stories, stored, decoded(stored.story))
                    read = one.read(self._lookup)
                    if any(meet(each, read) for each in wanted):
                        found.append(one)
                yield from reversed(found)

    def _told_of(self, reader: FoundCommit, followed: Followed, level: int) -> CommitStory:
        story, known = reader.story, followed.records
        outcomes = set() if known is None else {story.outcome_of(each.offset) for each in known}
        outputs = None if known is None else self._outputs(reader, known)
        if outputs is not None:
            behind = Followed.of_records(outputs)
        else:
            wanted = reader.stored.outputs
            if outcomes == {"done"}:
                wanted = reader.appended
            elif outcomes and outcomes <= {"skipped", "dead-letter"}:
                wanted = reader.dead_letters
            behind = Followed(self._lookup.slices(wanted), None)
        inputs = None if known is None else tuple(known)
        follows = bool(behind.slices) and self._follows(reader, inputs, level)
        return self._commit(
            reader,
            inputs=inputs,
            outputs=None if outputs is None else tuple(record.id for record in outputs),
            outcome=outcomes.pop() if len(outcomes) == 1 else None,
            attempts=max(story.attempts_in(each.start, each.end) for each in followed.slices),
            further=self.read_by(behind, level + 1) if follows else (),
            repeated=bool(behind.slices) and not follows and level < self._depth,
        )

    def _outputs(
        self, reader: FoundCommit, known: Mapping[RecordId, str | None]
    ) -> list[Record] | None:
        """The outputs that were made from these records of the slice; None where that is not
        known."""
        letters = self._letters(reader, known)
        appended = self._appended(reader, known)
        if appended is None and letters and len(letters) == len(known):
            return letters  # what on_failure may have appended is not known, and rare
        return None if appended is None or letters is None else [*appended, *letters]

    def _letters(self, reader: FoundCommit, known: Collection[RecordId]) -> list[Record] | None:
        given_up = {one for one in known if reader.story.outcome_of(one.offset) == "dead-letter"}
        if not given_up:
            return []
        records = self._all_records(self._lookup.slices(reader.dead_letters))
        if records is None:
            return None
        return [record for record in records if letter_origin(record) in given_up]

    def _appended(
        self, reader: FoundCommit, known: Mapping[RecordId, str | None]
    ) -> list[Record] | None:
        if not reader.appended:
            return []
        if reader.story.together or None in known.values():
            return None
        records = self._all_records(self._lookup.slices(reader.appended))
        given = self._lookup.records(reader.read(self._lookup))
        if records is None or given is None:
            return None
        parents = {record.id: parent_of(lineage_of(record)) for record in records}
        # Headers may also be handed on by the handler: those name no record of this slice.
        if not {lineage_on(record) for record in given} & set(parents.values()):
            return None
        wanted = set(known.values())
        return [record for record in records if parents[record.id] in wanted]

    def _all_records(self, slices: Iterable[Slice]) -> list[Record] | None:
        found: list[Record] = []
        for each in slices:
            records = self._lookup.records(each)
            if records is None:
                return None
            found += records
        return found
