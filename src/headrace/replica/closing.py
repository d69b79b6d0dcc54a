"""Shards that are about to go, and whose computation wants to say goodbye: its ``close`` is called
by the lane that has its instance, and what that makes is still committed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.core.computations.dispatch import Duty, DutyState, LostSlice
from headrace.core.ports import Grant
from headrace.lanes.protocol import Work

T = TypeVar("T")


@dataclass(slots=True)
class _Closing(Generic[T]):
    hold: DutyState
    charge: T
    lane: int
    work: Work
    given: bool = False
    done: bool = False
    dropped: bool = False
    """Its grant is over: nobody is to be told that it is let go."""


class ClosingShards(Generic[T]):
    """Used under the dispatcher's lock. Its slices have numbers below zero."""

    def __init__(self, closing: Collection[str]) -> None:
        self._closing = closing
        """The computations that want it."""
        self._waiting: dict[int, _Closing[T]] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return sum(not farewell.dropped for farewell in self._waiting.values())

    def takes(self, hold: DutyState, charge: T, grant: Grant, lanes: Collection[int]) -> bool:
        """Whether it is said goodbye to first: if a lane that is there has an instance of it."""
        lane = hold.last_lane
        wanted = hold.duty.computation in self._closing
        if not wanted or lane is None or lane not in lanes or hold.doubtful:
            return False
        self._numbers -= 1
        work = _goodbye(hold, grant, self._numbers)
        self._waiting[self._numbers] = _Closing(hold, charge, lane, work)
        return True

    def next(self, lane: int) -> Work | None:
        """What that lane is to say goodbye to."""
        for farewell in self._waiting.values():
            if farewell.lane == lane and not (farewell.given or farewell.done):
                farewell.given = True
                return farewell.work
        return None

    def lanes(self) -> set[int]:
        """Those that have something to say goodbye to."""
        return {f.lane for f in self._waiting.values() if not (f.given or f.done)}

    def knows(self, number: int) -> bool:
        return number in self._waiting

    def done(self, number: int) -> None:
        if number in self._waiting:
            self._waiting[number].done = True

    def lost(self, lane: int) -> None:
        for farewell in self._waiting.values():
            farewell.done = farewell.done or farewell.lane == lane

    def drop(self, duty: Duty, token: bytes) -> None:
        """Its grant is over; the lane that says goodbye to it may still do so."""
        for number, f in list(self._waiting.items()):
            if f.hold.duty == duty and f.hold.token == token:
                f.dropped = True
                if not f.given or f.done:
                    del self._waiting[number]

    def overdue(self, now_s: float) -> list[LostSlice]:
        """Lanes that say goodbye and find no end."""
        return [
            LostSlice(f.lane, f.hold.duty, f.hold.token)
            for f in self._waiting.values()
            if f.given and not f.done and f.hold.ending_s is not None and now_s >= f.hold.ending_s
        ]

    def over(self, now_s: float) -> list[tuple[DutyState, T]]:
        """Those that are said goodbye to, or had no more time for it."""
        ready = [
            number
            for number, f in self._waiting.items()
            if f.done or f.hold.ending_s is None or now_s >= f.hold.ending_s
        ]
        found = [self._waiting.pop(number) for number in ready]
        return [(f.hold, f.charge) for f in found if not f.dropped]


def _goodbye(hold: DutyState, grant: Grant, number: int) -> Work:
    return Work(
        number=number,
        computation=hold.duty.computation,
        stream=grant.stream.name,
        stream_id=grant.stream.id,
        shard=grant.shard,
        token=grant.token,
        start=hold.at,
        end=hold.at,
        warm=True,
        closing=True,
    )
