"""The grants of one computation in a replica: granted shards become duties of its dispatcher.

When work begins, a *note* is stored with the start: it says that work goes on there. A later owner
that finds the note knows that this one died, if it did.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headrace.core.computations.attempts import CAREFUL_STEP, Attempts
from headrace.core.computations.dispatch import SLICE_RECORDS_MAX, Duty
from headrace.core.errors import HeadraceError
from headrace.core.model import ShardId
from headrace.core.ports import Begin, Commit, Grant, GroupHome, Log, Membership
from headrace.groups.grants import Prepared
from headrace.lanes.bound import BoundComputation
from headrace.lanes.protocol import Report
from headrace.process.failpoints import failpoint
from headrace.replica.dispatcher import Dispatcher
from headrace.replica.duty_record import DutyRecord, GroupCall
from headrace.replica.group_calls import GroupCalls
from headrace.replica.lane_care import LaneCare

log = logging.getLogger("headrace")


class DutyFacts(NamedTuple):
    """What was looked up before work begins."""

    attempts: Attempts
    end: int
    """How far the shard goes."""


class DutyGrants:
    """The `GrantListener` of one computation."""

    def __init__(
        self,
        bound: BoundComputation,
        records: Log,
        home: GroupHome,
        membership: Membership,
        dispatcher: Dispatcher,
        lane_care: LaneCare,
        group_calls: GroupCalls,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._bound = bound
        self._records = records
        self._home = home
        self._membership = membership
        self._dispatcher = dispatcher
        self._lane_care = lane_care
        self._group_calls = group_calls
        self._clock = clock
        self._now_ms = now_ms

    def prepare(self, begin: Begin, at: int) -> Prepared[DutyFacts] | None:
        grant = begin.grant
        end = self._records.bounds(grant.stream, grant.shard).end
        stored = self._stored_attempts(grant)
        if stored.stopped and stored.offset >= at:
            # The replica that stopped the shard died before the group heard of it.
            report = Report(number=0, next=at, outcome="stopped", reason=stored.reason)
            self._group_calls.add(GroupCall(self._duty(grant), grant, report))
            return None
        if end <= at:  # there was nothing to die of
            stored = stored.ended()
        attempts = stored.begun(at)
        return Prepared(attempts.encoded(), DutyFacts(attempts, end))

    def store(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        failpoint("replica.before-begin")
        errors = self._membership.commit(commits)
        failpoint("replica.after-begin")
        return errors

    def begin(self, grant: Grant, at: int, facts: DutyFacts) -> None:
        duty, attempts, policy = self._duty(grant), facts.attempts, self._bound.policy
        parked_s = None
        if attempts.failed and policy.tries_again(attempts.failed):
            wait_s = policy.wait_s(attempts.failed)
            left_s = wait_s - (self._now_ms() - attempts.at_ms) / 1000
            parked_s = self._clock() + min(max(left_s, 0.0), wait_s)
        step = attempts.step(policy.deaths)
        if step:
            log.warning(
                "%s: %d processes died while they worked on it: going on in steps of %d",
                duty, attempts.deaths, step,
            )  # fmt: skip
        small_steps_to = at + (CAREFUL_STEP if step == 1 else SLICE_RECORDS_MAX)
        self._dispatcher.begin(
            duty,
            DutyRecord(grant, attempts, small_steps_to),
            at,
            facts.end,
            parked_s=parked_s,
            records_max=step,
            call_at_once=self._bound.calls_itself,
        )

    def end(self, grant: Grant, until_s: float) -> None:
        self._lane_care.cut(self._dispatcher.revoke(self._duty(grant), grant.token, until_s))

    def lose(self, grant: Grant, until_s: float) -> None:
        self._lane_care.cut(self._dispatcher.lose(self._duty(grant), grant.token, until_s))

    def _duty(self, grant: Grant) -> Duty:
        return Duty(self._bound.computation.name, ShardId(grant.stream.name, grant.shard))

    def _stored_attempts(self, grant: Grant) -> Attempts:
        found = self._home.attempts(grant.group, grant.stream, grant.shard)
        return Attempts() if found is None else Attempts.decoded(found)
