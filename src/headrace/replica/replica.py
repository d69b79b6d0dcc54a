"""A replica: one process's part in running a topology. It is a member of the group of each of its
computations, and gives the shards it gets to its lanes.

One thread keeps the memberships: it begins what is granted, lets go what shall go, gives up lanes
that hang. Another watches for new records. Handlers run in the lanes, and keep neither waiting.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from headrace.core import store_keys
from headrace.core.computations.attempts import CAREFUL_STEP, Attempts
from headrace.core.computations.dispatch import SLICE_RECORDS_MAX, Assigned, Dispatch, Duty, Rules
from headrace.core.computations.verdict import FailureJudge
from headrace.core.errors import BadSetting, Fenced, HeadraceError, Retryable, UnknownStream
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Backend, Begin, Commit, End, Grant, Lost, Membership
from headrace.engines.engine import Lanes
from headrace.groups.admin import Groups
from headrace.lanes.bound import BoundComputation
from headrace.lanes.protocol import Report
from headrace.process.clock import now_ms
from headrace.process.failpoints import failpoint
from headrace.process.wakeup import Wakeup
from headrace.replica.dispatcher import Dispatcher, GroupCall
from headrace.replica.new_records import NewRecords
from headrace.replica.watchdog import Watchdog
from headrace.streams.start import StartPolicy

log = logging.getLogger("headrace")

TICK_S = 0.02
TICK_S_IDLE = 0.1
NEW_CODE_S = 1.0
"""So often it looks for shards that other code has stopped."""
AGAIN_S = 0.5
"""After so long that is tried again which could not be stored."""
JOIN_S = 5.0


class Replica:
    """Made by `headrace.start`; `stop` it, or use it in a ``with`` block."""

    def __init__(
        self,
        backend: Backend,
        kits: Mapping[str, BoundComputation],
        memberships: Mapping[str, Membership],
        made_lanes: Callable[[Dispatcher, int], Lanes],
        *,
        name: str,
        lanes: int,
        allocation: str,
        alone: bool,
        handler_s_max: float,
        skip_first_failures: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.kits = kits
        self._backend = backend
        self._memberships = dict(memberships)
        self._handler_s_max = handler_s_max
        self._positions = {
            n: StartPolicy(backend, kit.computation.start) for n, kit in kits.items()
        }
        self._bell = Wakeup()
        rules = {name: _rules(kit) for name, kit in kits.items()}
        judges = {name: FailureJudge(kit.policy, skip_first_failures) for name, kit in kits.items()}
        dispatch = Dispatch(rules, lanes, allocation, alone=alone)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(
            dispatch,
            judges,
            closing={name for name, kit in kits.items() if kit.wants_closing},
            on_call=self._bell.ring,
            clock=clock,
        )
        self._lanes = made_lanes(self.dispatcher, lanes)
        self._to_begin: dict[tuple[Duty, bytes], Begin] = {}
        self._begin_at_s = 0.0
        self._new_code_at_s = 0.0
        self._calls: list[tuple[float, GroupCall]] = []
        """What is to be told to groups, and when."""
        self._watchdog = Watchdog()
        self._terminated: set[str] = set()
        self._ending_s: float | None = None
        self._wishes: deque[float] = deque()
        """To end within so many seconds; the shortest holds. No lock: signal handlers wish, too."""
        self._ends = NewRecords(backend, self.dispatcher, self._unwatched)
        self.failures: dict[str, HeadraceError] = {}
        """Computations that ended here, and why."""
        self.failure: BaseException | None = None
        """Why it ended, if that was a mistake."""
        self.ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="headrace-replica", daemon=True)

    # Life

    def start(self) -> None:
        self._lanes.start()  # first: what is granted to who cannot work yet, pauses
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
        self._bell.ring()
        self._keeper.start()
        self._ends.start()

    def end(self, timeout_s: float | None = None) -> None:
        """Let the slices in flight end, commit, leave; in the background. It takes no lock, for
        signal handlers."""
        self._wishes.append(self._handler_s_max if timeout_s is None else timeout_s)
        self._bell.ring()

    def stop(self, timeout: float | None = None) -> bool:
        """The same, and wait for it: True if nothing had to be given up."""
        self.end(timeout)
        self._keeper.join()
        return not self._gave_up

    _gave_up = False

    # The thread that keeps the memberships

    def _keep(self) -> None:
        try:
            while not self._is_over():
                self._bell.wait(self._tick_s())
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
        for name in list(self._memberships):
            try:
                self._hear(name, self._memberships[name])
            except HeadraceError as why:
                self._give_up(name, why)
        self._begin_all()
        self._look_after_lanes()
        self._heed_calls()
        self._let_go()
        self._look_for_new_code()

    def _tick_s(self) -> float:
        wake_s = self.dispatcher.wake() - self.dispatcher.clock()
        busy = bool(self.dispatcher.in_flight() or self._to_begin or self._calls)
        return max(min(wake_s, TICK_S if busy else TICK_S_IDLE), 0.001)

    def _is_over(self) -> bool:
        return self._ending_s is not None and self.dispatcher.is_empty

    def _check_ending(self) -> None:
        wishes = [self._wishes.popleft() for _ in range(len(self._wishes))]
        if not wishes:
            return
        until_s = self.dispatcher.clock() + min(wishes)
        if self._ending_s is None:
            self._gave_up = False  # what was late before has nothing to do with this
        if self._ending_s is None or until_s < self._ending_s:
            self._ending_s = until_s
            self._to_begin.clear()  # freed by leaving
            for hold, _ in self.dispatcher.holds():
                self._cut(self.dispatcher.revoke(hold.duty, hold.token, until_s))

    def _unwatched(self, why: HeadraceError) -> None:
        """Nobody sees new records any more."""
        self.failure = why
        self.end(0.0)

    def _leave(self) -> None:
        self._ends.stop()
        self.dispatcher.close()
        if not self._lanes.join(JOIN_S):
            self._gave_up = True
        for membership in self._memberships.values():
            try:
                membership.leave()
            except HeadraceError as why:
                log.warning("replica %s has left without saying so: %s", self.name, why)
        self.ended.set()

    # What is granted and taken away

    def _hear(self, name: str, membership: Membership) -> None:
        for turn in membership.changes():
            grant = turn.grant
            duty = Duty(name, ShardId(grant.stream.name, grant.shard))
            until_s = self.dispatcher.clock() + self._handler_s_max
            match turn:
                case Begin():
                    if self._ending_s is None:
                        self._to_begin[duty, grant.token] = turn
                case End():
                    if self._to_begin.pop((duty, grant.token), None) is not None:
                        membership.release([grant])  # it never began
                    elif self.dispatcher.charge(duty, grant.token) is None:
                        membership.release([grant])
                    else:
                        self._cut(self.dispatcher.revoke(duty, grant.token, until_s))
                case Lost():
                    self._to_begin.pop((duty, grant.token), None)
                    self._cut(self.dispatcher.lose(duty, grant.token, until_s))

    def _give_up(self, name: str, why: HeadraceError) -> None:
        """A computation cannot go on here: its input is deleted, or another took its place. The
        others go on."""
        log.error("computation %s ends in %s: %s", name, self.name, why)
        self.failures[name] = why
        until_s = self.dispatcher.clock() + self._handler_s_max
        for hold, _ in self.dispatcher.holds():
            if hold.duty.computation == name:
                self._cut(self.dispatcher.lose(hold.duty, hold.token, until_s))
        self._to_begin = {k: b for k, b in self._to_begin.items() if k[0].computation != name}
        self._calls = [(at_s, call) for at_s, call in self._calls if call.duty.computation != name]
        membership = self._memberships.pop(name)
        with suppress(HeadraceError):  # it is not there any more
            membership.leave()
        if not self._memberships:
            self.failure = why
            self.end(0.0)

    def _cut(self, given: Assigned | None) -> None:
        if given is not None:
            self._lanes.cut(given.lane, given.number)

    def _begin_all(self) -> None:
        """Begin what was granted, and note it; what cannot be stored now is tried again."""
        if not self._to_begin or self.dispatcher.clock() < self._begin_at_s:
            return
        for name in {duty.computation for duty, _ in self._to_begin}:
            wanted = {key: b for key, b in self._to_begin.items() if key[0].computation == name}
            self._begin_some(name, wanted)

    def _begin_some(self, name: str, wanted: Mapping[tuple[Duty, bytes], Begin]) -> None:
        failpoint("replica.before-begin")
        ready: list[tuple[tuple[Duty, bytes], Commit, Attempts, int]] = []
        for key, begin in wanted.items():
            grant = begin.grant
            try:
                at = self._positions[name].begin(begin)
                end = self._backend.bounds(grant.stream, grant.shard).end
            except UnknownStream:
                del self._to_begin[key]  # the group will hear of it
                continue
            stored = self._stored_attempts(grant)
            if (
                stored.stopped and stored.offset >= at
            ):  # who stopped it died before the group heard of it
                del self._to_begin[key]
                stopped = Report(number=0, next=at, outcome="stopped", reason=stored.reason)
                self._calls.append((0.0, GroupCall(key[0], grant, stopped)))
                continue
            if end <= at:  # there was nothing to die of
                stored = stored.ended()
            known = stored.begun(at)
            ready.append((key, _note(grant, at, known), known, end))
        errors = self._memberships[name].commit([commit for _, commit, _, _ in ready])
        failpoint("replica.after-begin")
        for (key, commit, known, end), error in zip(ready, errors, strict=True):
            if isinstance(error, Retryable):
                self._begin_at_s = self.dispatcher.clock() + AGAIN_S
                log.warning("%s: not begun yet: %s", key[0], error)
                continue
            del self._to_begin[key]
            if error is None:
                self._begun(key[0], commit.grant, commit.done.start, end, known)
            elif not isinstance(error, Fenced | UnknownStream):
                raise error
        self._ends.look()  # what came before it was known here, nobody has looked for

    def _begun(self, duty: Duty, grant: Grant, at: int, end: int, known: Attempts) -> None:
        kit = self.kits[duty.computation]
        policy = kit.policy
        parked_s = None
        if known.failed and policy.tries_again(known.failed):
            wait_s = policy.wait_s(known.failed)
            left_s = wait_s - (now_ms() - known.at_ms) / 1000
            parked_s = self.dispatcher.clock() + min(max(left_s, 0.0), wait_s)
        step = known.step(policy.deaths)
        if step:
            log.warning(
                "%s: %d processes died while they worked on it: going on in steps of %d",
                duty, known.deaths, step,
            )  # fmt: skip
        self.dispatcher.begin(
            duty,
            grant,
            at,
            end,
            known,
            parked_s=parked_s,
            most=step,
            careful_to=at + (CAREFUL_STEP if step == 1 else SLICE_RECORDS_MAX),
            calls=kit.calls_itself,
        )

    def _stored_attempts(self, grant: Grant) -> Attempts:
        key = store_keys.attempts_key(grant.group, grant.stream.id, grant.shard)
        found = self._backend.get(key)
        return Attempts() if found is None else Attempts.decoded(found.value)

    def _let_go(self) -> None:
        """Note that work has ended where it has, and release it."""
        gone = self.dispatcher.gone()
        if not gone:
            return
        failpoint("replica.before-release")
        for name, membership in self._memberships.items():
            mine = [(hold, charge) for hold, charge in gone if hold.duty.computation == name]
            notes = [
                _note(charge.grant, hold.at, charge.attempts.ended())
                for hold, charge in mine
                if not hold.doubtful and charge.attempts.working
            ]
            if notes:
                membership.commit(notes)  # not stored, it looks as if somebody had died there
            # Released one by one, a member that is about to leave would get them back.
            if mine and self._ending_s is None:
                membership.release([charge.grant for _, charge in mine])
        failpoint("replica.after-release")

    # What lanes have reported

    def _heed_calls(self) -> None:
        """Tell the groups what they must hear; what cannot be told now is told later."""
        while not self.dispatcher.calls.empty():
            self._calls.append((0.0, self.dispatcher.calls.get()))
        now_s = time.monotonic()
        waiting, self._calls = self._calls, []
        for at_s, call in waiting:
            if now_s < at_s:
                self._calls.append((at_s, call))
                continue
            try:
                self._heed(call)
            except Retryable as why:
                log.warning("%s: told later: %s", call.duty, why)
                self._calls.append((now_s + AGAIN_S, call))

    def _heed(self, call: GroupCall) -> None:
        duty, grant, report = call
        membership = self._memberships.get(duty.computation)
        if membership is None:
            return
        if report is not None and report.outcome == "stopped":
            self._note_stop(duty, grant, report)
            membership.stop(grant)
            self._stopped(duty, grant, report)
        elif report is not None and report.rewind is not None:
            with suppress(Fenced, UnknownStream):  # it is another's by now, or gone
                membership.move(grant, report.rewind)
        else:
            membership.fence(grant)

    def _note_stop(self, duty: Duty, grant: Grant, report: Report) -> None:
        """Why, if the lane could not store it itself."""
        charge = self.dispatcher.charge(duty, grant.token)
        if charge is None or charge.attempts.stopped:
            return
        code = self.kits[duty.computation].code
        known = charge.attempts.failed_again(report.next, now_ms(), code, report.reason)
        charge.attempts = known._replace(stopped=True)
        self._note(duty, grant.token, lambda known: known)

    def _stopped(self, duty: Duty, grant: Grant, report: Report) -> None:
        name = duty.computation
        charge = self.dispatcher.charge(duty, grant.token)
        log.error(
            "%s: stopped at %s+%d: %s; see headrace group show %s",
            name, duty.shard, report.next, report.reason, name,
        )  # fmt: skip
        if charge is not None and charge.attempts.code:
            self.dispatcher.counters[name].stopped += 1
            if name not in self._terminated:
                self._terminated.add(name)
                log.error("Terminate computation: %s due to previous failure", name)

    # Lanes

    def _look_after_lanes(self) -> None:
        for lane in self._lanes.died():
            lost = self.dispatcher.lane_lost(lane)
            log.error("lane %d has died%s", lane, f" with {lost.duty}" if lost else "")
            if lost is not None:
                self._fence(lost.duty, lost.token)
        for lost in self.dispatcher.overdue():
            log.warning("lane %d does not end with %s: it is given up", lost.lane, lost.duty)
            self._gave_up = True
            self._lanes.kill(lost.lane)
            self._note(lost.duty, lost.token, Attempts.ended)  # the hand-over had no time
        self._look_at_slices()

    def _look_at_slices(self) -> None:
        now_s = self.dispatcher.clock()
        for given in self._watchdog.look(self.dispatcher.in_flight(), self._lanes, now_s):
            timeout_s = self.kits[given.duty.computation].policy.timeout_s
            verdict = self._watchdog.late(given, timeout_s, now_s)
            if verdict == "unheard":
                self._unheard(given)
            elif verdict is not None:
                self._timed_out(given, verdict, timeout_s or 0.0)

    def _unheard(self, given: Assigned) -> None:
        """It hangs, at a record that is not known or at none: that is dealt with as if its process
        had died."""
        if self.dispatcher.lane_lost(given.lane, given.number) is not None:
            log.warning("lane %d hangs with %s: it is given up", given.lane, given.duty)
            self._lanes.kill(given.lane)
            self._fence(given.duty, given.token)

    def _timed_out(self, given: Assigned, offset: int, timeout_s: float) -> None:
        """One record takes too long: its lane is given up, and the attempt has failed."""
        if self.dispatcher.lane_lost(given.lane, given.number) is None:
            return
        self._lanes.kill(given.lane)
        name, where = given.duty.computation, f"{given.duty.shard}+{offset}"
        reason = f"TimeoutError: it took longer than {timeout_s:g} s"
        log.warning("%s: %s failed: %s", name, where, reason)
        counters = self.dispatcher.counters[name]
        counters.failures += 1
        counters.last_failure = reason
        code = self.kits[name].code
        self._note(
            given.duty,
            given.token,
            lambda known: known.failed_again(offset, now_ms(), code, reason).ended(),
        )
        self._fence(given.duty, given.token)

    def _note(self, duty: Duty, token: bytes, changed: Callable[[Attempts], Attempts]) -> None:
        """Store what is known of the attempts by now, while the grant is still valid."""
        charge, at = self.dispatcher.charge(duty, token), self.dispatcher.at(duty, token)
        if charge is None or at is None:
            return
        note = _note(charge.grant, at, changed(charge.attempts))
        (error,) = self._memberships[duty.computation].commit([note])
        if error is not None and not isinstance(error, Fenced):
            log.warning("%s: not noted: %s", duty, error)

    def _fence(self, duty: Duty, token: bytes) -> None:
        charge = self.dispatcher.charge(duty, token)
        if charge is not None:
            self._calls.append((0.0, GroupCall(duty, charge.grant, None)))

    # New code

    def _look_for_new_code(self) -> None:
        """Shards that were stopped by other code go on with this one."""
        now_s = time.monotonic()
        if now_s < self._new_code_at_s or self._ending_s is not None:
            return
        self._new_code_at_s = now_s + NEW_CODE_S
        groups = Groups(self._backend)
        for name, kit in self.kits.items():
            group = groups.load(name)
            stopped = [s for s, standing in group.shards.items() if standing.stopped]
            if not stopped:
                continue
            attempts = groups.attempts(group)
            for shard in stopped:
                known = attempts.get(shard)
                if known is not None and known.code and known.code != kit.code:
                    log.warning("%s %s: stopped by other code, goes on with this", name, shard)
                    with suppress(BadSetting, Retryable):  # another was quicker, or it is looked
                        groups.resume(name, shard)  # for again soon


def _rules(kit: BoundComputation) -> Rules:
    computation = kit.computation
    if computation.kind == "batch":
        return Rules(
            concurrency=kit.concurrency,
            capacity=computation.capacity,
            threshold_s=computation.threshold_s,
        )
    return Rules(concurrency=kit.concurrency, sticky=computation.is_class)


def _note(grant: Grant, at: int, attempts: Attempts) -> Commit:
    """A commit that stores what is known of the attempts, and nothing else."""
    blank = not (attempts.failed or attempts.deaths or attempts.working or attempts.stopped)
    return Commit(
        grant=grant,
        done=Slice(grant.stream.name, grant.shard, at, at),
        attempts=b"" if blank else attempts.encoded(),
    )
