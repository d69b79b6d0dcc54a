"""Which slice a free lane gets next: grants, slices in flight, parked and ending shards in, slices
out.

A *duty* is one shard for one computation. Of each there is at most one slice in flight, so order
inside a shard is kept whatever lane works on it. Lanes ask; `deal` gives out what it can: to each
waiting lane the duty that waits longest, rather one that the lane had before. Every slice has a
number, and who reports another one than the lane has in hand comes too late: nothing changes.

A duty is, in this order of precedence,

    ending     its shard shall be let go: no slice is given, the one in flight may end
    doubtful   the lane of its last slice was lost: nothing until the shard is granted anew
    stopped    nothing until the shard is granted anew
    in flight  a lane has a slice of it
    parked     nothing until its time has come
    ready      there is something to do
    idle       there is not
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from penstock.core.model import ShardId

Allocation = Literal["pool", "static"]

SLICE_S = 0.1
"""About so much work is one slice."""
SLICE_RECORDS_MAX = 8_192
SLICE_RECORDS_FIRST = 64
WARM_S = 0.1
"""A lane takes a shard that it had before rather than one that has waited so much longer."""


class Duty(NamedTuple):
    """One shard for one computation."""

    computation: str
    shard: ShardId

    def __str__(self) -> str:
        return f"{self.computation} {self.shard}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How slices of one computation are given out."""

    concurrency: int | None = None
    """So many lanes at once; None: all."""
    capacity: int | None = None
    """Of a batch computation: a slice is one batch."""
    threshold_s: float = 0.0
    """So long a batch may wait to be full."""


class Given(NamedTuple):
    """A slice for a lane."""

    lane: int
    number: int
    duty: Duty
    token: bytes
    """Of the grant under which it is worked on."""
    start: int
    end: int
    warm: bool
    """The lane had the last slice of this grant: what it remembers of the shard is true."""


class Lost(NamedTuple):
    """A slice whose lane does not come back: whoever works under this token is to be fenced."""

    lane: int
    duty: Duty
    token: bytes


@dataclass(slots=True)
class Hold:
    """How a duty stands."""

    duty: Duty
    token: bytes
    at: int
    """Where the next slice begins: the checkpoint, unless one is in flight."""
    end: int
    """Of the shard, as far as is known."""
    since_s: float
    """Since when it waits."""
    given: Given | None = None
    last_lane: int | None = None
    """Which lane had its last slice, under this grant."""
    parked_s: float | None = None
    """Until when it is parked."""
    timer_s: float = inf
    """When it is to be called although there may be no record."""
    ending_s: float | None = None
    """When it is let go at the latest."""
    doubtful: bool = False
    stopped: bool = False
    single: bool = False
    """Record by record."""


@dataclass(slots=True)
class Pace:
    """What a record of one computation costs, and so how many are one slice."""

    records: int = SLICE_RECORDS_FIRST

    def took(self, records: int, spent_s: float) -> None:
        """The next slice fits what this one has shown, and grows slowly."""
        if records <= 0:
            return
        fitting = int(records * SLICE_S / max(spent_s, 1e-6))
        most = min(self.records * 2, SLICE_RECORDS_MAX) if records >= self.records else self.records
        self.records = max(1, min(fitting, most))


