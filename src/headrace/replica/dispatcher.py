"""Carries out what the pure `Dispatch` decides: lanes ask and report here, from any thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping

from headrace.core.computations.dispatch import Assigned, Dispatch, Duty, DutyState, LostSlice
from headrace.core.computations.verdict import FailureJudge, Verdict
from headrace.core.errors import LaneLost
from headrace.core.ports import Grant
from headrace.lanes.protocol import Failed, Report, Work
from headrace.process.clock import now_ms
from headrace.replica.closing import ClosingShards
from headrace.replica.counters import Counters
from headrace.replica.duty_record import DutyRecord, GroupCall

log = logging.getLogger("headrace")

FAR = 16_384
"""Of a shard that is known to have this many more records, the end need not be looked up."""


class Dispatcher:
    """The dispatcher of one replica. Any thread may call it."""

    def __init__(
        self,
        dispatch: Dispatch,
        judges: Mapping[str, FailureJudge],
        *,
        closing: Collection[str] = (),
        on_call: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """``closing`` are the computations that want to be closed before a shard goes. ``on_call``
        is called when there is a group call to take, or something may have ended. ``clock`` is
        monotonic, in seconds; ``now_ms`` is the clock on the wall."""
        self._dispatch = dispatch
        self._judges = judges
        self._on_call = on_call
        self._clock = clock
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self.counters = {name: Counters() for name in dispatch.rules}
        self._group_calls: queue.SimpleQueue[GroupCall] = queue.SimpleQueue()
        self._records: dict[Duty, DutyRecord] = {}
        self._inboxes: dict[int, queue.SimpleQueue[Work | None]] = {}
        """What each lane gets next."""
        self._closing: ClosingShards[DutyRecord] = ClosingShards(closing)
        self._closed = False

    # For lanes

    def enter(self, lane: int) -> None:
        """A lane of that number will ask."""
        with self._lock:
            self._inboxes[lane] = queue.SimpleQueue()

    def ask(self, lane: int) -> Work | None:
        return self.ask_soon(lane).get()

    def ask_soon(self, lane: int) -> queue.SimpleQueue[Work | None]:
        """As `ask`, without waiting: the answer comes into the queue."""
        with self._lock:
            inbox = self._inboxes.get(lane)
            if inbox is None or self._closed:
                return _no_more(inbox)
            closing = self._closing.next(lane)
            if closing is not None:
                inbox.put(closing)
                return inbox
            self._dispatch.ask(lane)
            self._deal()
            return inbox

    def failed(self, lane: int, failed: Failed) -> Verdict:
        with self._lock:
            assigned = self._in_hand(lane, failed.number)
            judge = self._judges[assigned.duty.computation]
            return judge.failed(failed.failed, failed.retries, failed.handled)

    def report(self, lane: int, report: Report) -> None:
        with self._lock:
            if self._closing.knows(report.number):
                self._closing.done(report.number)
                self._on_call()
                return
            assigned = self._in_hand(lane, report.number)
            name = assigned.duty.computation
            self.counters[name].add(report, self._now_ms())
            if report.outcome != "fenced":
                self._judges[name].handled(report.records)
            state = self._settled(lane, assigned, report)
            if state is not None and (state.ending_s is not None or state.ready_s > self._clock()):
                self._on_call()  # it may be let go, or it comes back at a time of its own
            self._deal()

    # For the replica

    def begin(
        self,
        duty: Duty,
        record: DutyRecord,
        at: int,
        end: int,
        *,
        parked_s: float | None = None,
        records_max: int = 0,
        call_at_once: bool = False,
    ) -> None:
        """Work on a duty begins at ``at``, or when ``parked_s`` has come. A slice has
        ``records_max`` records at most, or as many as fit: 0. ``call_at_once``: the computation is
        called even if there is no record."""
        with self._lock:
            now_s = self._clock()
            self._records[duty] = record
            token = record.grant.token
            self._dispatch.begin(duty, token, at, end, now_s, parked_s=parked_s, most=records_max)
            if call_at_once:
                self._dispatch.timer(duty, now_s)
            self._deal()

    def revoke(self, duty: Duty, token: bytes, until_s: float) -> Assigned | None:
        """The duty shall end by then; its slice in flight, if there is one."""
        with self._lock:
            self._dispatch.revoke(duty, token, until_s)
            return self._in_flight(duty, token)

    def lose(self, duty: Duty, token: bytes, until_s: float) -> Assigned | None:
        """The grant of the duty is over; its slice in flight, if there is one."""
        with self._lock:
            assigned = self._in_flight(duty, token)
            self._dispatch.lose(duty, token, until_s)
            self._closing.drop(duty, token)
            if self.record(duty, token) is not None:
                del self._records[duty]
            return assigned

    def gone(self) -> list[tuple[DutyState, DutyRecord]]:
        """The duties that have ended, as they should; they are forgotten."""
        with self._lock:
            found: list[tuple[DutyState, DutyRecord]] = []
            for state in self._dispatch.gone():
                record = self._records.pop(state.duty)
                if not self._closing.takes(state, record, record.grant, self._inboxes):
                    found.append((state, record))
            for lane in self._closing.lanes() & self._dispatch.waiting.keys():
                self._dispatch.withdraw(lane)
                self._inboxes[lane].put(self._closing.next(lane))
            return found + self._closing.over(self._clock())

    def overdue(self) -> list[LostSlice]:
        """The slices of lanes that did not end in time: these lanes are lost."""
        with self._lock:
            now_s = self._clock()
            lost = self._dispatch.overdue(now_s)
            for each in self._closing.overdue(now_s):
                self._dispatch.lane_lost(each.lane)  # shards may stay with it
                lost.append(each)
            for each in lost:
                self._forget_lane(each.lane, each.duty)
            return lost

    def lane_lost(self, lane: int, number: int | None = None) -> LostSlice | None:
        """The lane does not come back; what it had in hand. With a number, only if that slice is
        still in its hand."""
        with self._lock:
            assigned = self._dispatch.in_hand.get(lane)
            if number is not None and (assigned is None or assigned.number != number):
                return None
            lost = self._dispatch.lane_lost(lane)
            self._forget_lane(lane, None if lost is None else lost.duty)
            return lost

    def record(self, duty: Duty, token: bytes) -> DutyRecord | None:
        """What is known of a duty; None if its grant is over."""
        with self._lock:
            found = self._records.get(duty)
            return found if found is not None and found.grant.token == token else None

    def at(self, duty: Duty, token: bytes) -> int | None:
        """The offset where a duty goes on; None if its grant is over."""
        with self._lock:
            state = self._dispatch.holds.get(duty)
            return state.at if state is not None and state.token == token else None

    def ends(self, ends: Mapping[Duty, int]) -> None:
        """The shards go this far by now."""
        with self._lock:
            self._dispatch.ends(ends, self._clock())
            self._deal()

    def asks_ends(self) -> list[tuple[Duty, Grant]]:
        """The duties whose shards may go further than is known, and soon need to."""
        with self._lock:
            return [
                (duty, self._records[duty].grant)
                for duty, state in self._dispatch.holds.items()
                if state.ending_s is None and state.end - state.at < FAR
            ]

    def take_group_calls(self) -> list[GroupCall]:
        """What the groups must hear of, since the last call of this. For one thread."""
        return [self._group_calls.get() for _ in range(self._group_calls.qsize())]

    def wake(self) -> float:
        """Deal what has become ready with time; when to call this again."""
        with self._lock:
            self._deal()
            return self._dispatch.wake_s()

    def in_flight(self) -> list[Assigned]:
        with self._lock:
            return list(self._dispatch.in_hand.values())

    def stop(self, computation: str) -> None:
        with self._lock:
            self._dispatch.stop(computation)

    def start(self, computation: str) -> None:
        with self._lock:
            self._dispatch.start(computation)
            self._deal()

    def close(self) -> None:
        """There is no more work for any lane."""
        with self._lock:
            self._closed = True
            for inbox in self._inboxes.values():
                inbox.put(None)

    # What there is to see

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held any more."""
        with self._lock:
            return not self._dispatch.holds and not self._closing

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and nothing held is left to do."""
        with self._lock:
            return not self._dispatch.in_hand and all(
                state.at >= state.end or state.stopped for state in self._dispatch.holds.values()
            )

    def duties(self) -> list[tuple[DutyState, DutyRecord]]:
        """Everything that is held."""
        with self._lock:
            return [(state, self._records[duty]) for duty, state in self._dispatch.holds.items()]

    def lag(self, computation: str) -> tuple[int, float]:
        """The lag of the shards held here: in records, and in seconds since one was handled."""
        with self._lock:
            records, since_s = 0, 0.0
            for duty, state in self._dispatch.holds.items():
                if duty.computation == computation and state.end > state.at:
                    records += state.end - state.at
                    handled_ms = self._records[duty].handled_ms
                    if handled_ms:
                        since_s = max(since_s, (self._now_ms() - handled_ms) / 1000)
            return records, since_s

    # Below

    def _deal(self) -> None:
        for assigned in self._dispatch.deal(self._clock()):
            self._inboxes[assigned.lane].put(self._work(assigned))

    def _work(self, assigned: Assigned) -> Work:
        record = self._records[assigned.duty]
        state = self._dispatch.holds[assigned.duty]
        return Work(
            number=assigned.number,
            computation=assigned.duty.computation,
            stream=record.grant.stream.name,
            stream_id=record.grant.stream.id,
            shard=record.grant.shard,
            token=assigned.token,
            epoch=record.grant.epoch_shown,
            start=assigned.start,
            end=assigned.end,
            warm=assigned.warm,
            step=state.most,
            attempts=record.attempts.encoded(),
            timers=record.timers,
        )

    def _in_hand(self, lane: int, number: int) -> Assigned:
        assigned = self._dispatch.in_hand.get(lane)
        if assigned is None or assigned.number != number:
            raise LaneLost(f"lane {lane} was given up, and slice {number} with it")
        return assigned

    def _in_flight(self, duty: Duty, token: bytes) -> Assigned | None:
        state = self._dispatch.holds.get(duty)
        return state.given if state is not None and state.token == token else None

    def _forget_lane(self, lane: int, duty: Duty | None) -> None:
        self._inboxes.pop(lane, None)
        self._closing.lost(lane)
        if duty is not None:
            self.counters[duty.computation].lanes_lost += 1

    def _settled(self, lane: int, assigned: Assigned, report: Report) -> DutyState | None:
        """What becomes of the duty; None if its grant is over anyway."""
        now_s, duty = self._clock(), assigned.duty
        record = self.record(duty, assigned.token)
        if record is not None:
            record.update(report)
        state = self._state_after(lane, report, duty, record, now_s)
        if state is None or record is None:
            return None
        if record.timers:
            left_s = min(record.timers.values()) - self._now_ms() / 1000
            self._dispatch.timer(duty, now_s + max(left_s, 0.0))
        if state.most and report.next >= record.small_steps_to:
            self._dispatch.limit(duty, 0)
        if report.outcome in ("stopped", "fenced") or report.rewind is not None:
            self._group_calls.put(GroupCall(duty, record.grant, report))
            self._on_call()
        return state

    def _state_after(
        self, lane: int, report: Report, duty: Duty, record: DutyRecord | None, now_s: float
    ) -> DutyState | None:
        dispatch, number, next = self._dispatch, report.number, report.next
        match report.outcome:
            case "parked":
                return dispatch.park(lane, number, next, now_s + report.wait_s, now_s)
            case "stopped":
                return dispatch.stop_shard(lane, number, next, now_s)
            case "fenced":
                return dispatch.doubt(lane, number, now_s)
            case "rewound" if report.rewind is not None:
                return dispatch.doubt(lane, number, now_s)
            case "rewound":
                wait_s = 0.0 if record is None else self._rewound_wait_s(duty, record, next)
                return dispatch.park(lane, number, next, now_s + wait_s, now_s)
            case _:
                return dispatch.done(
                    lane, number, next, now_s, records=report.records, spent_s=report.spent_s
                )

    def _rewound_wait_s(self, duty: Duty, record: DutyRecord, to: int) -> float:
        """How long a duty waits that goes back to this offset: not at all the first time, then
        longer each time in a row."""
        rewinds = record.rewind(to)
        if not rewinds:
            return 0.0
        wait_s = self._judges[duty.computation].policy.wait_s(rewinds)
        log.warning("%s: back to offset %d once more, in %g s", duty, to, wait_s)
        return wait_s


def _no_more(inbox: queue.SimpleQueue[Work | None] | None) -> queue.SimpleQueue[Work | None]:
    inbox = queue.SimpleQueue() if inbox is None else inbox
    inbox.put(None)
    return inbox
