"""What the groups of a replica must hear of: stopped shards, lost lanes, checkpoints moved back.

What cannot be said now is said later, until the group has heard it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from headrace.core.computations.attempts import Attempts
from headrace.core.computations.dispatch import Duty
from headrace.core.errors import Fenced, Retryable, UnknownStream
from headrace.core.ports import Commit, Grant, Membership
from headrace.groups.grants import RETRY_S, commit_at
from headrace.lanes.bound import BoundComputation
from headrace.lanes.protocol import Report
from headrace.replica.dispatcher import Dispatcher
from headrace.replica.duty_record import GroupCall

log = logging.getLogger("headrace")


class GroupCalls:
    """Used by the replica's own thread."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        bound: Mapping[str, BoundComputation],
        memberships: Mapping[str, Membership],
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self._dispatcher = dispatcher
        self._bound = bound
        self._memberships = memberships
        self._clock = clock
        self._now_ms = now_ms
        self._waiting: list[tuple[float, GroupCall]] = []
        """With the time before which a call is not made."""
        self._terminated: set[str] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether there are calls that are not made yet."""
        return bool(self._waiting)

    def add(self, call: GroupCall) -> None:
        self._waiting.append((0.0, call))

    def fence(self, duty: Duty, token: bytes) -> None:
        """Have the grant end under which a lane was lost, if it is not over."""
        record = self._dispatcher.record(duty, token)
        if record is not None:
            self.add(GroupCall(duty, record.grant, None))

    def forget(self, computation: str) -> None:
        """The group of a computation is to hear nothing more."""
        self._waiting = [
            (at_s, call) for at_s, call in self._waiting if call.duty.computation != computation
        ]

    def make(self) -> None:
        """Make the calls whose time has come, those of the dispatcher too."""
        for call in self._dispatcher.take_group_calls():
            self.add(call)
        now_s = self._clock()
        waiting, self._waiting = self._waiting, []
        for at_s, call in waiting:
            if now_s < at_s:
                self._waiting.append((at_s, call))
                continue
            try:
                self._make(call)
            except Retryable as why:
                log.warning("%s: told later: %s", call.duty, why)
                self._waiting.append((now_s + RETRY_S, call))

    def note(self, duty: Duty, token: bytes, changed: Callable[[Attempts], Attempts]) -> None:
        """Store what is known of the attempts by now, while the grant is still valid."""
        record, at = self._dispatcher.record(duty, token), self._dispatcher.at(duty, token)
        if record is None or at is None:
            return
        commit = attempts_commit(record.grant, at, changed(record.attempts))
        (error,) = self._memberships[duty.computation].commit([commit])
        if error is not None and not isinstance(error, Fenced):
            log.warning("%s: not noted: %s", duty, error)

    # Below

    def _make(self, call: GroupCall) -> None:
        duty, grant, report = call
        membership = self._memberships.get(duty.computation)
        if membership is None:
            return
        if report is not None and report.outcome == "stopped":
            self._note_stop(duty, grant, report)
            membership.stop(grant)
            self._count_stop(duty, grant, report)
        elif report is not None and report.rewind is not None:
            # Another member may have the shard by now, or the stream may be deleted.
            with suppress(Fenced, UnknownStream):
                membership.move(grant, report.rewind)
        else:
            membership.fence(grant)

    def _note_stop(self, duty: Duty, grant: Grant, report: Report) -> None:
        """Store why the shard stops, if the lane could not."""
        record = self._dispatcher.record(duty, grant.token)
        if record is None or record.attempts.stopped:
            return
        code = self._bound[duty.computation].code
        attempts = record.attempts.failed_again(report.next, self._now_ms(), code, report.reason)
        record.attempts = attempts._replace(stopped=True)
        self.note(duty, grant.token, lambda known: known)

    def _count_stop(self, duty: Duty, grant: Grant, report: Report) -> None:
        name = duty.computation
        record = self._dispatcher.record(duty, grant.token)
        log.error(
            "%s: stopped at %s+%d: %s; see headrace group show %s",
            name, duty.shard, report.next, report.reason, name,
        )  # fmt: skip
        if record is not None and record.attempts.code:
            self._dispatcher.counters[name].stopped += 1
            if name not in self._terminated:
                self._terminated.add(name)
                log.error("Terminate computation: %s due to previous failure", name)


def attempts_commit(grant: Grant, at: int, attempts: Attempts) -> Commit:
    """A commit that stores what is known of the attempts, and nothing else."""
    is_blank = not (attempts.failed or attempts.deaths or attempts.working or attempts.stopped)
    return commit_at(grant, at, b"" if is_blank else attempts.encoded())
