"""What a hub tells about one record: the commits that led to it, and those that read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from headrace.core.model import RecordId, Slice
from headrace.lanes.story import RecordOutcome

LineKind = Literal["record", "commit", "trouble", "fact", "note"]

_SLICES_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitStory:
    """One commit: which slice was read by whom, and where the outputs went.

    A story knows slices. Which record of the slice made which output is known only where records
    carry it: dead letters do, others do if lanes run with ``HEADRACE_ORIGINS=1``."""

    group: str
    read: Slice
    """The slice. If it is empty, the outputs were made by ``init``, ``on_timer`` or ``close``."""
    inputs: tuple[RecordId, ...] | None
    """The records of the slice that are meant; None where that is not known."""
    appended: tuple[Slice, ...]
    """All outputs of the commit, without dead letters."""
    dead_letters: tuple[Slice, ...]
    outputs: tuple[RecordId, ...] | None
    """The outputs that were made from `inputs`, or that are asked about; None where that is not
    known."""
    outcome: RecordOutcome | None
    """What became of `inputs`; None where that is not known, or differs between them."""
    attempts: int
    """How many attempts the records that are meant took: the most that one of them did."""
    together: bool
    """Whether the records of the slice were handled in one call, by a batch computation."""
    replica: str
    lane: int
    epoch: int | None
    at_ms: int
    spent_ms: float
    further: tuple[CommitStory, ...] = ()
    """The commits that made the slice, or those that read the outputs: one step further the same
    way."""
    repeated: bool = False
    """Whether `further` is left out because the same commit was told of before."""

    @property
    def at(self) -> datetime:
        """When the commit was made, by the clock of the lane."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)

    def __str__(self) -> str:
        return _text(_lines_of(self, "commit of", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A group whose checkpoint is not behind the record."""

    group: str
    checkpoint: int
    again: bool = False
    """Whether the group has read the record before: its checkpoint was moved back."""
    failed: int = 0
    """How many attempts at the record have failed, those that killed their process included."""
    reason: str = ""
    """Why the last attempt failed."""
    stopped: bool = False
    """Whether the shard was stopped because of the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Untold:
    """A group whose checkpoint is behind the record, though no kept story tells of the commit."""

    group: str
    checkpoint: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStory:
    """What is known about one record: made by `Hub.story`, and printed as an indented text."""

    record: RecordId
    origin: RecordId | None
    """The record of a source that this one comes from, if the record carries that."""
    made_by: tuple[CommitStory, ...]
    """The commit that appended the record. Empty for a record of a producer, and where the story
    is not kept any more."""
    read_by: tuple[CommitStory, ...]
    """The commits that read the record, oldest first: one for each group, and more after a
    rewind or a seek."""
    unread: tuple[Unread, ...]
    untold: tuple[Untold, ...]
    notes: tuple[str, ...]
    """What the story leaves out, and why."""

    def __str__(self) -> str:
        return _text(lines(self))


class Line(NamedTuple):
    """One line of the text, with how far it is indented."""

    depth: int
    kind: LineKind
    text: str


def lines(story: RecordStory) -> Iterator[Line]:
    """The text of a story, line by line."""
    yield Line(0, "record", str(story.record))
    if story.origin is not None:
        yield Line(1, "fact", f"comes from {story.origin}")
    for commit in story.made_by:
        yield from _lines_of(commit, "made by", 1)
    for commit in story.read_by:
        yield from _lines_of(commit, "read by", 1)
    for group in story.unread:
        yield Line(1, "trouble" if group.failed or group.stopped else "fact", _unread(group))
    for other in story.untold:
        yield Line(1, "note", f"read by {other.group}: {other.why}")
    for note in story.notes:
        yield Line(0, "note", note)


def _lines_of(commit: CommitStory, way: str, depth: int) -> Iterator[Line]:
    trouble = commit.outcome in ("skipped", "dead-letter")
    yield Line(depth, "trouble" if trouble else "commit", f"{way} {commit.group} {_from(commit)}")
    yield Line(depth + 1, "fact", _circumstances(commit))
    if commit.appended:
        yield Line(depth + 1, "fact", f"appended {_shown(commit.appended)}")
    if commit.dead_letters:
        yield Line(depth + 1, "fact", f"dead letters {_shown(commit.dead_letters)}")
    if commit.outputs is not None and way != "made by":
        yield Line(depth + 1, "fact", f"of these from it: {_shown(commit.outputs) or 'none'}")
    if commit.repeated:
        yield Line(depth + 1, "fact", f"{way} … as told above")
    for further in commit.further:
        yield from _lines_of(further, way, depth + 1)


def _from(commit: CommitStory) -> str:
    read = commit.read
    if not len(read):
        return f"at {read.stream}:{read.shard}+{read.start}, in a call that is about no record"
    if commit.together:
        return f"from {read}, all together"
    if commit.inputs is None:
        return f"from {read}"
    return f"from {_shown(commit.inputs)} in {read}"


def _circumstances(commit: CommitStory) -> str:
    attempts = _counted(commit.attempts)
    if commit.inputs is None and commit.attempts > 1 and not commit.together:
        attempts = f"up to {attempts}"
    epoch = "" if commit.epoch is None else f", epoch {commit.epoch}"
    time = f"{commit.at:%Y-%m-%dT%H:%M:%S}.{commit.at_ms % 1000:03d}Z"
    became = {"skipped": "skipped", "dead-letter": "a dead letter"}.get(commit.outcome or "", "")
    said = f"{became} after {attempts}" if became else attempts
    return (
        f"{said}; replica {commit.replica}, lane {commit.lane}{epoch}; {time}, "
        f"{commit.spent_ms:g} ms"
    )


def _unread(group: Unread) -> str:
    when = "to be read again" if group.again else "not read yet"
    text = f"{when} by {group.group}: its checkpoint is {group.checkpoint}"
    if group.failed:
        text += f", {_counted(group.failed)} failed" + (f": {group.reason}" if group.reason else "")
    return f"{text}; the shard is stopped" if group.stopped else text


def _counted(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def _shown(several: Sequence[object]) -> str:
    shown = ", ".join(map(str, several[:_SLICES_SHOWN]))
    left = len(several) - _SLICES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


def _text(told: Iterator[Line]) -> str:
    return "\n".join("  " * line.depth + line.text for line in told)
