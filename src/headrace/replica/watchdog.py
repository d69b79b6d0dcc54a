"""Looks at the slices in flight from outside: which take long, and which hang."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.core.computations.dispatch import Assigned
from headrace.engines.engine import Lanes
from headrace.lanes.slice_in_hand import APART

LONG_S = 0.25
"""A slice that takes longer ends behind the record in hand."""
CUT_AGAIN_S = 1.0
UNHEARD_S = 1.0
"""So much longer than its time a record may take whose lane says nothing at all."""


@dataclass(slots=True)
class _Seen:
    """What was last seen of a slice in flight."""

    number: int
    since_s: float
    """Since when it stands where it is."""
    cut_s: float
    """When it is told to end behind the record in hand."""
    offset: int | None = None
    """Of the record in hand; None: there is none, it is read or stored."""
    is_known: bool = False
    """Its lane says so."""


class Watchdog:
    """Used by one thread."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, flying: Iterable[Assigned], lanes: Lanes, now_s: float) -> Iterator[Assigned]:
        """At each of them, one by one; long ones are told to end."""
        here = {given.lane: given for given in flying}
        self._seen = {lane: seen for lane, seen in self._seen.items() if lane in here}
        for lane, given in here.items():
            seen = self._seen.get(lane)
            if seen is None or seen.number != given.number:
                seen = self._seen[lane] = _Seen(given.number, now_s, now_s + LONG_S)
            progress = lanes.progress(lane)
            seen.is_known = progress is not None and progress.number == given.number
            if progress is not None and seen.is_known:
                moved = progress.offset is None or progress.offset != seen.offset
                seen.offset, seen.since_s = progress.offset, now_s if moved else seen.since_s
            if now_s > seen.cut_s:
                seen.cut_s = now_s + CUT_AGAIN_S
                lanes.cut(lane, given.number)
            yield given

    def late(
        self, given: Assigned, timeout_s: float | None, now_s: float
    ) -> int | Literal["unheard"] | None:
        """The offset of the record that takes longer than this; "unheard" if something does and it
        is not known which; None if all is well."""
        seen = self._seen[given.lane]
        if timeout_s is None:
            return None
        stood_s = now_s - seen.since_s
        if not seen.is_known:
            return "unheard" if stood_s > timeout_s + UNHEARD_S else None
        if seen.offset is None or stood_s <= timeout_s:
            return None
        return "unheard" if seen.offset == APART else seen.offset
