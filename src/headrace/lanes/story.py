"""The story of one commit: small, written by the lane, kept beside the checkpoint.

The backend adds where the outputs went. `headrace.hub.story` reads stories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from headrace.core.errors import BadStored

RecordOutcome = Literal["done", "skipped", "dead-letter"]
"""What became of a record that a commit passed."""

TRIED_MAX = 256
"""How many runs of records with failed attempts one story can name: it stays small."""


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring records that failed equally often, and what became of them."""

    start: int
    next: int
    failed: int
    """How many attempts at each of the records failed."""
    outcome: RecordOutcome

    @property
    def attempts(self) -> int:
        """How many attempts there were in all: the one that went well counts too."""
        return self.failed + (self.outcome == "done")


class Story(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one commit did."""

    start: int
    """The slice begins here. With `next` at the same offset, the commit passed no record: its
    outputs were made by ``init``, ``on_timer`` or ``close``, or it only counts a failed attempt."""
    next: int
    epoch: int | None
    replica: str
    lane: int
    at_ms: int
    spent_ms: float
    failed: int = 0
    """How many attempts at the record at `next` have failed."""
    skipped: int = 0
    dead_letters: int = 0
    """How many records became dead letters: the last of the outputs that the backend adds."""
    tried: tuple[Tried, ...] = ()
    """The records of the slice with failed attempts, in order: the first `TRIED_MAX` runs."""
    together: bool = False
    """Whether all records were handled in one call, as those of a batch computation are."""

    def outcome_of(self, offset: int) -> RecordOutcome | None:
        """What became of a record of the slice; None if the story had no room for it."""
        for run in self.tried:
            if run.start <= offset < run.next:
                return run.outcome
        given_up = sum(run.next - run.start for run in self.tried if run.outcome != "done")
        return "done" if given_up >= self.skipped + self.dead_letters else None

    def attempts_in(self, start: int, end: int) -> int:
        """How many attempts the records between these offsets took: the most that one of them
        did."""
        if self.together:
            start, end = self.start, self.next
        runs = (run for run in self.tried if run.start < end and start < run.next)
        return max((run.attempts for run in runs), default=1)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Story)


def tried_runs(
    tries: Mapping[int, tuple[int, RecordOutcome]], start: int, next: int
) -> tuple[Tried, ...]:
    """What a story says of these tries, given by offset: of those within the slice."""
    runs: list[Tried] = []
    for offset in sorted(tries):
        if not start <= offset < next:
            continue
        failed, outcome = tries[offset]
        last = runs[-1] if runs else None
        if last is not None and (last.next, last.failed, last.outcome) == (offset, failed, outcome):
            runs[-1] = Tried(last.start, offset + 1, failed, outcome)
        elif len(runs) < TRIED_MAX:
            runs.append(Tried(offset, offset + 1, failed, outcome))
        else:
            break
    return tuple(runs)


def encoded(story: Story) -> bytes:
    return _encoder.encode(story)


def decoded(data: bytes) -> Story:
    """The story, or `BadStored`."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as why:
        raise BadStored(f"a story that cannot be read: {why}") from None
