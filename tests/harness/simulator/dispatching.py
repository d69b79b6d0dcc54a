"""A replica's dispatcher on a virtual clock, one seed from beginning to end.

The code under test is the real `core.dispatch`. Around it are lanes that take their time, hang,
die, fail and report late or twice, and a group that grants shards and takes them away.
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
from tests.harness.simulator.dispatch_checks import FOLLOWS, PARKED, REST, Book, Lane, Told
from tests.harness.simulator.dispatch_draw import COST_S_MIN, Draw
from tests.harness.simulator.world import World

TROUBLE_S = 25.0
REST_S = 120.0
"""Long enough for what hangs to end, and for all that is left."""

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
"""States that the simulation must reach, or it is blind."""


class Outcome(NamedTuple):
    seed: int
    digest: int
    slices: int
    counts: Counter[str]
    violation: str = ""
    story: tuple[str, ...] = ()


def simulate(seed: int, machine: type[Dispatch] = Dispatch) -> Outcome:
    """Run one seed; a violation is in the outcome, with what happened last."""
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
    return Outcome(seed, world.digest, dispatching.book.number, world.counts, violation, story)


@dataclass(slots=True)
class _Shard:
    """What the store knows, for one duty."""

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
        self.book = Book(world, draw.rules, draw.lanes, draw.allocation)
        self.shards = {
            Duty(name, ShardId("s", index)): _Shard()
            for name in draw.rules
            for index in range(draw.shards)
        }
        self.trouble = True
        self.wakes: set[float] = set()
        """When the dispatcher is called although nothing happens."""

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
                self.book.fail(REST, duty, f"at {shard.next} of {shard.end}")

    # The dispatcher's loop

    def _then(self, delay_s: float, act: Callable[..., None], *facts: object) -> None:
        def fire() -> None:
            act(*facts)
            self._turn()

        self.world.after(delay_s, fire)

    def _audit(self, at_s: float) -> None:
        """Look right after that time, whether or not the dispatcher wants to be woken then."""
        self.world.at(at_s + 1e-6, lambda: self.book.look(self.dispatch, []))

    def _turn(self) -> None:
        now_s = self.world.now_s
        for lost in self.dispatch.overdue(now_s):
            lane = self.book.lanes[lost.lane]
            self.world.counts["sometimes: a lane was lost at a deadline"] += 1
            self.book.given_up(lane)
            self._lost(lane, lost)
        deals_first = self.draw.deals_first
        if not deals_first:
            self._let_go()
        dealt = []
        for given in self.dispatch.deal(now_s):
            told = self.book.told.get(given.duty)
            before = (self.book.ready_s(told), told.last) if told else (inf, None)
            self.world.note(None, given)
            lane = self.book.given(given)
            dealt.append((given, *before))
            self._work(lane, given)
        if deals_first:
            self._let_go()
        self.book.look(self.dispatch, dealt)
        wake_s = self.dispatch.wake_s()
        if wake_s < inf and wake_s not in self.wakes:
            self.wakes.add(wake_s)
            self.world.at(wake_s, self._turn)

    # Lanes

    def _lane(self, number: int) -> None:
        assert number not in self.book.lanes
        lane = self.book.lanes[number] = Lane(number)
        self._then(self.world.about(0.1), self._ask, lane)

    def _ask(self, lane: Lane) -> None:
        if self.book.lanes.get(lane.number) is lane:
            lane.asks = True
            self.dispatch.ask(lane.number)

    def _work(self, lane: Lane, given: Assigned) -> None:
        """What will come of it is drawn now."""
        world, draw = self.world, self.draw
        records = given.end - given.start
        cost_s = draw.cost_s[given.duty.computation] if self.trouble else COST_S_MIN
        spent_s = records * cost_s * world.dice.uniform(0.5, 1.5)
        if self.trouble and world.chance(draw.hangs):
            spent_s += world.dice.uniform(3.0, 30.0)
        if self.trouble and world.chance(draw.deaths):
            dies_s = world.dice.uniform(0, 1.2) * spent_s
            self._then(dies_s + world.about(0.2), self._die, lane)
            if dies_s < spent_s:
                return
        world.after(spent_s, lambda: self._end(lane, given, spent_s))

    def _end(self, lane: Lane, given: Assigned, spent_s: float) -> None:
        """The handler has returned, or failed: commit, under the token, and report."""
        world, draw, shard = self.world, self.draw, self.shards[given.duty]
        what, next = "done", given.end
        if given.end > given.start and self.trouble:
            for chance, other in (
                (draw.fails, "park"), (draw.gives_up, "stop"), (draw.doubts, "doubt"),
                (draw.goes_back, "back"),
            ):  # fmt: skip
                if world.chance(chance):
                    what = other
                    next = world.dice.randrange(given.start, given.end)
                    break
        if what == "back":
            what, next = "done", world.dice.randint(0, given.start)
            world.counts["sometimes: work went back"] += 1
        if shard.token != given.token:
            world.counts["sometimes: a commit was refused"] += 1
            what = "doubt"
        elif what != "doubt" or world.chance(0.5):
            shard.next = next
        reports = [self._latency_s()]
        if world.chance(draw.twice):
            reports.append(self._latency_s() + world.about(1.0))
        for delay_s in reports:
            self._then(delay_s, self._report, lane, given, what, next, spent_s)

    def _latency_s(self) -> float:
        late = self.trouble and self.world.chance(self.draw.late)
        return self.world.about(2.0 if late else 0.01)

    def _report(self, lane: Lane, given: Assigned, what: str, next: int, spent_s: float) -> None:
        book, now_s = self.book, self.world.now_s
        current = book.is_current(lane, given)
        told = book.told.get(given.duty)
        under = current and told is not None and told.lane is lane
        until_s = now_s + self.world.about(2.0)
        match what:
            case "done":
                records = max(0, next - given.start)
                hold = self.dispatch.done(
                    lane.number, given.number, next, now_s, records=records, spent_s=spent_s
                )
            case "park":
                hold = self.dispatch.park(lane.number, given.number, next, until_s, now_s)
            case "stop":
                hold = self.dispatch.stop_shard(lane.number, given.number, next, now_s)
            case _:
                hold = self.dispatch.doubt(lane.number, given.number, now_s)
        self.world.note(None, what, given.duty, given.number, "next", next, "by lane", lane.number)
        if (hold is not None) != under:
            book.fail(FOLLOWS, given.duty, f"slice {given.number} {what}: {hold}")
        if not current:
            again = book.lanes.get(lane.number) is lane
            which = "a report came twice" if again else "a lost lane reported late"
            self.world.counts[f"sometimes: {which}"] += 1
            return
        if lane.number in self.dispatch.in_hand:
            book.fail(PARKED, given.duty, f"lane {lane.number} is not free")
        told = book.ended(lane)
        if told is None:
            self.world.counts["sometimes: the lane of a lost grant ended by itself"] += 1
        else:
            self._reported(told, what, next, until_s)
        self._then(self.world.about(0.01), self._ask, lane)

    def _reported(self, told: Told, what: str, next: int, until_s: float) -> None:
        after = told.ending_s < inf
        self.world.counts["sometimes: a slice ended after its shard was revoked"] += after
        if what == "doubt":
            told.out = "doubtful"
            self._then(self.world.about(0.5), self._grant_anew, told)
            return
        told.at, told.end = next, max(told.end, next)
        if what == "stop":
            told.out = "stopped"
            if not self.trouble:
                self._then(1.0, self._grant_anew, told)
            return
        if what == "park":
            told.parked_s = until_s
            self._audit(until_s)
        elif told.called:
            told.timer_s = inf
        if self.trouble and self.world.chance(self.draw.timers):
            self._set_timer(told)

    def _die(self, lane: Lane) -> None:
        if self.book.lanes.get(lane.number) is lane:
            self.world.counts["sometimes: a lane died"] += 1
            self.world.note(None, "lane", lane.number, "dies")
            lost = self.dispatch.lane_lost(lane.number)
            self._lost(lane, lost)

    def _lost(self, lane: Lane, lost: LostSlice | None) -> None:
        """It is fenced, and another takes its place."""
        given = lane.given
        if (given and (given.duty, given.token)) != (lost and (lost.duty, lost.token)):
            self.book.fail(FOLLOWS, given.duty if given else None, f"{lost} instead of {given}")
        told = self.book.told.get(given.duty) if given else None
        if given and told and told.lane is lane:
            done = self.shards[given.duty].next != given.start
            self.world.counts["sometimes: a slice was committed, but its lane lost"] += done
            self._then(self.world.about(0.5), self._grant_anew, told)
        lane.asks = False
        self.book.lost(lane)
        number = lane.number if self.draw.reuse else lane.number + self.draw.lanes
        self.world.counts["sometimes: the number of a lost lane was used again"] += self.draw.reuse
        self._then(self.world.about(0.5), self._lane, number)

    # Grants

    def _grant(self, duty: Duty) -> None:
        if duty in self.book.told:
            return
        world, shard = self.world, self.shards[duty]
        shard.fence()
        now_s = world.now_s
        end = world.dice.choice((shard.end, shard.next, world.dice.randint(0, shard.end)))
        parked_s = now_s + world.about(2.0) if self.trouble and world.chance(0.1) else None
        most = 1 if self.trouble and world.chance(0.2) else 0
        world.note(None, "grant", duty, shard.token, "from", shard.next)
        self.dispatch.begin(duty, shard.token, shard.next, end, now_s, parked_s=parked_s, most=most)
        self.book.told[duty] = Told(
            duty, shard.token, shard.next, max(end, shard.next), now_s, parked_s, most
        )
        if parked_s is not None:
            self._audit(parked_s)
        left = any(lane.given and lane.given.duty == duty for lane in self.book.leaving)
        which = "a shard was granted anew while a lane worked under the old grant"
        world.counts[f"sometimes: {which}"] += left
        self._then(world.about(0.3), self._tell_end, duty)

    def _grant_anew(self, told: Told) -> None:
        """Under another token, if it is still the one."""
        if self.book.told.get(told.duty) is told:
            self._lose(told)
            self._grant(told.duty)

    def _let_go(self) -> None:
        for hold in self.dispatch.gone():
            self.world.note(None, "gone", hold.duty, hold.token)
            self.book.let_go(hold)
            self.shards[hold.duty].fence()
            self._then(self.world.about(1.0), self._grant, hold.duty)

    def _revoke(self, told: Told) -> None:
        until_s = self.world.now_s + self.world.about(2.0)
        earlier = until_s < told.ending_s < inf
        self.world.counts["sometimes: revoked again, for an earlier time"] += earlier
        self.world.counts["sometimes: a parked shard was revoked"] += told.parked_s is not None
        self.world.note(None, "revoke", told.duty, told.token, "by", until_s)
        told.ending_s = min(told.ending_s, until_s)
        self.dispatch.revoke(told.duty, told.token, until_s)
        self._audit(until_s)

    def _lose(self, told: Told) -> None:
        until_s = self.world.now_s + self.world.about(2.0)
        self.world.note(None, "lose", told.duty, told.token, "by", until_s)
        self.shards[told.duty].fence()
        self.dispatch.lose(told.duty, told.token, until_s)
        del self.book.told[told.duty]
        if told.lane is not None:
            self.world.counts["sometimes: a grant was lost with a slice in flight"] += 1
            early = told.ending_s < until_s
            self.world.counts["sometimes: revoked, and lost before its deadline"] += early
            self.book.leaving[told.lane] = min(until_s, told.ending_s)
            self._audit(until_s)

    # What happens

    def _disturb(self) -> None:
        if not self.trouble:
            return
        world, book = self.world, self.book
        happen = world.dice.choice((
            self._revoke, self._revoke, self._lose, self._renew, self._set_timer, self._set_most,
            self._stop, self._withdraw, self._old_order,
        ))  # fmt: skip
        ending = [told for told in book.told.values() if told.ending_s < inf]
        some = ending if ending and world.chance(0.3) else list(book.told.values())
        if some:
            happen(world.dice.choice(some))
        self._then(world.about(self.draw.trouble_s), self._disturb)

    def _renew(self, told: Told) -> None:
        """As when a person resumes it, or it was fenced."""
        self.world.counts["sometimes: a stopped shard was granted anew"] += told.out == "stopped"
        self._grant_anew(told)

    def _set_timer(self, told: Told) -> None:
        told.timer_s = self.world.now_s + self.world.dice.uniform(-1.0, 3.0)
        told.called = False
        self.world.note(None, "timer", told.duty, told.timer_s)
        self.dispatch.timer(told.duty, told.timer_s)
        self._audit(max(told.timer_s, self.world.now_s))

    def _set_most(self, told: Told) -> None:
        told.most = 0 if told.most else 1
        self.dispatch.limit(told.duty, told.most)

    def _stop(self, told: Told) -> None:
        name = told.duty.computation
        if name not in self.book.stopped:
            which = "a computation was stopped with a slice in flight"
            self.world.counts[f"sometimes: {which}"] += told.lane is not None
            self.world.note(None, "stop", name)
            self.book.stopped.add(name)
            self.dispatch.stop(name)
            self._then(self.world.about(1.0), self._start, name)

    def _start(self, name: str) -> None:
        self.world.note(None, "start", name)
        self.book.stopped.discard(name)
        self.dispatch.start(name)

    def _withdraw(self, told: Told) -> None:
        asking = [lane for lane in self.book.lanes.values() if lane.asks]
        if asking:
            lane = self.world.dice.choice(asking)
            lane.asks = False
            self.dispatch.withdraw(lane.number)
            self._then(self.world.about(0.3), self._ask, lane)

    def _old_order(self, told: Told) -> None:
        """About a grant that is over: it comes too late."""
        self.dispatch.revoke(told.duty, b"old", self.world.now_s)
        self.dispatch.lose(told.duty, b"old", self.world.now_s)

    def _produce(self) -> None:
        if not self.trouble:
            return
        duty = self.world.dice.choice(list(self.shards))
        self.shards[duty].end += self.world.dice.choice((1, 2, 5, 20))
        self._then(self.world.about(0.1), self._tell_end, duty)
        self.world.after(self.world.about(0.3), self._produce)

    def _tell_end(self, duty: Duty) -> None:
        now_s, end, told = self.world.now_s, self.shards[duty].end, self.book.told.get(duty)
        self.dispatch.ends({duty: end}, now_s)
        if told is None or end <= told.end:
            return
        if told.at >= told.end and told.lane is None:
            told.since_s = now_s
        told.end = end
        self._audit(now_s + self.draw.rules[duty.computation].threshold_s)

    # Rest

    def _settle(self) -> None:
        """Nothing goes wrong any more: everything is granted, started, and told once more."""
        for told in list(self.book.told.values()):
            if told.out:
                self._grant_anew(told)
        for told in self.book.told.values():
            told.most = 0
            self.dispatch.limit(told.duty, 0)
        for duty in self.shards:
            self._then(1.0, self._grant, duty)
            self._then(5.0, self._tell_end, duty)
        self._turn()
