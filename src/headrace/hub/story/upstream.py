"""What a record was made from: which commits appended it, and which slices those read.

An output lies in one commit. The commits of a group in a shard append to each shard in order, so a
walk from the newest story back ends where the outputs come to lie before the record.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.model import Record, RecordId, Slice, StreamInfo
from headrace.groups.stored_stories import ShardStories
from headrace.hub.story.lineage import letter_origin, lineage_of, parent_id, parent_of, parsed_id
from headrace.hub.story.lookup import alone, holds, span
from headrace.hub.story.record_story import CommitStory
from headrace.hub.story.walk import FoundCommit, Walk
from headrace.lanes.story import decoded


class Upstream(Walk):
    """The walk to the commit that made a record, and on to those that made what it read."""

    def made_by(
        self, made: Slice, record: Record | None, level: int = 1
    ) -> tuple[CommitStory, ...]:
        """The commits that appended these records; ``record`` is the one that is meant, if only one
        is and it can be read."""
        makers = list(self._makers(made, record))
        return tuple(
            self._told_of(maker, made, record, level) for maker in makers if self._enters()
        )

    def _makers(self, made: Slice, record: Record | None) -> Iterator[FoundCommit]:
        """Every record was appended by one commit at most: enough are found when all are."""
        info = self._lookup.by_name[made.stream]
        missing = len(made)
        for stories in self._candidates(info, record):
            for stored in stories.newest_first():
                mine = [
                    o for o in stored.outputs if (o.stream_id, o.shard) == (info.id, made.shard)
                ]
                common = sum(max(min(o.end, made.end) - max(o.start, made.start), 0) for o in mine)
                if common:
                    missing -= common
                    yield FoundCommit(stories, stored, decoded(stored.story))
                if missing == 0 or (mine and mine[0].start <= made.start):
                    break  # what is older lies before it
            if missing == 0:
                return

    def _candidates(self, made: StreamInfo, record: Record | None) -> list[ShardStories]:
        """All stories, first those of the shard that the record names in its headers. No
        computation appends to the stream it reads."""
        near = None if record is None else (letter_origin(record) or parent_id(record))
        info = None if near is None else self._lookup.by_name.get(near.stream)
        named = None if near is None or info is None else (info.id, near.shard)
        others = self._lookup.by_id.keys() - {made.id}
        every = [each for each in self._lookup.stories.every() if each.stream_id in others]
        return sorted(every, key=lambda each: (each.stream_id, each.shard) != named)

    def _told_of(
        self, maker: FoundCommit, made: Slice, record: Record | None, level: int
    ) -> CommitStory:
        story, read = maker.story, maker.read(self._lookup)
        source = None if record is None else self._input(maker, record)
        start, end = (read.start, read.end) if source is None else span(source)
        further: tuple[CommitStory, ...] = ()
        inputs = None if source is None else (source,)
        follows = bool(len(read)) and self._follows(maker, inputs, level)
        if follows and source is None:
            further = self.made_by(read, None, level + 1)
        elif follows and source is not None:
            further = self.made_by(alone(source), self._lookup.record(source), level + 1)
        return self._commit(
            maker,
            inputs=inputs,
            outputs=(RecordId(made.stream, made.shard, made.start),) if len(made) == 1 else None,
            outcome=None if source is None else story.outcome_of(source.offset),
            attempts=story.attempts_in(start, end),
            further=further,
            repeated=bool(len(read)) and not follows and level < self._depth,
        )

    def _input(self, maker: FoundCommit, record: Record) -> RecordId | None:
        """The record of the slice that this one was made from, if its headers tell."""
        read = maker.read(self._lookup)
        if any(holds(letters, record.id) for letters in self._lookup.slices(maker.dead_letters)):
            source = letter_origin(record)
            return source if source is not None and holds(read, source) else None
        parent = parent_of(lineage_of(record))
        if maker.story.together or parent is None:
            return None
        source = parsed_id(parent)
        if source is not None:
            return source if holds(read, source) else None
        for candidate in self._lookup.records(read) or ():
            if lineage_of(candidate) == parent:
                return candidate.id
        return None
