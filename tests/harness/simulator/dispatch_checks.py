"""What a dispatcher was told, kept a second time and simply, and the invariants, by name: looked at
with every slice that is given and after every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NoReturn

from headrace.core.computations.dispatch import (
    SLICE_RECORDS_MAX,
    WARM_S,
    Assigned,
    Dispatch,
    Duty,
    DutyState,
    Rules,
)
from headrace.core.computations.settings import Allocation
from tests.harness.simulator.checks import Violation
from tests.harness.simulator.world import World

TWO_LANES = "no shard in two lanes"
FREE_LANE = "no free lane while an allowed shard has work"
PARKED = "a parked shard holds no lane"
REVOKED = "revocation ends by its deadline"
FOLLOWS = "slices of a grant follow one another"
CONCURRENCY = "concurrency is kept"
STOPPED = "a stopped shard gets no slice"
DUE = "a slice has something to do"
PLACE = "a static lane keeps to its shards"
WARM = "a shard stays with its lane"
STARVES = "nobody starves"
POLLING = "nobody is woken for nothing"
REST = "left alone, everything is done"

_BLINK_S = 1e-9


@dataclass(slots=True, eq=False)
class Lane:
    number: int
    given: Assigned | None = None
    """What it works on, until its report has come or it is given up."""
    asks: bool = False


@dataclass(slots=True, eq=False)
class Told:
    """What the dispatcher was told about one grant of a duty."""

    duty: Duty
    token: bytes
    at: int
    end: int
    since_s: float
    parked_s: float | None = None
    most: int = 0
    timer_s: float = inf
    called: bool = False
    ending_s: float = inf
    out: str = ""
    """Why nothing of it may be given until it is granted anew."""
    lane: Lane | None = None
    last: Lane | None = None


@dataclass(slots=True)
class Book:
    """Told of everything that the dispatcher is told and gives out; raises `Violation`."""

    world: World
    rules: Mapping[str, Rules]
    lanes_max: int
    allocation: Allocation
    lanes: dict[int, Lane] = field(default_factory=dict)
    told: dict[Duty, Told] = field(default_factory=dict)
    leaving: dict[Lane, float] = field(default_factory=dict)
    """Lanes at work under grants that are over, and until when they are waited for."""
    stopped: set[str] = field(default_factory=set)
    number: int = 0

    # Slices

    def given(self, given: Assigned) -> Lane:
        now_s = self.world.now_s
        duty, lane, told = given.duty, self.lanes[given.lane], self.told.get(given.duty)
        if any(other.given and other.given.duty == duty for other in self.lanes.values()):
            self.fail(TWO_LANES, duty, f"given to lane {given.lane} too")
        if lane.given or not lane.asks:
            self.fail(TWO_LANES, duty, f"given to lane {given.lane}, which is not free")
        if told is None or told.out or duty.computation in self.stopped or told.ending_s < inf:
            self.fail(STOPPED, duty, f"given to lane {given.lane}: {told}")
        if told.parked_s is not None and told.parked_s > now_s:
            self.fail(PARKED, duty, f"given {told.parked_s - now_s:.3f} s before its time")
        self._check_bounds(given, told)
        if self.ready_s(told) > now_s:
            self.fail(DUE, duty, f"nothing to do before {self.ready_s(told):.3f} s: {told}")
        if not self._may(lane, duty):
            self.fail(PLACE, duty, f"given to lane {lane.number}")
        if given.warm != (told.last is lane):
            self.fail(WARM, duty, f"lane {lane.number} is {'warm' if given.warm else 'cold'}")
        if self.is_full(duty.computation):
            self.fail(CONCURRENCY, duty, f"given to lane {lane.number}")
        self._count(given, told)
        lane.given, lane.asks = given, False
        told.lane = told.last = lane
        told.called, told.parked_s = told.timer_s <= now_s, None
        return lane

    def _check_bounds(self, given: Assigned, told: Told) -> None:
        most = self.rules[given.duty.computation].capacity
        if most is None:
            most = told.most or SLICE_RECORDS_MAX
        fits = given.start <= given.end <= min(told.end, given.start + most)
        empty = given.end == given.start < told.end
        right = given.start == told.at and given.token == told.token and given.number > self.number
        if not fits or empty or not right:
            self.fail(FOLLOWS, given.duty, f"{given} of {told}, the last was {self.number}")
        self.number = given.number

    def _count(self, given: Assigned, told: Told) -> None:
        capacity = self.rules[given.duty.computation].capacity
        size = given.end - given.start
        for happened, what in (
            (capacity is not None and size == capacity, "a batch was full"),
            (capacity is not None and 0 < size < capacity, "a batch went as it was"),
            (told.parked_s is not None, "a parked shard came back"),
            (not size and told.parked_s is None, "a timer without a record"),
            (told.timer_s <= self.world.now_s and size > 0, "a timer with records"),
            (told.most and told.end - told.at > told.most, "record by record"),
            (told.last and not given.warm, "a shard changed its lane"),
            (given.warm, "a lane came back to its shard"),
        ):
            self.world.counts[f"sometimes: {what}"] += bool(happened)

    def is_current(self, lane: Lane, given: Assigned) -> bool:
        """Whether a report on it is heeded."""
        return self.lanes.get(lane.number) is lane and lane.given is given

    def ended(self, lane: Lane) -> Told | None:
        """Its slice is reported: the grant, if that is not over."""
        given, lane.given = lane.given, None
        assert given is not None
        if self.leaving.pop(lane, None) is not None:
            return None
        told = self.told[given.duty]
        told.lane = None
        told.since_s = self.world.now_s
        return told

    def lost(self, lane: Lane) -> None:
        """It is given up: what it had in hand is in doubt."""
        del self.lanes[lane.number]
        if lane.given is not None:
            told = self.ended(lane)
            if told is not None:
                told.out = "doubtful"

    def let_go(self, hold: DutyState) -> None:
        told = self.told.pop(hold.duty)
        if told.lane is not None:
            self.fail(TWO_LANES, hold.duty, f"let go while lane {told.lane.number} works on it")
        if told.ending_s == inf or told.token != hold.token:
            self.fail(REVOKED, hold.duty, "let go though nobody asked for it")

    def given_up(self, lane: Lane) -> None:
        """It was found overdue."""
        told = self.told.get(lane.given.duty) if lane.given else None
        until_s = told.ending_s if told and told.lane is lane else self.leaving.get(lane, inf)
        if self.world.now_s < until_s:
            duty = lane.given.duty if lane.given else None
            self.fail(REVOKED, duty, f"lane {lane.number} given up before {until_s:.3f} s")

    # Everything

    def ready_s(self, told: Told) -> float:
        """From when on there is something to do."""
        if told.parked_s is not None:
            return max(told.parked_s, told.since_s)
        times = [inf]
        if told.end > told.at:
            rules = self.rules[told.duty.computation]
            waits = rules.capacity is not None and told.end - told.at < rules.capacity
            times.append(told.since_s + (rules.threshold_s if waits else 0.0))
        times.append(max(told.timer_s, told.since_s))
        return min(times)

    def is_full(self, computation: str) -> bool:
        most = self.rules[computation].concurrency
        given = [lane.given for lane in self.lanes.values() if lane.given]
        return most is not None and most <= sum(g.duty.computation == computation for g in given)

    def _may(self, lane: Lane, duty: Duty) -> bool:
        places = self.lanes_max
        return self.allocation == "pool" or lane.number % places == duty.shard.index % places

    def _ready(self) -> list[tuple[float, Told]]:
        """What has work and may be given, the lanes aside."""
        left = {lane.given.duty for lane in self.leaving if lane.given}
        full = {name for name in self.rules if self.is_full(name)}
        ready = [
            (self.ready_s(told), told)
            for told in self.told.values()
            if not (told.out or told.lane or told.ending_s < inf or told.duty in left)
            and told.duty.computation not in self.stopped
        ]
        due = [(since_s, told) for since_s, told in ready if since_s <= self.world.now_s]
        free = any(lane.asks for lane in self.lanes.values())
        allowed = [found for found in due if found[1].duty.computation not in full]
        self.world.counts["sometimes: concurrency held a shard back"] += free and due != allowed
        return allowed

    def look(self, dispatch: Dispatch, dealt: list[tuple[Assigned, float, Lane | None]]) -> None:
        """After a step: ``dealt`` is what was given, since when it waited, and who had it."""
        now_s = self.world.now_s
        ready = self._ready()
        asking = [lane for lane in self.lanes.values() if lane.asks]
        for _, told in ready:
            for lane in asking:
                if self._may(lane, told.duty):
                    self.fail(FREE_LANE, told.duty, f"lane {lane.number} is free: {told}")
                self.world.counts["sometimes: a static lane let another's shard wait"] += 1
        for given, since_s, last in dealt:
            if last in asking:
                self.fail(WARM, given.duty, f"lane {given.lane} got it, not the one that had it")
            for other_s, told in ready:
                longer_s = since_s - other_s
                if self._may(self.lanes[given.lane], told.duty) and longer_s > WARM_S + _BLINK_S:
                    self.fail(STARVES, told.duty, f"{given.duty} went before, {longer_s:.3f} s")
        in_hand = {given.duty: given.token for given in dispatch.in_hand.values()}
        for duty, told in self.told.items():
            parked = told.parked_s is not None and told.parked_s > now_s
            if parked and in_hand.get(duty) == told.token:
                self.fail(PARKED, duty, f"parked until {told.parked_s}, and in hand")
            if told.ending_s < inf and (told.lane is None or now_s >= told.ending_s):
                self.fail(REVOKED, duty, f"to end by {told.ending_s:.3f} s: {told}")
        for lane, until_s in self.leaving.items():
            if now_s >= until_s:
                self.fail(REVOKED, lane.given.duty if lane.given else None, f"{lane} stays")
        if dispatch.wake_s() <= now_s:
            self.fail(POLLING, None, f"to be woken at {dispatch.wake_s():.3f} s again")

    def fail(self, invariant: str, duty: Duty | None, why: str) -> NoReturn:
        self.world.note(None, "VIOLATION", invariant, duty or "", why)
        raise Violation(invariant, duty.shard if duty else None, why)