@dataclass(slots=True)
class Dispatch:
    """Times are monotonic seconds, given with each call; nothing else is looked at."""

    rules: Mapping[str, Rules]
    lanes: int
    """How many places for lanes there are, for static allocation."""
    allocation: Allocation = "pool"
    holds: dict[Duty, Hold] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)
    """Lanes that have asked, in the order they did."""
    in_hand: dict[int, Given] = field(default_factory=dict)
    """What each lane works on."""
    leaving: dict[int, float] = field(default_factory=dict)
    """Lanes that work under a grant that is over, and when they are given up."""
    stopped: set[str] = field(default_factory=set)
    """Computations that get no slices."""
    _busy: dict[str, int] = field(default_factory=dict)
    _pace: dict[str, Pace] = field(default_factory=dict)
    _numbers: int = 0

    # Shards come and go

    def begin(
        self,
        duty: Duty,
        token: bytes,
        at: int,
        end: int,
        now_s: float,
        *,
        parked_s: float | None = None,
        single: bool = False,
    ) -> None:
        """Work on it may begin under this token: now, or when its time has come."""
        assert duty not in self.holds, f"{duty} has begun already"
        self.holds[duty] = Hold(duty, token, at, end, now_s, parked_s=parked_s, single=single)

    def revoke(self, duty: Duty, token: bytes, until_s: float) -> None:
        """It shall end by then; told twice, the earlier time stands."""
        hold = self._under(duty, token)
        if hold is not None:
            hold.ending_s = until_s if hold.ending_s is None else min(until_s, hold.ending_s)

    def lose(self, duty: Duty, token: bytes, until_s: float) -> None:
        """Its grant is over, nothing of it can be committed. A lane that still works on it is
        waited for until then, and nothing of the shard is given out meanwhile."""
        hold = self._under(duty, token)
        if hold is not None:
            del self.holds[duty]
            if hold.given is not None:
                self.leaving[hold.given.lane] = until_s

    def gone(self, now_s: float) -> list[Hold]:
        """Those that shall end and have: nothing is in flight. They are forgotten."""
        found = [h for h in self.holds.values() if h.ending_s is not None and h.given is None]
        for hold in found:
            del self.holds[hold.duty]
        return found

    def overdue(self, now_s: float) -> list[Lost]:
        """Slices in flight of what should have ended by now; their lanes are lost."""
        late = [
            hold.given.lane
            for hold in self.holds.values()
            if hold.ending_s is not None and hold.given is not None and now_s >= hold.ending_s
        ]
        late += [lane for lane, until_s in self.leaving.items() if now_s >= until_s]
        return [lost for lane in late if (lost := self.lane_lost(lane)) is not None]

    # What there is to do

    def ends(self, ends: Mapping[Duty, int], now_s: float) -> None:
        """So far the shards go by now."""
        for duty, end in ends.items():
            hold = self.holds.get(duty)
            if hold is not None and end > hold.end:
                if hold.at >= hold.end and hold.given is None:
                    hold.since_s = now_s  # it was idle: it waits from now on
                hold.end = end

    def stop(self, computation: str) -> None:
        """No more slices of a computation; those in flight end."""
        self.stopped.add(computation)

    def start(self, computation: str) -> None:
        self.stopped.discard(computation)

    # Lanes

    def ask(self, lane: int) -> None:
        """The lane is free."""
        assert lane not in self.in_hand, f"lane {lane} asks with a slice in hand"
        self.waiting[lane] = None

    def withdraw(self, lane: int) -> None:
        """It does not wait any more."""
        self.waiting.pop(lane, None)

    def lane_lost(self, lane: int) -> Lost | None:
        """It does not come back; what it had in hand is in doubt until it is granted anew."""
        self.withdraw(lane)
        given = self.in_hand.get(lane)
        if given is None:
            return None
        hold = self._released(given)
        if hold is not None:
            hold.doubtful = True
        return Lost(lane, given.duty, given.token)

    def deal(self, now_s: float) -> list[Given]:
        """Slices for the lanes that wait."""
        dealt: list[Given] = []
        if not self.waiting:
            return dealt
        ready = [hold for hold in self.holds.values() if self._is_ready(hold, now_s)]
        while ready:
            pairs = [
                (self._wish(lane, hold), -place, lane, hold)
                for place, lane in enumerate(self.waiting)
                for hold in ready
                if self._may(lane, hold)
            ]
            if not pairs:
                break
            _, _, lane, hold = max(pairs, key=lambda pair: pair[:2])
            dealt.append(self._give(lane, hold))
            ready.remove(hold)
        return dealt

    def wake_s(self) -> float:
        """When something becomes ready that is not, if nothing is reported until then."""
        times = [inf, *self.leaving.values()]
        for hold in self.holds.values():
            if hold.given is not None:
                if hold.ending_s is not None:
                    times.append(hold.ending_s)
            elif not (hold.ending_s is not None or hold.doubtful or hold.stopped):
                times.append(self._ready_s(hold))
        return min(times)

    # Reports

    def done(
        self, lane: int, number: int, next: int, now_s: float, *, records: int, spent_s: float
    ) -> Hold | None:
        """Everything before ``next`` is committed; None if this comes too late."""
        hold = self._reported(lane, number, next, now_s)
        if hold is not None:
            self._pace_of(hold.duty.computation).took(records, spent_s)
        return hold

    def park(self, lane: int, number: int, next: int, until_s: float, now_s: float) -> Hold | None:
        """The record at ``next`` has failed: nothing of the shard until its time has come."""
        hold = self._reported(lane, number, next, now_s)
        if hold is not None:
            hold.parked_s = until_s
        return hold

    def stop_shard(self, lane: int, number: int, next: int, now_s: float) -> Hold | None:
        """The record at ``next`` has failed for good: nothing until it is granted anew."""
        hold = self._reported(lane, number, next, now_s)
        if hold is not None:
            hold.stopped = True
        return hold

    def doubt(self, lane: int, number: int, now_s: float) -> Hold | None:
        """It could not be told whether the slice was committed, or it was refused: nothing until
        the shard is granted anew."""
        hold = self._reported(lane, number, None, now_s)
        if hold is not None:
            hold.doubtful = True
        return hold

    def single(self, duty: Duty, single: bool) -> None:
        """Whether it goes on record by record."""
        hold = self.holds.get(duty)
        if hold is not None:
            hold.single = single

    def timer(self, duty: Duty, at_s: float) -> None:
        """It is to be called at that time, although there may be no record."""
        hold = self.holds.get(duty)
        if hold is not None:
            hold.timer_s = at_s

    # Below

    def _under(self, duty: Duty, token: bytes) -> Hold | None:
        hold = self.holds.get(duty)
        return hold if hold is not None and hold.token == token else None

    def _ready_s(self, hold: Hold) -> float:
        """From when on there is something to do; never if it must come from elsewhere."""
        waits = self.rules[hold.duty.computation]
        left = hold.end - hold.at
        at_s = inf
        if left > 0:
            full = waits.capacity is None or left >= waits.capacity
            at_s = hold.since_s if full else hold.since_s + waits.threshold_s
        at_s = min(at_s, hold.timer_s)
        return at_s if hold.parked_s is None else max(at_s, hold.parked_s)

    def _is_ready(self, hold: Hold, now_s: float) -> bool:
        if hold.given is not None or hold.ending_s is not None or hold.doubtful or hold.stopped:
            return False
        if self.leaving and any(self.in_hand[lane].duty == hold.duty for lane in self.leaving):
            return False
        return hold.duty.computation not in self.stopped and self._ready_s(hold) <= now_s

    def _may(self, lane: int, hold: Hold) -> bool:
        most = self.rules[hold.duty.computation].concurrency
        if most is not None and self._busy.get(hold.duty.computation, 0) >= most:
            return False
        return self.allocation == "pool" or hold.duty.shard.index % self.lanes == lane % self.lanes

    def _wish(self, lane: int, hold: Hold) -> float:
        """How much a lane wants it: the longer it waits, and if the lane had it before."""
        return -hold.since_s + (WARM_S if hold.last_lane == lane else 0.0)

    def _give(self, lane: int, hold: Hold) -> Given:
        self._numbers += 1
        waits = self.rules[hold.duty.computation]
        most = waits.capacity or self._pace_of(hold.duty.computation).records
        most = 1 if hold.single and waits.capacity is None else most
        given = Given(
            lane,
            self._numbers,
            hold.duty,
            hold.token,
            hold.at,
            min(hold.end, hold.at + most),
            hold.last_lane == lane,
        )
        del self.waiting[lane]
        self.in_hand[lane] = given
        self._busy[hold.duty.computation] = self._busy.get(hold.duty.computation, 0) + 1
        hold.given, hold.last_lane = given, lane
        hold.parked_s, hold.timer_s = None, inf
        return given

    def _reported(self, lane: int, number: int, next: int | None, now_s: float) -> Hold | None:
        given = self.in_hand.get(lane)
        if given is None or given.number != number:
            return None
        hold = self._released(given)
        if hold is None:
            return None
        if next is not None:
            hold.at = next
            hold.end = max(hold.end, next)
        hold.since_s = now_s
        return hold

    def _released(self, given: Given) -> Hold | None:
        """The lane has it in hand no more; the hold, if it is still the one it was given of."""
        del self.in_hand[given.lane]
        self.leaving.pop(given.lane, None)
        self._busy[given.duty.computation] -= 1
        hold = self.holds.get(given.duty)
        if hold is None or hold.given is not given:
            return None
        hold.given = None
        return hold

    def _pace_of(self, computation: str) -> Pace:
        return self._pace.setdefault(computation, Pace())
