"""Which slice a free lane gets next: grants, slices in flight, parked and ending shards in, slices
out.

A *duty* is one shard for one computation. Of each duty at most one slice is in flight, so order
inside a shard is kept whatever lane works on it. Lanes ask; `deal` gives out slices: each waiting
lane gets the duty that waits longest, and rather one that the lane had before. Every slice has a
number. A report about another slice than the lane has in hand comes too late, and changes nothing.

A duty is, in this order of precedence,

    ending     its shard shall be let go: no slice is given, the one in flight may end
    doubtful   its last slice may be committed or not: nothing until the shard is granted anew
    stopped    nothing until the shard is granted anew
    in flight  a lane has a slice of it
    held back  its computation is stopped, or a lane still works on it under a grant that is over
    parked     what has failed is tried again when its time has come, not before
    ready      there is something to do
    idle       there is not; or less than a batch, which may still wait
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple

from headrace.core.computations.settings import Allocation
from headrace.core.model import ShardId

State = Literal[
    "ending", "doubtful", "stopped", "in flight", "held back", "parked", "ready", "idle"
]  # fmt: skip

SLICE_S = 0.1
"""How long the work on one slice takes, about."""
SLICE_RECORDS_MAX = 8_192
SLICE_RECORDS_FIRST = 64
ALONE_S = 1.0
"""How long other slices are held back for one that goes alone; one that takes longer may be
hung."""
ALONE_S_MAX = 30.0
"""How long a slice waits for its turn to go alone."""
WARM_S = 0.1
"""A shard that a free lane had before goes ahead of shards that have waited up to this much
longer."""


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
    """How many lanes may work for it at once; None: all."""
    capacity: int | None = None
    """The size of a batch, for a batch computation: each slice is one batch, even where other
    computations go record by record."""
    threshold_s: float = 0.0
    """How long a batch may wait to be full."""
    sticky: bool = False
    """A shard stays with the lane that had it first, as long as that lane lives."""


class Assigned(NamedTuple):
    """A slice for a lane."""

    lane: int
    number: int
    duty: Duty
    token: bytes
    """The token of the grant under which the lane works on it."""
    start: int
    end: int
    warm: bool
    """The lane had the last slice of this grant: what it remembers of the shard is true."""


class LostSlice(NamedTuple):
    """A slice whose lane does not come back: work under its token is to be fenced."""

    lane: int
    duty: Duty
    token: bytes


@dataclass(slots=True)
class DutyState:
    """How a duty stands."""

    duty: Duty
    token: bytes
    at: int
    """Where the next slice begins: the checkpoint, unless one is in flight."""
    end: int
    """The end of the shard, as far as it is known."""
    since_s: float
    """Since when the duty waits: its last report, or the first record after that."""
    given: Assigned | None = None
    """The slice in flight."""
    last_lane: int | None = None
    """The lane that had the last slice under this grant."""
    parked_s: float | None = None
    """Until when the duty is parked."""
    timer_s: float = inf
    """When the handler is to be called, even if there is no record."""
    called: bool = False
    """The slice in flight includes that call."""
    ending_s: float | None = None
    """When the shard is let go at the latest; None: it is not ending."""
    doubtful: bool = False
    stopped: bool = False
    most: int = 0
    """How many records one slice may have; 0: as many as fit."""
    ready_s: float = inf
    """From when on there is something to do; never, if time alone does not bring it. It follows
    from all the fields above."""


@dataclass(slots=True)
class Pace:
    """How many records of one computation are one slice, learnt from what records have cost."""

    records: int = SLICE_RECORDS_FIRST

    def took(self, records: int, spent_s: float) -> None:
        """The next slice fits what this one has shown, and grows slowly."""
        if records <= 0 or (records < self.records and spent_s <= SLICE_S):
            return  # there was no more to do, which does not show how much would fit
        fitting = int(records * SLICE_S / max(spent_s, 1e-6))
        self.records = max(1, min(fitting, self.records * 2, SLICE_RECORDS_MAX))


@dataclass(slots=True)
class Dispatch:
    """Times are monotonic seconds, given with each call; nothing else is looked at."""

    rules: Mapping[str, Rules]
    lanes: int
    """How many places for lanes there are, for static allocation."""
    allocation: Allocation = "pool"
    alone: bool = False
    """The lanes share a process. A duty that goes record by record, because a record may kill the
    process, goes while no other lane works; but work must not stand still for that."""
    holds: dict[Duty, DutyState] = field(default_factory=dict)
    waiting: dict[int, None] = field(default_factory=dict)
    """The lanes that have asked, in the order in which they asked."""
    in_hand: dict[int, Assigned] = field(default_factory=dict)
    """What each lane works on."""
    leaving: dict[int, float] = field(default_factory=dict)
    """Lanes that work under a grant that is over, and when they are given up."""
    stopped: set[str] = field(default_factory=set)
    """Computations that get no slices."""
    _given_s: dict[int, float] = field(default_factory=dict)
    """Since when each lane has its slice in hand."""
    _pace: dict[str, Pace] = field(default_factory=dict)
    _numbers: int = 0
    _dealt_s: float = -inf
    """When `deal` was last called: a duty that was ready then waits for a lane, not for a time."""

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
        most: int = 0,
    ) -> None:
        """Work on the duty may begin under this token: now, or at ``parked_s``."""
        assert duty not in self.holds, f"{duty} has begun already"
        hold = DutyState(duty, token, at, max(at, end), now_s, parked_s=parked_s, most=most)
        self.holds[duty] = self._changed(hold)

    def revoke(self, duty: Duty, token: bytes, until_s: float) -> None:
        """The duty shall end by this time. If it is revoked twice, the earlier time stands."""
        hold = self._under(duty, token)
        if hold is not None:
            hold.ending_s = until_s if hold.ending_s is None else min(until_s, hold.ending_s)
            self._changed(hold)

    def lose(self, duty: Duty, token: bytes, until_s: float) -> None:
        """The duty's grant is over: nothing can be committed under it. A lane that still works on
        it has until ``until_s``, and no slice of the shard is given out meanwhile."""
        hold = self._under(duty, token)
        if hold is not None:
            del self.holds[duty]
            if hold.given is not None:
                ending_s = inf if hold.ending_s is None else hold.ending_s
                self.leaving[hold.given.lane] = min(until_s, ending_s)

    def gone(self) -> list[DutyState]:
        """The ending duties of which no slice is in flight. They are forgotten here."""
        found = [h for h in self.holds.values() if h.ending_s is not None and h.given is None]
        for hold in found:
            del self.holds[hold.duty]
        return found

    def overdue(self, now_s: float) -> list[LostSlice]:
        """The slices in flight of duties that should have ended by now. Their lanes are lost."""
        late = [
            hold.given.lane
            for hold in self.holds.values()
            if hold.ending_s is not None and hold.given is not None and now_s >= hold.ending_s
        ]
        late += [lane for lane, until_s in self.leaving.items() if now_s >= until_s]
        return [lost for lane in late if (lost := self.lane_lost(lane)) is not None]

    # What there is to do

    def ends(self, ends: Mapping[Duty, int], now_s: float) -> None:
        """The ends of shards, as they are now."""
        for duty, end in ends.items():
            hold = self.holds.get(duty)
            if hold is not None and end > hold.end:
                if hold.at >= hold.end and hold.given is None:
                    hold.since_s = now_s  # it was idle: it waits from now on
                hold.end = end
                self._changed(hold)

    def stop(self, computation: str) -> None:
        """Give out no more slices of a computation; those in flight may end."""
        self.stopped.add(computation)

    def start(self, computation: str) -> None:
        """Give out slices of the computation again."""
        self.stopped.discard(computation)

    # Lanes

    def ask(self, lane: int) -> None:
        """The lane is free."""
        assert lane not in self.in_hand, f"lane {lane} asks with a slice in hand"
        self.waiting[lane] = None

    def withdraw(self, lane: int) -> None:
        """The lane does not wait for a slice any more."""
        self.waiting.pop(lane, None)

    def lane_lost(self, lane: int) -> LostSlice | None:
        """The lane does not come back. The duty it had in hand is doubtful until the shard is
        granted anew."""
        self.withdraw(lane)
        for hold in self.holds.values():
            if hold.last_lane == lane:
                hold.last_lane = None  # a lane that gets this number later remembers nothing
        given = self.in_hand.get(lane)
        if given is None:
            return None
        worked_on = self._released(given)
        if worked_on is not None:
            worked_on.doubtful = True
            self._changed(worked_on)
        return LostSlice(lane, given.duty, given.token)

    def deal(self, now_s: float) -> list[Assigned]:
        """Slices for the lanes that wait."""
        self._dealt_s = now_s
        dealt: list[Assigned] = []
        while self.waiting and (found := self._next(now_s)) is not None:
            dealt.append(self._give(*found, now_s))
        return dealt

    def wake_s(self) -> float:
        """To be asked right after `deal`: when the next duty becomes ready or overdue, if nothing
        is reported until then."""
        times = [inf, *self.leaving.values()]
        for hold in self.holds.values():
            if hold.ending_s is not None and hold.given is not None:
                times.append(hold.ending_s)
            elif hold.ready_s > self._dealt_s and hold.duty.computation not in self.stopped:
                times.append(hold.ready_s)
        return min(times)

    def state(self, hold: DutyState, now_s: float) -> State:
        """The state of a duty: the first of the table above that is true."""
        if hold.ending_s is not None:
            return "ending"
        if hold.doubtful:
            return "doubtful"
        if hold.stopped:
            return "stopped"
        if hold.given is not None:
            return "in flight"
        if hold.duty.computation in self.stopped or hold.duty in self._left():
            return "held back"
        if hold.ready_s <= now_s:
            return "ready"
        return "idle" if hold.parked_s is None else "parked"

    # Reports

    def done(
        self, lane: int, number: int, next: int, now_s: float, *, records: int, spent_s: float
    ) -> DutyState | None:
        """Everything before ``next`` is committed; None if this comes too late."""
        hold = self._reported(lane, number, next, now_s)
        if hold is None:
            return None
        self._pace_of(hold.duty.computation).took(records, spent_s)
        if hold.called:
            hold.timer_s = inf
        return self._changed(hold)

    def park(
        self, lane: int, number: int, next: int, until_s: float, now_s: float
    ) -> DutyState | None:
        """The record at ``next`` has failed: no slice of the shard is given before ``until_s``."""
        hold = self._reported(lane, number, next, now_s)
        if hold is None:
            return None
        hold.parked_s = until_s
        return self._changed(hold)

    def stop_shard(self, lane: int, number: int, next: int, now_s: float) -> DutyState | None:
        """The record at ``next`` has failed for good: no slice is given until the shard is granted
        anew."""
        hold = self._reported(lane, number, next, now_s)
        if hold is None:
            return None
        hold.stopped = True
        return self._changed(hold)

    def doubt(self, lane: int, number: int, now_s: float) -> DutyState | None:
        """The commit was refused, or its outcome is not known: no slice is given until the shard is
        granted anew."""
        hold = self._reported(lane, number, None, now_s)
        if hold is None:
            return None
        hold.doubtful = True
        return self._changed(hold)

    def limit(self, duty: Duty, most: int) -> None:
        """Limit the records of the duty's next slices; 0: as many as fit."""
        hold = self.holds.get(duty)
        if hold is not None:
            hold.most = most

    def timer(self, duty: Duty, at_s: float) -> None:
        """Have the handler called at this time, even if there is no record. Each slice that is
        given at that time or later includes the call, until one of these slices is done."""
        hold = self.holds.get(duty)
        if hold is not None:
            hold.timer_s, hold.called = at_s, False
            self._changed(hold)

    # Below

    def _under(self, duty: Duty, token: bytes) -> DutyState | None:
        hold = self.holds.get(duty)
        return hold if hold is not None and hold.token == token else None

    def _left(self) -> set[Duty]:
        """The duties that lanes still work on under grants that are over."""
        return {self.in_hand[lane].duty for lane in self.leaving}

    def _changed(self, hold: DutyState) -> DutyState:
        """Work out when the duty is ready: once for each change, not each time a lane asks."""
        out = hold.doubtful or hold.stopped or hold.ending_s is not None or hold.given is not None
        hold.ready_s = inf if out else self._ready_s(hold)
        return hold

    def _ready_s(self, hold: DutyState) -> float:
        if hold.parked_s is not None:
            # What failed has waited for its batch or its timer before, and does not do so again.
            return max(hold.parked_s, hold.since_s)
        at_s = max(hold.timer_s, hold.since_s)
        left = hold.end - hold.at
        if left > 0:
            rules = self.rules[hold.duty.computation]
            full = rules.capacity is None or left >= rules.capacity
            at_s = min(at_s, hold.since_s if full else hold.since_s + rules.threshold_s)
        return at_s

    def _next(self, now_s: float) -> tuple[int, DutyState] | None:
        """The next lane and its duty: the duty that waits longest goes to the lane that had it,
        else to the lane that asked first."""
        best = self._longest(now_s)
        if not self.alone or best is None or not self.in_hand:
            return best
        waits = best[1].most == 1
        goes_alone = any(self._is_single(given.duty) for given in self.in_hand.values())
        recent = all(now_s - since_s < ALONE_S for since_s in self._given_s.values())
        if recent and (waits or goes_alone):
            return None  # until the others are done
        if waits and now_s - best[1].ready_s < ALONE_S_MAX:
            return self._longest(now_s, single=False)
        return best

    def _longest(self, now_s: float, *, single: bool = True) -> tuple[int, DutyState] | None:
        places = self.lanes if self.allocation == "static" else 1
        asked: dict[int, int] = {}
        for lane in self.waiting:
            asked.setdefault(lane % places, lane)
        closed = self.stopped | self._full()
        left = self._left()
        best: tuple[int, DutyState] | None = None
        best_s = inf
        for hold in self.holds.values():
            since_s = hold.ready_s
            if since_s > now_s or since_s - WARM_S >= best_s or (hold.most == 1 and not single):
                continue
            taker = asked.get(hold.duty.shard.index % places)
            if hold.last_lane in self.waiting:
                taker, since_s = hold.last_lane, since_s - WARM_S
            elif self.rules[hold.duty.computation].sticky and self.allocation == "pool":
                taker = None if hold.last_lane is not None else self._least_stuck()
            if taker is None or since_s >= best_s:
                continue
            if hold.duty.computation not in closed and hold.duty not in left:
                best, best_s = (taker, hold), since_s
        return best

    def _least_stuck(self) -> int:
        """The waiting lane that the fewest shards stay with."""
        stuck = Counter(hold.last_lane for hold in self.holds.values())
        return min(self.waiting, key=lambda lane: stuck[lane])

    def _is_single(self, duty: Duty) -> bool:
        hold = self.holds.get(duty)
        return hold is not None and hold.most == 1

    def _full(self) -> set[str]:
        """The computations that have as many lanes as they may have."""
        busy = Counter(given.duty.computation for given in self.in_hand.values())
        return {
            name
            for name, rules in self.rules.items()
            if rules.concurrency is not None and busy[name] >= rules.concurrency
        }

    def _give(self, lane: int, hold: DutyState, now_s: float) -> Assigned:
        self._numbers += 1
        most = self.rules[hold.duty.computation].capacity
        if most is None:
            fitting = self._pace_of(hold.duty.computation).records
            most = min(hold.most or fitting, fitting)
        given = Assigned(
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
        self._given_s[lane] = now_s
        hold.given, hold.last_lane = given, lane
        hold.parked_s, hold.called = None, hold.timer_s <= now_s
        self._changed(hold)
        return given

    def _reported(self, lane: int, number: int, next: int | None, now_s: float) -> DutyState | None:
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

    def _released(self, given: Assigned) -> DutyState | None:
        """The lane has the slice in hand no more; the state of its duty, if the slice was given
        under the grant that is still in force."""
        del self.in_hand[given.lane]
        del self._given_s[given.lane]
        self.leaving.pop(given.lane, None)
        hold = self.holds.get(given.duty)
        if hold is None or hold.given is not given:
            return None
        hold.given = None
        return hold

    def _pace_of(self, computation: str) -> Pace:
        return self._pace.setdefault(computation, Pace())
