"""The invariants of dispatch, by name, checked with every assigned slice and after every step.

They are checked against a simple model of what the dispatch machine was told."""

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
STARVES = "no shard starves"
POLLING = "no wake-up is for nothing"
REST = "left alone, everything is done"

_BLINK_S = 1e-9


@dataclass(slots=True, eq=False)
class SimLane:
    number: int
    assigned: Assigned | None = None
    """The slice it works on, until the report has come or the lane is given up."""
    asks: bool = False


@dataclass(slots=True, eq=False)
class SimGrant:
    """What the dispatch machine was told about one grant of a duty."""

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
    """Why no slice may be assigned until the duty is granted anew; empty if slices may be."""
    lane: SimLane | None = None
    last: SimLane | None = None


@dataclass(slots=True)
class DispatchModel:
    """Is told what the dispatch machine is told and assigns, and raises `Violation`."""

    world: World
    rules: Mapping[str, Rules]
    lanes_max: int
    allocation: Allocation
    lanes: dict[int, SimLane] = field(default_factory=dict)
    grants: dict[Duty, SimGrant] = field(default_factory=dict)
    leaving: dict[SimLane, float] = field(default_factory=dict)
    """Lanes that work under grants that are over, and how long they are waited for."""
    stopped: set[str] = field(default_factory=set)
    number: int = 0

    # Slices

    def assign(self, assigned: Assigned) -> SimLane:
        now_s = self.world.now_s
        duty, lane, grant = assigned.duty, self.lanes[assigned.lane], self.grants.get(assigned.duty)
        if any(other.assigned and other.assigned.duty == duty for other in self.lanes.values()):
            self.fail(TWO_LANES, duty, f"assigned to lane {assigned.lane} too")
        if lane.assigned or not lane.asks:
            self.fail(TWO_LANES, duty, f"assigned to lane {assigned.lane}, which is not free")
        if grant is None or grant.out or duty.computation in self.stopped or grant.ending_s < inf:
            self.fail(STOPPED, duty, f"assigned to lane {assigned.lane}: {grant}")
        if grant.parked_s is not None and grant.parked_s > now_s:
            self.fail(PARKED, duty, f"assigned {grant.parked_s - now_s:.3f} s before its time")
        self._check_bounds(assigned, grant)
        if self.ready_s(grant) > now_s:
            self.fail(DUE, duty, f"nothing to do before {self.ready_s(grant):.3f} s: {grant}")
        if not self._may(lane, duty):
            self.fail(PLACE, duty, f"assigned to lane {lane.number}")
        if assigned.warm != (grant.last is lane):
            self.fail(WARM, duty, f"lane {lane.number} is {'warm' if assigned.warm else 'cold'}")
        if self.is_full(duty.computation):
            self.fail(CONCURRENCY, duty, f"assigned to lane {lane.number}")
        self._count(assigned, grant)
        lane.assigned, lane.asks = assigned, False
        grant.lane = grant.last = lane
        grant.called, grant.parked_s = grant.timer_s <= now_s, None
        return lane

    def _check_bounds(self, assigned: Assigned, grant: SimGrant) -> None:
        most = self.rules[assigned.duty.computation].capacity
        if most is None:
            most = grant.most or SLICE_RECORDS_MAX
        fits = assigned.start <= assigned.end <= min(grant.end, assigned.start + most)
        empty = assigned.end == assigned.start < grant.end
        right = (
            assigned.start == grant.at
            and assigned.token == grant.token
            and assigned.number > self.number
        )
        if not fits or empty or not right:
            self.fail(FOLLOWS, assigned.duty, f"{assigned} of {grant}, the last was {self.number}")
        self.number = assigned.number

    def _count(self, assigned: Assigned, grant: SimGrant) -> None:
        capacity = self.rules[assigned.duty.computation].capacity
        size = assigned.end - assigned.start
        for happened, what in (
            (capacity is not None and size == capacity, "a batch was full"),
            (capacity is not None and 0 < size < capacity, "a batch went as it was"),
            (grant.parked_s is not None, "a parked shard came back"),
            (not size and grant.parked_s is None, "a timer without a record"),
            (grant.timer_s <= self.world.now_s and size > 0, "a timer with records"),
            (grant.most and grant.end - grant.at > grant.most, "record by record"),
            (grant.last and not assigned.warm, "a shard changed its lane"),
            (assigned.warm, "a lane came back to its shard"),
        ):
            self.world.counts[f"sometimes: {what}"] += bool(happened)

    def is_current(self, lane: SimLane, assigned: Assigned) -> bool:
        """Whether the lane still works on the slice: only then its report counts."""
        return self.lanes.get(lane.number) is lane and lane.assigned is assigned

    def ended(self, lane: SimLane) -> SimGrant | None:
        """The slice of a lane is reported. Returns the grant, or None if it is over."""
        assigned, lane.assigned = lane.assigned, None
        assert assigned is not None
        if self.leaving.pop(lane, None) is not None:
            return None
        grant = self.grants[assigned.duty]
        grant.lane = None
        grant.since_s = self.world.now_s
        return grant

    def lost(self, lane: SimLane) -> None:
        """The lane is given up: the outcome of its slice is unknown."""
        del self.lanes[lane.number]
        if lane.assigned is not None:
            grant = self.ended(lane)
            if grant is not None:
                grant.out = "doubtful"

    def let_go(self, state: DutyState) -> None:
        grant = self.grants.pop(state.duty)
        if grant.lane is not None:
            self.fail(TWO_LANES, state.duty, f"let go while lane {grant.lane.number} works on it")
        if grant.ending_s == inf or grant.token != state.token:
            self.fail(REVOKED, state.duty, "let go though it was not revoked")

    def given_up(self, lane: SimLane) -> None:
        """The dispatch machine found the lane overdue."""
        grant = self.grants.get(lane.assigned.duty) if lane.assigned else None
        until_s = grant.ending_s if grant and grant.lane is lane else self.leaving.get(lane, inf)
        if self.world.now_s < until_s:
            duty = lane.assigned.duty if lane.assigned else None
            self.fail(REVOKED, duty, f"lane {lane.number} assigned up before {until_s:.3f} s")

    # The whole state

    def ready_s(self, grant: SimGrant) -> float:
        """The time from which the grant has work."""
        if grant.parked_s is not None:
            return max(grant.parked_s, grant.since_s)
        times = [inf]
        if grant.end > grant.at:
            rules = self.rules[grant.duty.computation]
            waits = rules.capacity is not None and grant.end - grant.at < rules.capacity
            times.append(grant.since_s + (rules.threshold_s if waits else 0.0))
        times.append(max(grant.timer_s, grant.since_s))
        return min(times)

    def is_full(self, computation: str) -> bool:
        most = self.rules[computation].concurrency
        assigned = [lane.assigned for lane in self.lanes.values() if lane.assigned]
        return most is not None and most <= sum(g.duty.computation == computation for g in assigned)

    def _may(self, lane: SimLane, duty: Duty) -> bool:
        places = self.lanes_max
        return self.allocation == "pool" or lane.number % places == duty.shard.index % places

    def _ready(self) -> list[tuple[float, SimGrant]]:
        """The grants that have work and may be assigned, if a lane is free."""
        left = {lane.assigned.duty for lane in self.leaving if lane.assigned}
        full = {name for name in self.rules if self.is_full(name)}
        ready = [
            (self.ready_s(grant), grant)
            for grant in self.grants.values()
            if not (grant.out or grant.lane or grant.ending_s < inf or grant.duty in left)
            and grant.duty.computation not in self.stopped
        ]
        due = [(since_s, grant) for since_s, grant in ready if since_s <= self.world.now_s]
        free = any(lane.asks for lane in self.lanes.values())
        allowed = [found for found in due if found[1].duty.computation not in full]
        self.world.counts["sometimes: concurrency held a shard back"] += free and due != allowed
        return allowed

    def look(self, dispatch: Dispatch, dealt: list[tuple[Assigned, float, SimLane | None]]) -> None:
        """Check a step. ``dealt`` has each assigned slice, since when its shard had waited, and the
        lane that had it before."""
        now_s = self.world.now_s
        ready = self._ready()
        asking = [lane for lane in self.lanes.values() if lane.asks]
        for _, grant in ready:
            for lane in asking:
                if self._may(lane, grant.duty):
                    self.fail(FREE_LANE, grant.duty, f"lane {lane.number} is free: {grant}")
                self.world.counts["sometimes: a static lane let another's shard wait"] += 1
        for assigned, since_s, last in dealt:
            if last in asking:
                self.fail(
                    WARM, assigned.duty, f"lane {assigned.lane} got it, not the one that had it"
                )
            for other_s, grant in ready:
                longer_s = since_s - other_s
                if (
                    self._may(self.lanes[assigned.lane], grant.duty)
                    and longer_s > WARM_S + _BLINK_S
                ):
                    self.fail(STARVES, grant.duty, f"{assigned.duty} went before, {longer_s:.3f} s")
        in_hand = {assigned.duty: assigned.token for assigned in dispatch.in_hand.values()}
        for duty, grant in self.grants.items():
            parked = grant.parked_s is not None and grant.parked_s > now_s
            if parked and in_hand.get(duty) == grant.token:
                self.fail(PARKED, duty, f"parked until {grant.parked_s}, and in hand")
            if grant.ending_s < inf and (grant.lane is None or now_s >= grant.ending_s):
                self.fail(REVOKED, duty, f"to end by {grant.ending_s:.3f} s: {grant}")
        for lane, until_s in self.leaving.items():
            if now_s >= until_s:
                self.fail(REVOKED, lane.assigned.duty if lane.assigned else None, f"{lane} stays")
        if dispatch.wake_s() <= now_s:
            self.fail(POLLING, None, f"to be woken at {dispatch.wake_s():.3f} s again")

    def fail(self, invariant: str, duty: Duty | None, why: str) -> NoReturn:
        self.world.note(None, "VIOLATION", invariant, duty or "", why)
        raise Violation(invariant, duty.shard if duty else None, why)
