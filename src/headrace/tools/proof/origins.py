"""Origins: the header of an output names the source record it descends from, and which output it
was at each step since."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.errors import BadRecordId
from headrace.core.model import RecordId


class Step(NamedTuple):
    """The last step of an origin."""

    parent: str
    """The origin of the record that the output was made from, or the id of that record."""
    nth: int
    """The number of the output among those made from that record for the same stream."""


def last_step(origin: str) -> Step | None:
    """The last step of an origin; None if the text is no origin."""
    parent, slash, nth = origin.rpartition("/")
    return Step(parent, int(nth)) if slash and parent and nth.isdigit() else None


def plain_id(parent: str) -> RecordId | None:
    """The record, if the parent is a record without an origin of its own."""
    try:
        return RecordId.parse(parent)
    except BadRecordId:  # it is an origin, with steps
        return None
