"""A replica: one process's part in running a topology. It is a member of the group of each of its
computations, and gives the shards it gets to its lanes.

One thread keeps the memberships: it begins what is granted, lets go what shall go, gives up lanes
that hang. Another looks for new records. Handlers run in the lanes, and keep neither waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from headrace.core.computations.dispatch import Dispatch, Rules
from headrace.core.computations.verdict import FailureJudge
from headrace.core.errors import BadSetting, HeadraceError, Retryable
from headrace.core.ports import Backend, Membership
from headrace.engines.engine import Lanes
from headrace.groups.admin import Groups
from headrace.groups.grants import GrantKeeper
from headrace.groups.home import home_of
from headrace.lanes.bound import BoundComputation
from headrace.process.clock import now_ms
from headrace.process.failpoints import failpoint
from headrace.process.wakeup import Wakeup
from headrace.replica.dispatcher import Dispatcher
from headrace.replica.duty_grants import DutyFacts, DutyGrants
from headrace.replica.group_calls import GroupCalls, attempts_commit
from headrace.replica.lane_care import LaneCare
from headrace.replica.new_records import NewRecords
from headrace.streams.start import StartPolicy

log = logging.getLogger("headrace")

TICK_S = 0.02
TICK_S_IDLE = 0.1
NEW_CODE_S = 1.0
"""How often a replica looks for shards that other code has stopped."""
JOIN_S = 5.0


class Replica:
    """Made by `headrace.start`; `stop` it, or use it in a ``with`` block."""

    def __init__(
        self,
        backend: Backend,
        bound: Mapping[str, BoundComputation],
        memberships: Mapping[str, Membership],
        made_lanes: Callable[[Dispatcher, int], Lanes],
        *,
        name: str,
        lanes: int,
        allocation: str,
        shares_a_process: bool,
        handler_s_max: float,
        skip_first_failures: int = 0,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = now_ms,
    ) -> None:
        """``shares_a_process``: the lanes do, with each other. ``clock`` is monotonic, in seconds;
        ``now_ms`` is the clock on the wall."""
        self.name = name
        self._backend = backend
        self._bound = bound
        self._memberships = dict(memberships)
        self._handler_s_max = handler_s_max
        self._clock = clock
        self._wakeup = Wakeup()
        self.dispatcher = Dispatcher(
            Dispatch(
                {name: _rules(each) for name, each in bound.items()},
                lanes,
                allocation,  # type: ignore[arg-type]
                alone=shares_a_process,
            ),
            {name: FailureJudge(each.policy, skip_first_failures) for name, each in bound.items()},
            closing={name for name, each in bound.items() if each.wants_closing},
            on_call=self._wakeup.ring,
            clock=clock,
            now_ms=now_ms,
        )
        self._lanes = made_lanes(self.dispatcher, lanes)
        self._group_calls = GroupCalls(
            self.dispatcher, bound, self._memberships, clock=clock, now_ms=now_ms
        )
        self._lane_care = LaneCare(
            self._lanes, self.dispatcher, bound, self._group_calls, clock=clock, now_ms=now_ms
        )
        self._grants = {
            name: self._grant_keeper(bound[name], membership, now_ms)
            for name, membership in memberships.items()
        }
        self._new_records = NewRecords(backend.log, self.dispatcher, self._unwatched, clock=clock)
        self._new_code_at_s = 0.0
        self._ending_s: float | None = None
        """When all work has ended at the latest; None: the replica shall not end."""
        self._end_within_s: deque[float] = deque()
        """Requests to end, and within how many seconds; the shortest counts. No lock guards them,
        for signal handlers make such requests too."""
        self.failures: dict[str, HeadraceError] = {}
        """Computations that ended here, and why."""
        self.failure: BaseException | None = None
        """Why the replica ended, if that was a mistake."""
        self.ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="headrace-replica", daemon=True)

    def _grant_keeper(
        self, bound: BoundComputation, membership: Membership, now_ms: Callable[[], int]
    ) -> GrantKeeper[DutyFacts]:
        listener = DutyGrants(
            bound,
            self._backend.log,
            home_of(self._backend),
            membership,
            self.dispatcher,
            self._lane_care,
            self._group_calls,
            clock=self._clock,
            now_ms=now_ms,
        )
        return GrantKeeper(
            membership,
            StartPolicy(self._backend.log, bound.computation.start),
            listener,
            owner=f"replica {self.name}",
            handler_s_max=self._handler_s_max,
            clock=self._clock,
        )

    # Life

    def start(self) -> None:
        self._lanes.start()  # first: a shard that is granted before lanes can work would pause
        joined: list[Membership] = []
        try:
            for membership in self._memberships.values():
                membership.join()
                joined.append(membership)
            self._look_for_new_code()
        except BaseException:
            for membership in joined:
                membership.leave()
            self.dispatcher.close()
            self._lanes.join(JOIN_S)
            raise
        self._wakeup.ring()
        self._keeper.start()
        self._new_records.start()

    def end(self, timeout_s: float | None = None) -> None:
        """Let the slices in flight end, commit, leave; in the background. A signal handler may call
        this, for it takes no lock."""
        self._end_within_s.append(self._handler_s_max if timeout_s is None else timeout_s)
        self._wakeup.ring()

    def stop(self, timeout: float | None = None) -> bool:
        """As `end`, and wait for it: True if no lane had to be given up."""
        self.end(timeout)
        self._keeper.join()
        return not self._lane_care.gave_up

    # The thread that keeps the memberships

    def _keep(self) -> None:
        try:
            while not self._is_over():
                self._wakeup.wait(self._tick_s())
                self._turn()
        except BaseException as why:
            self.failure = why
            if isinstance(why, HeadraceError):
                log.error("replica %s ends: %s", self.name, why)
            else:
                log.exception("replica %s ends by a mistake", self.name)
        finally:
            self._leave()

    def _turn(self) -> None:
        self._check_ending()
        self._hear()
        self._lane_care.look()
        self._group_calls.make()
        self._let_go()
        self._look_for_new_code()

    def _tick_s(self) -> float:
        wake_s = self.dispatcher.wake() - self._clock()
        is_busy = (
            bool(self.dispatcher.in_flight())
            or self._group_calls.is_waiting
            or any(keeper.is_beginning for keeper in self._grants.values())
        )
        return max(min(wake_s, TICK_S if is_busy else TICK_S_IDLE), 0.001)

    def _is_over(self) -> bool:
        return self._ending_s is not None and self.dispatcher.is_empty

    def _check_ending(self) -> None:
        requests = [self._end_within_s.popleft() for _ in range(len(self._end_within_s))]
        if not requests:
            return
        until_s = self._clock() + min(requests)
        if self._ending_s is None:
            self._lane_care.gave_up = False  # a lane that was late before is another matter
        if self._ending_s is None or until_s < self._ending_s:
            self._ending_s = until_s
            for keeper in self._grants.values():
                keeper.prepare_to_leave()
            for state, _ in self.dispatcher.duties():
                self._lane_care.cut(self.dispatcher.revoke(state.duty, state.token, until_s))

    def _unwatched(self, why: HeadraceError) -> None:
        """New records are not seen any more."""
        self.failure = why
        self.end(0.0)

    def _leave(self) -> None:
        self._new_records.stop()
        self.dispatcher.close()
        self._lane_care.join(JOIN_S)
        for keeper in self._grants.values():
            keeper.leave()
        self.ended.set()

    # What is granted and taken away

    def _hear(self) -> None:
        for name, keeper in list(self._grants.items()):
            try:
                keeper.hear()
            except HeadraceError as why:
                self._give_up(name, why)
        has_begun = [keeper.begin_pending() for keeper in self._grants.values()]
        if any(has_begun):
            # What was written before the dispatcher knew the shard is found by no other look.
            self._new_records.look()

    def _give_up(self, name: str, why: HeadraceError) -> None:
        """A computation cannot go on here: its input is deleted, or another replica took its place.
        The others go on."""
        log.error("computation %s ends in %s: %s", name, self.name, why)
        self.failures[name] = why
        until_s = self._clock() + self._handler_s_max
        for state, _ in self.dispatcher.duties():
            if state.duty.computation == name:
                self._lane_care.cut(self.dispatcher.lose(state.duty, state.token, until_s))
        self._group_calls.forget(name)
        del self._grants[name]
        with suppress(HeadraceError):  # its place is not there any more
            self._memberships.pop(name).leave()
        if not self._memberships:
            self.failure = why
            self.end(0.0)

    def _let_go(self) -> None:
        """Take back the notes of the duties that have ended, and release their shards."""
        gone = self.dispatcher.gone()
        if not gone:
            return
        failpoint("replica.before-release")
        for name, keeper in self._grants.items():
            mine = [(state, record) for state, record in gone if state.duty.computation == name]
            # A note that stays looks as if a process had died there: that is not worth a retry.
            notes = [
                attempts_commit(record.grant, state.at, record.attempts.ended())
                for state, record in mine
                if not state.doubtful and record.attempts.working
            ]
            keeper.let_go([record.grant for _, record in mine], notes)
        failpoint("replica.after-release")

    # New code

    def _look_for_new_code(self) -> None:
        """Shards that were stopped by other code go on with this one."""
        now_s = self._clock()
        if now_s < self._new_code_at_s or self._ending_s is not None:
            return
        self._new_code_at_s = now_s + NEW_CODE_S
        groups = Groups(self._backend)
        for name, bound in self._bound.items():
            group = groups.load(name)
            stopped = [s for s, standing in group.shards.items() if standing.stopped]
            if not stopped:
                continue
            attempts = groups.attempts(group)
            for shard in stopped:
                known = attempts.get(shard)
                if known is not None and known.code and known.code != bound.code:
                    log.warning("%s %s: stopped by other code, goes on with this", name, shard)
                    # Another replica was quicker, or the next look will see to it.
                    with suppress(BadSetting, Retryable):
                        groups.resume(name, shard)


def _rules(bound: BoundComputation) -> Rules:
    computation = bound.computation
    if computation.kind == "batch":
        return Rules(
            concurrency=bound.concurrency,
            capacity=computation.capacity,
            threshold_s=computation.threshold_s,
        )
    return Rules(concurrency=bound.concurrency, sticky=computation.is_class)
