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
"""How much longer than its time a record may take while its lane says nothing at all."""


@dataclass(slots=True)
class _WatchedSlice:
    """What was last seen of a slice in flight."""

    number: int
    since_s: float
    """Since when the slice has not moved on."""
    cut_s: float
    """When the slice is told to end behind the record in hand."""
    offset: int | None = None
    """The offset of the record in hand; None while records are read or stored."""
    is_heard: bool = False
    """The lane has said how far this slice is."""


class Watchdog:
    """Used by one thread."""

    def __init__(self) -> None:
        self._watched: dict[int, _WatchedSlice] = {}
        """By lane."""

    def look(self, in_flight: Iterable[Assigned], lanes: Lanes, now_s: float) -> Iterator[Assigned]:
        """Look at each slice, one by one; a long one is told to end."""
        by_lane = {assigned.lane: assigned for assigned in in_flight}
        self._watched = {lane: seen for lane, seen in self._watched.items() if lane in by_lane}
        for lane, assigned in by_lane.items():
            watched = self._watched.get(lane)
            if watched is None or watched.number != assigned.number:
                watched = _WatchedSlice(assigned.number, now_s, now_s + LONG_S)
                self._watched[lane] = watched
            progress = lanes.progress(lane)
            watched.is_heard = progress is not None and progress.number == assigned.number
            if progress is not None and watched.is_heard:
                has_moved = progress.offset is None or progress.offset != watched.offset
                watched.offset = progress.offset
                watched.since_s = now_s if has_moved else watched.since_s
            if now_s > watched.cut_s:
                watched.cut_s = now_s + CUT_AGAIN_S
                lanes.cut(lane, assigned.number)
            yield assigned

    def late(
        self, assigned: Assigned, timeout_s: float | None, now_s: float
    ) -> int | Literal["unheard"] | None:
        """The offset of the record that takes longer than this; "unheard" if something does and it
        is not known which record; None if all is well."""
        watched = self._watched[assigned.lane]
        if timeout_s is None:
            return None
        stood_s = now_s - watched.since_s
        if not watched.is_heard:
            return "unheard" if stood_s > timeout_s + UNHEARD_S else None
        if watched.offset is None or stood_s <= timeout_s:
            return None
        return "unheard" if watched.offset == APART else watched.offset
