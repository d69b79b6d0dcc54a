"""What the header of an output tells: the record of a source it descends from, and which output it
was of each step since."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import BadRecordId
from headrace.core.model import RecordId


class Step(NamedTuple):
    """The last step of an origin."""

    parent: str
    """The origin of the record it was made from, or the id of that record."""
    nth: int
    """Which of the outputs made from it, to the same stream."""


def last_step(origin: str) -> Step | None:
    """None if it is no origin."""
    parent, slash, nth = origin.rpartition("/")
    return Step(parent, int(nth)) if slash and parent and nth.isdigit() else None


def plain_id(parent: str) -> RecordId | None:
    """The record, if the parent is one without an origin of its own."""
    try:
        return RecordId.parse(parent)
    except BadRecordId:  # it is an origin, with steps
        return None
