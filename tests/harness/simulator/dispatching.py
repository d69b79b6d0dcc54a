"""The dispatch machine of one replica on a virtual clock, one seed from beginning to end.

The code under test is the real `core.computations.dispatch`. The simulated lanes take time, hang,
die, fail, and report late or twice. The simulated group grants shards and takes them away.
`dispatch_checks` looks at every step."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from headrace.core.computations.dispatch import Assigned, Dispatch, Duty, LostSlice
from headrace.core.model import ShardId
from tests.harness.simulator.checks import Violation
from tests.harness.simulator.dispatch_checks import (
    FOLLOWS,
    PARKED,
    REST,
    DispatchModel,
    SimGrant,
    SimLane,
)
from tests.harness.simulator.dispatch_draw import COST_S_MIN, Draw
from tests.harness.simulator.world import World

TROUBLE_S = 25.0
REST_S = 120.0
"""Long enough for hanging handlers to end and for all records to be handled."""

SOMETIMES = (
    "a batch was full",
    "a batch went as it was",
    "a commit was refused",
    "a computation was stopped with a slice in flight",
    "a grant was lost with a slice in flight",
    "a lane came back to its shard",
    "a lane died",
    "a lane was lost at a deadline",
    "a lost lane reported late",
    "a parked shard came back",
    "a parked shard was revoked",
    "a report came twice",
    "a shard changed its lane",
    "a shard was granted anew while a lane worked under the old grant",
    "a slice ended after its shard was revoked",
    "a slice was committed, but its lane lost",
    "a static lane let another's shard wait",
    "a stopped shard was granted anew",
    "a timer with records",
    "a timer without a record",
    "concurrency held a shard back",
    "record by record",
    "revoked again, for an earlier time",
    "revoked, and lost before its deadline",
    "the lane of a lost grant ended by itself",
    "the number of a lost lane was used again",
    "work went back",
)
"""States that the simulation must reach: a run that does not tests too little."""


class DispatchOutcome(NamedTuple):
    seed: int
    digest: int
    slices: int
    counts: Counter[str]
    violation: str = ""
    story: tuple[str, ...] = ()


def simulate(seed: int, machine: type[Dispatch] = Dispatch) -> DispatchOutcome:
    """Run one seed. The outcome has the violation, if any, and what happened last."""
    dispatching = _Dispatching(seed, machine)
    world = dispatching.world
    violation = ""
    crash: tuple[str, ...] = ()
    try:
        dispatching.run()
    except Violation as found:
        violation = str(found)
    except Exception as error:
        violation = f"crash: {type(error).__name__}: {error}"
        crash = tuple(traceback.format_exception(error))
    story = (*world.story(None), *crash) if violation else ()
    return DispatchOutcome(
        seed, world.digest, dispatching.model.number, world.counts, violation, story
    )


@dataclass(slots=True)
class _StoredDuty:
    """What the store knows about one duty."""

    epoch: int = 0
    next: int = 0
    end: int = 0
    token: bytes = field(default=b"")

    def fence(self) -> None:
        self.epoch += 1
        self.token = b"%d" % self.epoch


class _Dispatching:
    def __init__(self, seed: int, machine: type[Dispatch]) -> None:
        world = self.world = World(seed)
        draw = self.draw = Draw.of(seed)
        self.dispatch = machine(draw.rules, draw.lanes, draw.allocation)
        self.model = DispatchModel(world, draw.rules, draw.lanes, draw.allocation)
        self.shards = {
            Duty(name, ShardId("s", index)): _StoredDuty()
            for name in draw.rules
            for index in range(draw.shards)
        }
        self.trouble = True
        self.wakes: set[float] = set()
        """The times at which the dispatch machine has asked to be called."""

    def run(self) -> None:
        for number in range(self.draw.lanes):
            self._lane(number)
        for duty in self.shards:
            self._then(self.world.about(1.0), self._grant, duty)
        self._produce()
        self._disturb()
        self.world.run(TROUBLE_S)
        self.trouble = False
        self._settle()
        self.world.run(TROUBLE_S + REST_S)
        for duty, shard in self.shards.items():
            if shard.next != shard.end:
                self.model.fail(REST, duty, f"at {shard.next} of {shard.end}")

    # The loop of the dispatcher

    def _then(self, delay_s: float, act: Callable[..., None], *facts: object) -> None:
        def fire() -> None:
            act(*facts)
            self._turn()

        self.world.after(delay_s, fire)

    def _audit(self, at_s: float) -> None:
        """Check right after that time, even if the dispatch machine did not ask to be called."""
        self.world.at(at_s + 1e-6, lambda: self.model.look(self.dispatch, []))

    def _turn(self) -> None:
        now_s = self.world.now_s
        for lost in self.dispatch.overdue(now_s):
            lane = self.model.lanes[lost.lane]
            self.world.counts["sometimes: a lane was lost at a deadline"] += 1
            self.model.given_up(lane)
            self._lost(lane, lost)
        deals_first = self.draw.deals_first
        if not deals_first:
            self._let_go()
        dealt = []
        for assigned in self.dispatch.deal(now_s):
            grant = self.model.grants.get(assigned.duty)
            before = (self.model.ready_s(grant), grant.last) if grant else (inf, None)
            self.world.note(None, assigned)
            lane = self.model.assign(assigned)
            dealt.append((assigned, *before))
            self._work(lane, assigned)
        if deals_first:
            self._let_go()
        self.model.look(self.dispatch, dealt)
        wake_s = self.dispatch.wake_s()
        if wake_s < inf and wake_s not in self.wakes:
            self.wakes.add(wake_s)
            self.world.at(wake_s, self._turn)

    # Lanes

    def _lane(self, number: int) -> None:
        assert number not in self.model.lanes
        lane = self.model.lanes[number] = SimLane(number)
        self._then(self.world.about(0.1), self._ask, lane)

    def _ask(self, lane: SimLane) -> None:
        if self.model.lanes.get(lane.number) is lane:
            lane.asks = True
            self.dispatch.ask(lane.number)

    def _work(self, lane: SimLane, assigned: Assigned) -> None:
        """Draw now how the work on the slice will end."""
        world, draw = self.world, self.draw
        records = assigned.end - assigned.start
        cost_s = draw.cost_s[assigned.duty.computation] if self.trouble else COST_S_MIN
        spent_s = records * cost_s * world.dice.uniform(0.5, 1.5)
        if self.trouble and world.chance(draw.hangs):
            spent_s += world.dice.uniform(3.0, 30.0)
        if self.trouble and world.chance(draw.deaths):
            dies_s = world.dice.uniform(0, 1.2) * spent_s
            self._then(dies_s + world.about(0.2), self._die, lane)
            if dies_s < spent_s:
                return
        world.after(spent_s, lambda: self._end(lane, assigned, spent_s))

    def _end(self, lane: SimLane, assigned: Assigned, spent_s: float) -> None:
        """Commit under the token and report: the handler has returned or failed."""
        world, draw, shard = self.world, self.draw, self.shards[assigned.duty]
        what, next = "done", assigned.end
        if assigned.end > assigned.start and self.trouble:
            for chance, other in (
                (draw.fails, "park"), (draw.gives_up, "stop"), (draw.doubts, "doubt"),
                (draw.goes_back, "back"),
            ):  # fmt: skip
                if world.chance(chance):
                    what = other
                    next = world.dice.randrange(assigned.start, assigned.end)
                    break
        if what == "back":
            what, next = "done", world.dice.randint(0, assigned.start)
            world.counts["sometimes: work went back"] += 1
        if shard.token != assigned.token:
            world.counts["sometimes: a commit was refused"] += 1
            what = "doubt"
        elif what != "doubt" or world.chance(0.5):
            shard.next = next
        reports = [self._latency_s()]
        if world.chance(draw.twice):
            reports.append(self._latency_s() + world.about(1.0))
        for delay_s in reports:
            self._then(delay_s, self._report, lane, assigned, what, next, spent_s)

    def _latency_s(self) -> float:
        late = self.trouble and self.world.chance(self.draw.late)
        return self.world.about(2.0 if late else 0.01)

    def _report(
        self, lane: SimLane, assigned: Assigned, what: str, next: int, spent_s: float
    ) -> None:
        model, now_s = self.model, self.world.now_s
        current = model.is_current(lane, assigned)
        grant = model.grants.get(assigned.duty)
        under = current and grant is not None and grant.lane is lane
        until_s = now_s + self.world.about(2.0)
        match what:
            case "done":
                records = max(0, next - assigned.start)
                state = self.dispatch.done(
                    lane.number, assigned.number, next, now_s, records=records, spent_s=spent_s
                )
            case "park":
                state = self.dispatch.park(lane.number, assigned.number, next, until_s, now_s)
            case "stop":
                state = self.dispatch.stop_shard(lane.number, assigned.number, next, now_s)
            case _:
                state = self.dispatch.doubt(lane.number, assigned.number, now_s)
        self.world.note(
            None, what, assigned.duty, assigned.number, "next", next, "by lane", lane.number
        )
        if (state is not None) != under:
            model.fail(FOLLOWS, assigned.duty, f"slice {assigned.number} {what}: {state}")
        if not current:
            again = model.lanes.get(lane.number) is lane
            which = "a report came twice" if again else "a lost lane reported late"
            self.world.counts[f"sometimes: {which}"] += 1
            return
        if lane.number in self.dispatch.in_hand:
            model.fail(PARKED, assigned.duty, f"lane {lane.number} is not free")
        grant = model.ended(lane)
        if grant is None:
            self.world.counts["sometimes: the lane of a lost grant ended by itself"] += 1
        else:
            self._reported(grant, what, next, until_s)
        self._then(self.world.about(0.01), self._ask, lane)

    def _reported(self, grant: SimGrant, what: str, next: int, until_s: float) -> None:
        after = grant.ending_s < inf
        self.world.counts["sometimes: a slice ended after its shard was revoked"] += after
        if what == "doubt":
            grant.out = "doubtful"
            self._then(self.world.about(0.5), self._grant_anew, grant)
            return
        grant.at, grant.end = next, max(grant.end, next)
        if what == "stop":
            grant.out = "stopped"
            if not self.trouble:
                self._then(1.0, self._grant_anew, grant)
            return
        if what == "park":
            grant.parked_s = until_s
            self._audit(until_s)
        elif grant.called:
            grant.timer_s = inf
        if self.trouble and self.world.chance(self.draw.timers):
            self._set_timer(grant)

    def _die(self, lane: SimLane) -> None:
        if self.model.lanes.get(lane.number) is lane:
            self.world.counts["sometimes: a lane died"] += 1
            self.world.note(None, "lane", lane.number, "dies")
            lost = self.dispatch.lane_lost(lane.number)
            self._lost(lane, lost)

    def _lost(self, lane: SimLane, lost: LostSlice | None) -> None:
        """Fence the lane; another one takes its place."""
        assigned = lane.assigned
        if (assigned and (assigned.duty, assigned.token)) != (lost and (lost.duty, lost.token)):
            self.model.fail(
                FOLLOWS, assigned.duty if assigned else None, f"{lost} instead of {assigned}"
            )
        grant = self.model.grants.get(assigned.duty) if assigned else None
        if assigned and grant and grant.lane is lane:
            done = self.shards[assigned.duty].next != assigned.start
            self.world.counts["sometimes: a slice was committed, but its lane lost"] += done
            self._then(self.world.about(0.5), self._grant_anew, grant)
        lane.asks = False
        self.model.lost(lane)
        number = lane.number if self.draw.reuse else lane.number + self.draw.lanes
        self.world.counts["sometimes: the number of a lost lane was used again"] += self.draw.reuse
        self._then(self.world.about(0.5), self._lane, number)

    # Grants

    def _grant(self, duty: Duty) -> None:
        if duty in self.model.grants:
            return
        world, shard = self.world, self.shards[duty]
        shard.fence()
        now_s = world.now_s
        end = world.dice.choice((shard.end, shard.next, world.dice.randint(0, shard.end)))
        parked_s = now_s + world.about(2.0) if self.trouble and world.chance(0.1) else None
        most = 1 if self.trouble and world.chance(0.2) else 0
        world.note(None, "grant", duty, shard.token, "from", shard.next)
        self.dispatch.begin(duty, shard.token, shard.next, end, now_s, parked_s=parked_s, most=most)
        self.model.grants[duty] = SimGrant(
            duty, shard.token, shard.next, max(end, shard.next), now_s, parked_s, most
        )
        if parked_s is not None:
            self._audit(parked_s)
        left = any(lane.assigned and lane.assigned.duty == duty for lane in self.model.leaving)
        which = "a shard was granted anew while a lane worked under the old grant"
        world.counts[f"sometimes: {which}"] += left
        self._then(world.about(0.3), self._tell_end, duty)

    def _grant_anew(self, grant: SimGrant) -> None:
        """Grant the duty under another token, if this grant is still in force."""
        if self.model.grants.get(grant.duty) is grant:
            self._lose(grant)
            self._grant(grant.duty)

    def _let_go(self) -> None:
        for state in self.dispatch.gone():
            self.world.note(None, "gone", state.duty, state.token)
            self.model.let_go(state)
            self.shards[state.duty].fence()
            self._then(self.world.about(1.0), self._grant, state.duty)

    def _revoke(self, grant: SimGrant) -> None:
        until_s = self.world.now_s + self.world.about(2.0)
        earlier = until_s < grant.ending_s < inf
        self.world.counts["sometimes: revoked again, for an earlier time"] += earlier
        self.world.counts["sometimes: a parked shard was revoked"] += grant.parked_s is not None
        self.world.note(None, "revoke", grant.duty, grant.token, "by", until_s)
        grant.ending_s = min(grant.ending_s, until_s)
        self.dispatch.revoke(grant.duty, grant.token, until_s)
        self._audit(until_s)

    def _lose(self, grant: SimGrant) -> None:
        until_s = self.world.now_s + self.world.about(2.0)
        self.world.note(None, "lose", grant.duty, grant.token, "by", until_s)
        self.shards[grant.duty].fence()
        self.dispatch.lose(grant.duty, grant.token, until_s)
        del self.model.grants[grant.duty]
        if grant.lane is not None:
            self.world.counts["sometimes: a grant was lost with a slice in flight"] += 1
            early = grant.ending_s < until_s
            self.world.counts["sometimes: revoked, and lost before its deadline"] += early
            self.model.leaving[grant.lane] = min(until_s, grant.ending_s)
            self._audit(until_s)

    # Faults of the grants

    def _disturb(self) -> None:
        if not self.trouble:
            return
        world, model = self.world, self.model
        happen = world.dice.choice((
            self._revoke, self._revoke, self._lose, self._renew, self._set_timer, self._set_most,
            self._stop, self._withdraw, self._old_order,
        ))  # fmt: skip
        ending = [grant for grant in model.grants.values() if grant.ending_s < inf]
        some = ending if ending and world.chance(0.3) else list(model.grants.values())
        if some:
            happen(world.dice.choice(some))
        self._then(world.about(self.draw.trouble_s), self._disturb)

    def _renew(self, grant: SimGrant) -> None:
        """Grant anew, as after an administrator resumed or fenced the shard."""
        self.world.counts["sometimes: a stopped shard was granted anew"] += grant.out == "stopped"
        self._grant_anew(grant)

    def _set_timer(self, grant: SimGrant) -> None:
        grant.timer_s = self.world.now_s + self.world.dice.uniform(-1.0, 3.0)
        grant.called = False
        self.world.note(None, "timer", grant.duty, grant.timer_s)
        self.dispatch.timer(grant.duty, grant.timer_s)
        self._audit(max(grant.timer_s, self.world.now_s))

    def _set_most(self, grant: SimGrant) -> None:
        grant.most = 0 if grant.most else 1
        self.dispatch.limit(grant.duty, grant.most)

    def _stop(self, grant: SimGrant) -> None:
        name = grant.duty.computation
        if name not in self.model.stopped:
            which = "a computation was stopped with a slice in flight"
            self.world.counts[f"sometimes: {which}"] += grant.lane is not None
            self.world.note(None, "stop", name)
            self.model.stopped.add(name)
            self.dispatch.stop(name)
            self._then(self.world.about(1.0), self._start, name)

    def _start(self, name: str) -> None:
        self.world.note(None, "start", name)
        self.model.stopped.discard(name)
        self.dispatch.start(name)

    def _withdraw(self, grant: SimGrant) -> None:
        asking = [lane for lane in self.model.lanes.values() if lane.asks]
        if asking:
            lane = self.world.dice.choice(asking)
            lane.asks = False
            self.dispatch.withdraw(lane.number)
            self._then(self.world.about(0.3), self._ask, lane)

    def _old_order(self, grant: SimGrant) -> None:
        """Send orders about a grant that is over: they come too late."""
        self.dispatch.revoke(grant.duty, b"old", self.world.now_s)
        self.dispatch.lose(grant.duty, b"old", self.world.now_s)

    def _produce(self) -> None:
        if not self.trouble:
            return
        duty = self.world.dice.choice(list(self.shards))
        self.shards[duty].end += self.world.dice.choice((1, 2, 5, 20))
        self._then(self.world.about(0.1), self._tell_end, duty)
        self.world.after(self.world.about(0.3), self._produce)

    def _tell_end(self, duty: Duty) -> None:
        now_s, end, grant = self.world.now_s, self.shards[duty].end, self.model.grants.get(duty)
        self.dispatch.ends({duty: end}, now_s)
        if grant is None or end <= grant.end:
            return
        if grant.at >= grant.end and grant.lane is None:
            grant.since_s = now_s
        grant.end = end
        self._audit(now_s + self.draw.rules[duty.computation].threshold_s)

    # Rest

    def _settle(self) -> None:
        """End all faults: every duty is granted, started, and told its end once more."""
        for grant in list(self.model.grants.values()):
            if grant.out:
                self._grant_anew(grant)
        for grant in self.model.grants.values():
            grant.most = 0
            self.dispatch.limit(grant.duty, 0)
        for duty in self.shards:
            self._then(1.0, self._grant, duty)
            self._then(5.0, self._tell_end, duty)
        self._turn()
