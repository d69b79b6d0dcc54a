"""What both ways share: a commit that was found, and how far the walk goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.core.model import RecordId, Slice
from headrace.core.transaction import OutputRange
from headrace.groups.stored_stories import ShardStories, StoredStory
from headrace.hub.story.lookup import Lookup
from headrace.hub.story.record_story import CommitStory
from headrace.lanes.story import RecordOutcome, Story

COMMITS_MAX = 100
"""How many commits are told of each way."""


class FoundCommit(NamedTuple):
    """A commit that was found."""

    stories: ShardStories
    stored: StoredStory
    story: Story

    def read(self, lookup: Lookup) -> Slice:
        stream = lookup.by_id[self.stories.stream_id].name
        return Slice(stream, self.stories.shard, self.story.start, self.story.next)

    @property
    def appended(self) -> tuple[OutputRange, ...]:
        return self.stored.outputs[: len(self.stored.outputs) - self._letters]

    @property
    def dead_letters(self) -> tuple[OutputRange, ...]:
        return self.stored.outputs[len(self.stored.outputs) - self._letters :]

    @property
    def _letters(self) -> int:
        return 1 if self.story.dead_letters else 0


class Walk:
    """One way to follow a record. The walk is bounded: one topology has no circle, but several
    topologies together may, and stories may be many."""

    def __init__(self, lookup: Lookup, depth: int) -> None:
        self._lookup = lookup
        self._depth = depth
        self._told: set[tuple[ShardStories, StoredStory, tuple[RecordId, ...] | None]] = set()
        self._count = 0
        self._is_cut = False
        self._is_deep = False

    def notes(self) -> Iterator[str]:
        if self._is_cut:
            yield f"there are more commits: {COMMITS_MAX} are told of each way"
        if self._is_deep:
            yield f"commits may lie further away: {self._depth} in a row are followed"

    def _enters(self) -> bool:
        """Whether one more commit may be told of."""
        self._is_cut = self._is_cut or self._count >= COMMITS_MAX
        self._count += 1
        return not self._is_cut

    def _follows(self, found: FoundCommit, meant: tuple[RecordId, ...] | None, level: int) -> bool:
        """Whether the walk goes on behind this commit: once for the records that are meant, and
        not further than the depth."""
        told = found.stories, found.stored, meant
        known = told in self._told
        self._told.add(told)
        self._is_deep = self._is_deep or level >= self._depth
        return not known and level < self._depth

    def _commit(
        self,
        found: FoundCommit,
        *,
        inputs: tuple[RecordId, ...] | None,
        outputs: tuple[RecordId, ...] | None,
        outcome: RecordOutcome | None,
        attempts: int,
        further: tuple[CommitStory, ...],
        repeated: bool,
    ) -> CommitStory:
        story = found.story
        return CommitStory(
            group=found.stories.group,
            read=found.read(self._lookup),
            inputs=inputs,
            appended=self._lookup.slices(found.appended),
            dead_letters=self._lookup.slices(found.dead_letters),
            outputs=outputs,
            outcome=outcome,
            attempts=attempts,
            together=story.together,
            replica=story.replica,
            lane=story.lane,
            epoch=story.epoch,
            at_ms=story.at_ms,
            spent_ms=story.spent_ms,
            further=further,
            repeated=repeated,
        )
