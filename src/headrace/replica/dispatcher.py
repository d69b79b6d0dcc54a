"""Carries out what `core.dispatch` says: lanes ask and report here, from any thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.computations.attempts import Attempts
from headrace.core.computations.dispatch import Assigned, Dispatch, Duty, DutyState, LostSlice
from headrace.core.computations.verdict import FailureJudge, Verdict
from headrace.core.errors import LaneLost
from headrace.core.ports import Grant
from headrace.lanes.protocol import Failed, Report, Work
from headrace.process.clock import now_ms
from headrace.replica.closing import ClosingShards
from headrace.replica.counters import Counters

log = logging.getLogger("headrace")

FAR = 16_384
"""With so many records known to be there, nobody needs to look for more."""


@dataclass(slots=True)
class DutyRecord:
    """What is known of a duty beside how it stands."""

    grant: Grant
    attempts: Attempts
    careful_to: int = 0
    """Up to there it goes on in small steps."""
    rewinds: int = 0
    rewound_to: int = -1
    handled_ms: int = 0
    """The timestamp of the last record handled."""
    timers: dict[str, float] = field(default_factory=dict)
    """By key, in seconds of the clock on the wall: they go with the shard from lane to lane."""


class GroupCall(NamedTuple):
    """Something that the group must hear of."""

    duty: Duty
    grant: Grant
    report: Report | None
    """None: its lane was lost."""


class Dispatcher:
    def __init__(
        self,
        dispatch: Dispatch,
        judges: Mapping[str, FailureJudge],
        *,
        closing: Collection[str] = (),
        on_call: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``closing`` are the computations that want to be closed before a shard goes. ``on_call``
        is called when there is something in `calls`, or something may have ended."""
        self._dispatch = dispatch
        self._judges = judges
        self._on_call = on_call
        self.clock = clock
        self.lock = threading.RLock()
        self.counters = {name: Counters() for name in dispatch.rules}
        self.calls: queue.SimpleQueue[GroupCall] = queue.SimpleQueue()
        self._charges: dict[Duty, DutyRecord] = {}
        self._boxes: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._farewells: ClosingShards[DutyRecord] = ClosingShards(closing)
        self._closed = False

    # For lanes

    def enter(self, lane: int) -> None:
        """A lane of that number will ask."""
        with self.lock:
            self._boxes[lane] = queue.SimpleQueue()

    def ask(self, lane: int) -> Work | None:
        return self.ask_soon(lane).get()

    def ask_soon(self, lane: int) -> queue.SimpleQueue[Work | None]:
        """The same without waiting: the answer comes into the box."""
        with self.lock:
            box = self._boxes.get(lane)
            if box is None or self._closed:
                return _no_more(box)
            goodbye = self._farewells.next(lane)
            if goodbye is not None:
                box.put(goodbye)
                return box
            self._dispatch.ask(lane)
            self._deal()
            return box

    def failed(self, lane: int, failed: Failed) -> Verdict:
        with self.lock:
            given = self._in_hand(lane, failed.number)
            judge = self._judges[given.duty.computation]
            return judge.failed(failed.failed, failed.retries, failed.handled)

    def report(self, lane: int, report: Report) -> None:
        with self.lock:
            if self._farewells.knows(report.number):
                self._farewells.done(report.number)
                self._on_call()
                return
            given = self._in_hand(lane, report.number)
            self._count(given, report)
            hold = self._settled(lane, given, report)
            if hold is not None and (hold.ending_s is not None or hold.ready_s > self.clock()):
                self._on_call()  # it may be let go, or it comes back at a time of its own
            self._deal()

    # For the replica

    def begin(
        self,
        duty: Duty,
        grant: Grant,
        at: int,
        end: int,
        attempts: Attempts,
        *,
        parked_s: float | None,
        most: int,
        careful_to: int,
        calls: bool,
    ) -> None:
        with self.lock:
            now_s = self.clock()
            self._charges[duty] = DutyRecord(grant, attempts, careful_to)
            self._dispatch.begin(duty, grant.token, at, end, now_s, parked_s=parked_s, most=most)
            if calls:
                self._dispatch.timer(duty, now_s)
            self._deal()

    def revoke(self, duty: Duty, token: bytes, until_s: float) -> Assigned | None:
        """It shall end; the slice in flight, if there is one."""
        with self.lock:
            self._dispatch.revoke(duty, token, until_s)
            return self._in_flight(duty, token)

    def lose(self, duty: Duty, token: bytes, until_s: float) -> Assigned | None:
        """Its grant is over; the slice in flight, if there is one."""
        with self.lock:
            given = self._in_flight(duty, token)
            self._dispatch.lose(duty, token, until_s)
            self._farewells.drop(duty, token)
            if self.charge(duty, token) is not None:
                del self._charges[duty]
            return given

    def gone(self) -> list[tuple[DutyState, DutyRecord]]:
        """What shall end and has; it is forgotten."""
        with self.lock:
            found: list[tuple[DutyState, DutyRecord]] = []
            for hold in self._dispatch.gone():
                charge = self._charges.pop(hold.duty)
                if not self._farewells.takes(hold, charge, charge.grant, self._boxes):
                    found.append((hold, charge))
            for lane in self._farewells.lanes() & self._dispatch.waiting.keys():
                self._dispatch.withdraw(lane)
                self._boxes[lane].put(self._farewells.next(lane))
            return found + self._farewells.over(self.clock())

    def overdue(self) -> list[LostSlice]:
        """Lanes that did not end in time: they are lost."""
        with self.lock:
            now_s = self.clock()
            lost = self._dispatch.overdue(now_s)
            for each in self._farewells.overdue(now_s):
                self._dispatch.lane_lost(each.lane)  # shards may stay with it
                lost.append(each)
            for each in lost:
                self._forget(each.lane, each.duty)
            return lost

    def lane_lost(self, lane: int, number: int | None = None) -> LostSlice | None:
        """What the lane had in hand; with a number, only if it is still that slice."""
        with self.lock:
            given = self._dispatch.in_hand.get(lane)
            if number is not None and (given is None or given.number != number):
                return None
            lost = self._dispatch.lane_lost(lane)
            self._forget(lane, None if lost is None else lost.duty)
            return lost

    def charge(self, duty: Duty, token: bytes) -> DutyRecord | None:
        with self.lock:
            found = self._charges.get(duty)
            return found if found is not None and found.grant.token == token else None

    def at(self, duty: Duty, token: bytes) -> int | None:
        """Where a duty goes on; None if its grant is over."""
        with self.lock:
            hold = self._dispatch.holds.get(duty)
            return hold.at if hold is not None and hold.token == token else None

    def ends(self, ends: Mapping[Duty, int]) -> None:
        with self.lock:
            self._dispatch.ends(ends, self.clock())
            self._deal()

    def asks_ends(self) -> list[tuple[Duty, Grant]]:
        """The duties of which it is not known that there is more than one slice to do."""
        with self.lock:
            return [
                (duty, self._charges[duty].grant)
                for duty, hold in self._dispatch.holds.items()
                if hold.ending_s is None and hold.end - hold.at < FAR
            ]

    def wake(self) -> float:
        """Deal what has become ready with time; when to do so again."""
        with self.lock:
            self._deal()
            return self._dispatch.wake_s()

    def in_flight(self) -> list[Assigned]:
        with self.lock:
            return list(self._dispatch.in_hand.values())

    def stop(self, computation: str) -> None:
        with self.lock:
            self._dispatch.stop(computation)

    def start(self, computation: str) -> None:
        with self.lock:
            self._dispatch.start(computation)
            self._deal()

    def close(self) -> None:
        """There is no more work for anybody."""
        with self.lock:
            self._closed = True
            for box in self._boxes.values():
                box.put(None)

    # What there is to see

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held any more."""
        with self.lock:
            return not self._dispatch.holds and not self._farewells

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and nothing held is left to do."""
        with self.lock:
            return not self._dispatch.in_hand and all(
                hold.at >= hold.end or hold.stopped for hold in self._dispatch.holds.values()
            )

    def holds(self) -> list[tuple[DutyState, DutyRecord]]:
        with self.lock:
            return [(hold, self._charges[duty]) for duty, hold in self._dispatch.holds.items()]

    def lag(self, computation: str) -> tuple[int, float]:
        """Of the shards held here: in records, and in seconds since the last one handled."""
        with self.lock:
            records, since_s = 0, 0.0
            for duty, hold in self._dispatch.holds.items():
                if duty.computation == computation and hold.end > hold.at:
                    records += hold.end - hold.at
                    handled_ms = self._charges[duty].handled_ms
                    if handled_ms:
                        since_s = max(since_s, (now_ms() - handled_ms) / 1000)
            return records, since_s

    # Below

    def _deal(self) -> None:
        for given in self._dispatch.deal(self.clock()):
            self._boxes[given.lane].put(self._work(given))

    def _work(self, given: Assigned) -> Work:
        charge = self._charges[given.duty]
        hold = self._dispatch.holds[given.duty]
        return Work(
            number=given.number,
            computation=given.duty.computation,
            stream=charge.grant.stream.name,
            stream_id=charge.grant.stream.id,
            shard=charge.grant.shard,
            token=given.token,
            start=given.start,
            end=given.end,
            warm=given.warm,
            step=hold.most,
            attempts=charge.attempts.encoded(),
            timers=charge.timers,
        )

    def _in_hand(self, lane: int, number: int) -> Assigned:
        given = self._dispatch.in_hand.get(lane)
        if given is None or given.number != number:
            raise LaneLost(f"lane {lane} was given up, and slice {number} with it")
        return given

    def _in_flight(self, duty: Duty, token: bytes) -> Assigned | None:
        hold = self._dispatch.holds.get(duty)
        return hold.given if hold is not None and hold.token == token else None

    def _forget(self, lane: int, duty: Duty | None) -> None:
        self._boxes.pop(lane, None)
        self._farewells.lost(lane)
        if duty is not None:
            self.counters[duty.computation].lanes_lost += 1

    def _count(self, given: Assigned, report: Report) -> None:
        counters = self.counters[given.duty.computation]
        if report.outcome == "fenced":
            counters.not_stored += 1
            return
        counters.processed += report.records
        counters.outputs += report.outputs
        counters.failures += report.failures
        counters.retries += report.retries
        counters.skipped += report.skipped
        counters.dead_letters += report.dead_letters
        counters.slices += 1
        counters.busy_s += report.spent_s
        if report.at_ms:
            counters.behind_s.append(max(now_ms() - report.at_ms, 0) / 1000)
        if report.reason:
            counters.last_failure = report.reason
        if report.failures and counters.first_failure_ms is None:
            counters.first_failure_ms = now_ms()
        self._judges[given.duty.computation].handled(report.records)

    def _settled(self, lane: int, given: Assigned, report: Report) -> DutyState | None:
        """What becomes of the duty; None if its grant is over anyway."""
        now_s, dispatch, number = self.clock(), self._dispatch, report.number
        charge = self.charge(given.duty, given.token)
        if charge is not None:
            if report.attempts is not None:
                charge.attempts = Attempts.decoded(report.attempts)
            charge.handled_ms = report.at_ms or charge.handled_ms
            if report.timers is not None:
                charge.timers = report.timers
        match report.outcome:
            case "parked":
                hold = dispatch.park(lane, number, report.next, now_s + report.wait_s, now_s)
            case "stopped":
                hold = dispatch.stop_shard(lane, number, report.next, now_s)
            case "fenced":
                hold = dispatch.doubt(lane, number, now_s)
            case "rewound" if report.rewind is not None:
                hold = dispatch.doubt(lane, number, now_s)
            case "rewound":
                wait_s = 0.0 if charge is None else self._rewound(given.duty, charge, report.next)
                hold = dispatch.park(lane, number, report.next, now_s + wait_s, now_s)
            case _:
                hold = dispatch.done(
                    lane, number, report.next, now_s, records=report.records, spent_s=report.spent_s
                )
        if hold is None or charge is None:
            return None
        if charge.timers:
            left_s = min(charge.timers.values()) - time.time()
            dispatch.timer(given.duty, now_s + max(left_s, 0.0))
        if hold.most and report.next >= charge.careful_to:
            dispatch.limit(given.duty, 0)
        if report.outcome in ("stopped", "fenced") or report.rewind is not None:
            self.calls.put(GroupCall(given.duty, charge.grant, report))
            self._on_call()
        return hold

    def _rewound(self, duty: Duty, charge: DutyRecord, to: int) -> float:
        """At once the first time; who goes back to the same place again and again, waits."""
        again = charge.rewound_to == to
        charge.rewinds = charge.rewinds + 1 if again else 0
        charge.rewound_to = to
        if not charge.rewinds:
            return 0.0
        wait_s = self._judges[duty.computation].policy.wait_s(charge.rewinds)
        log.warning("%s: back to offset %d once more, in %g s", duty, to, wait_s)
        return wait_s


def _no_more(box: queue.SimpleQueue[Work | None] | None) -> queue.SimpleQueue[Work | None]:
    box = queue.SimpleQueue() if box is None else box
    box.put(None)
    return box
