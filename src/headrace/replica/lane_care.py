"""Care for the lanes of a replica: those that die, hang, or take too long are given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from headrace.core.computations.attempts import Attempts
from headrace.core.computations.dispatch import Assigned
from headrace.engines.engine import Lanes
from headrace.lanes.bound import BoundComputation
from headrace.replica.dispatcher import Dispatcher
from headrace.replica.group_calls import GroupCalls
from headrace.replica.watchdog import Watchdog

log = logging.getLogger("headrace")


class LaneCare:
    """Used by the replica's own thread."""

    def __init__(
        self,
        lanes: Lanes,
        dispatcher: Dispatcher,
        bound: Mapping[str, BoundComputation],
        group_calls: GroupCalls,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._lanes = lanes
        self._dispatcher = dispatcher
        self._bound = bound
        self._group_calls = group_calls
        self._clock = clock
        self._now_ms = now_ms
        self._watchdog = Watchdog()
        self.gave_up = False
        """A lane had to be given up because it did not end in time."""

    def cut(self, assigned: Assigned | None) -> None:
        """Have a slice end behind the record in hand, if there is a slice."""
        if assigned is not None:
            self._lanes.cut(assigned.lane, assigned.number)

    def look(self) -> None:
        """Look after all lanes."""
        for lane in self._lanes.died():
            lost = self._dispatcher.lane_lost(lane)
            log.error("lane %d has died%s", lane, f" with {lost.duty}" if lost else "")
            if lost is not None:
                self._group_calls.fence(lost.duty, lost.token)
        for lost in self._dispatcher.overdue():
            log.warning("lane %d does not end with %s: it is given up", lost.lane, lost.duty)
            self.gave_up = True
            self._lanes.kill(lost.lane)
            # The hand-over had no time; nothing says that the record in hand is at fault.
            self._group_calls.note(lost.duty, lost.token, Attempts.ended)
        self._look_at_slices()

    def join(self, timeout_s: float) -> None:
        """Wait for the lanes to end; those that have not by then are given up."""
        if not self._lanes.join(timeout_s):
            self.gave_up = True

    def _look_at_slices(self) -> None:
        now_s = self._clock()
        for assigned in self._watchdog.look(self._dispatcher.in_flight(), self._lanes, now_s):
            timeout_s = self._bound[assigned.duty.computation].policy.timeout_s
            late = self._watchdog.late(assigned, timeout_s, now_s)
            if late == "unheard":
                self._give_up_hung(assigned)
            elif late is not None:
                self._give_up_late(assigned, late, timeout_s or 0.0)

    def _give_up_hung(self, assigned: Assigned) -> None:
        """The lane hangs, at a record that is not known or at none. That is dealt with as if its
        process had died."""
        if self._dispatcher.lane_lost(assigned.lane, assigned.number) is not None:
            log.warning("lane %d hangs with %s: it is given up", assigned.lane, assigned.duty)
            self._lanes.kill(assigned.lane)
            self._group_calls.fence(assigned.duty, assigned.token)

    def _give_up_late(self, assigned: Assigned, offset: int, timeout_s: float) -> None:
        """One record takes too long: its lane is given up, and the attempt has failed."""
        if self._dispatcher.lane_lost(assigned.lane, assigned.number) is None:
            return
        self._lanes.kill(assigned.lane)
        name, where = assigned.duty.computation, f"{assigned.duty.shard}+{offset}"
        reason = f"TimeoutError: it took longer than {timeout_s:g} s"
        log.warning("%s: %s failed: %s", name, where, reason)
        counters = self._dispatcher.counters[name]
        counters.failures += 1
        counters.last_failure = reason
        code = self._bound[name].code
        self._group_calls.note(
            assigned.duty,
            assigned.token,
            lambda known: known.failed_again(offset, self._now_ms(), code, reason).ended(),
        )
        self._group_calls.fence(assigned.duty, assigned.token)
