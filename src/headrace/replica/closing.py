"""Shards that end, and whose computation has a ``close`` that is still to be called.

The lane that has the shard's handler calls it, and what it makes is still committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.core.computations.dispatch import Duty, DutyState, LostSlice
from headrace.core.ports import Grant
from headrace.lanes.protocol import Work

Kept = TypeVar("Kept")
"""What the dispatcher knows of a duty beside its state, and wants back when it is closed."""


@dataclass(slots=True)
class _Closing(Generic[Kept]):
    state: DutyState
    record: Kept
    lane: int
    work: Work
    is_assigned: bool = False
    """The lane has been told."""
    is_done: bool = False
    is_dropped: bool = False
    """The grant is over: the group need not hear that the shard is let go."""

    def is_late(self, now_s: float) -> bool:
        return self.state.ending_s is not None and now_s >= self.state.ending_s


class ClosingShards(Generic[Kept]):
    """Used under the dispatcher's lock. The numbers of its slices are below zero."""

    def __init__(self, closing: Collection[str]) -> None:
        """``closing`` are the computations that have a ``close``."""
        self._closing = closing
        self._waiting: dict[int, _Closing[Kept]] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return sum(not closing.is_dropped for closing in self._waiting.values())

    def takes(self, state: DutyState, record: Kept, grant: Grant, lanes: Collection[int]) -> bool:
        """Whether the shard is closed first: if one of these lanes has its handler."""
        lane = state.last_lane
        wanted = state.duty.computation in self._closing
        if not wanted or lane is None or lane not in lanes or state.doubtful:
            return False
        self._numbers -= 1
        work = _closing_work(state, grant, self._numbers)
        self._waiting[self._numbers] = _Closing(state, record, lane, work)
        return True

    def next(self, lane: int) -> Work | None:
        """The next shard that this lane is to close."""
        for closing in self._waiting.values():
            if closing.lane == lane and not (closing.is_assigned or closing.is_done):
                closing.is_assigned = True
                return closing.work
        return None

    def lanes(self) -> set[int]:
        """The lanes that are still to be told to close a shard."""
        return {
            closing.lane
            for closing in self._waiting.values()
            if not (closing.is_assigned or closing.is_done)
        }

    def knows(self, number: int) -> bool:
        return number in self._waiting

    def done(self, number: int) -> None:
        if number in self._waiting:
            self._waiting[number].is_done = True

    def lost(self, lane: int) -> None:
        """The lane does not come back: there is nothing left to close in it."""
        for closing in self._waiting.values():
            closing.is_done = closing.is_done or closing.lane == lane

    def drop(self, duty: Duty, token: bytes) -> None:
        """The grant is over; a lane that is closing the shard may go on."""
        for number, closing in list(self._waiting.items()):
            if closing.state.duty == duty and closing.state.token == token:
                closing.is_dropped = True
                if not closing.is_assigned or closing.is_done:
                    del self._waiting[number]

    def overdue(self, now_s: float) -> list[LostSlice]:
        """The shards whose lanes should have closed them by now."""
        return [
            LostSlice(closing.lane, closing.state.duty, closing.state.token)
            for closing in self._waiting.values()
            if closing.is_assigned and not closing.is_done and closing.is_late(now_s)
        ]

    def over(self, now_s: float) -> list[tuple[DutyState, Kept]]:
        """The shards that are closed, or have no more time for it; they are forgotten."""
        ready = [
            number
            for number, closing in self._waiting.items()
            if closing.is_done or closing.state.ending_s is None or closing.is_late(now_s)
        ]
        found = [self._waiting.pop(number) for number in ready]
        return [(closing.state, closing.record) for closing in found if not closing.is_dropped]


def _closing_work(state: DutyState, grant: Grant, number: int) -> Work:
    return Work(
        number=number,
        computation=state.duty.computation,
        stream=grant.stream.name,
        stream_id=grant.stream.id,
        shard=grant.shard,
        token=grant.token,
        epoch=grant.epoch_shown,
        start=state.at,
        end=state.at,
        warm=True,
        closing=True,
    )
