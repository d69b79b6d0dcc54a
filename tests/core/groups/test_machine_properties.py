"""Members with real seats, a group, and everything between them late, lost, doubled or mixed up.

What is sent waits in a bag; any of it may be taken out at any time, twice, or never.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Release,
    Reply,
    Resume,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group, Move
from headrace.core.groups.group_bytes import decoded, encoded
from headrace.core.groups.machine import step
from headrace.core.groups.seat import Seat
from headrace.core.model import ShardId
from tests.core.groups.building import EDGES, LINEAGE, NAME, STREAM, at

NAMES = st.sampled_from("ABC")
SHARDS = st.integers(0, 6)


class Answer(NamedTuple):
    seat: Seat
    beat: int
    reply: Reply


def _balanced(_name: str, _version: str) -> Allocator:
    return balanced


class Members(RuleBasedStateMachine):
    """The group as its members see it."""

    bag = Bundle("bag")

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(NAME)
        self.seats: dict[str, Seat] = {}
        self.answers: list[Answer] = []
        self.incarnation = 0
        self.made = 3
        """How many shards of LogHub's picture the stream has."""
        self.read: set[int] = set()
        """Shards that are closed and were read to their end."""
        self.unordered = False
        self.holders: dict[tuple[ShardId, int], tuple[str, int]] = {}
        """Who was granted an epoch of a shard, ever."""
        self.work: dict[tuple[str, int], dict[ShardId, int]] = {}
        """What each incarnation is at: begun, and not let go yet."""
        self.let_go: set[tuple[ShardId, int]] = set()
        """Epochs whose owner has let go."""
        self.disturbed: set[ShardId] = set()
        """Shards that were taken away by force, without a word to their owner."""

    @initialize(ordered=st.booleans())
    def begin(self, ordered: bool) -> None:
        self.ordered = ordered
        self.unordered = not ordered

    # What happens

    @rule(target=bag, name=NAMES)
    def join(self, name: str) -> object:
        self.incarnation += 1
        event = Join(name, self.incarnation, (self._facts(),), balanced, 1.0, order=self.ordered)
        reply = self._step(event)
        if isinstance(reply, Granted):
            self.seats[name] = Seat(name, self.incarnation, reply, 0.0)
            self.work[name, self.incarnation] = dict(reply.shards)
        return event

    @rule(target=bag, name=NAMES)
    def beat(self, name: str) -> object:
        seat = self.seats.get(name)
        sent = seat.heartbeat() if seat is not None and not seat.over else None
        if seat is None or sent is None:
            return multiple()
        self.answers.append(Answer(seat, sent.beat, self._step(sent)))
        return sent

    @rule(which=st.integers(0, 5), lost=st.booleans())
    @precondition(lambda self: self.answers)
    def hear(self, which: int, lost: bool) -> None:
        answer = self.answers.pop(which % len(self.answers))
        if lost:
            answer.seat.unanswered(answer.beat)
        else:
            self._heard(answer)

    @rule(target=bag, name=NAMES, all_of_it=st.booleans(), told=st.booleans())
    def finish_leaving(self, name: str, all_of_it: bool, told: bool) -> object:
        seat = self.seats.get(name)
        if seat is None or seat.over:
            return multiple()
        events = self._let_go(seat, all_of_it)
        if told:
            for event in events:
                self._step(event)
        return multiple(*events)

    @rule(target=bag, name=NAMES, leaves=st.booleans())
    def go(self, name: str, leaves: bool) -> object:
        member = self.group.members.get(name)
        if member is None:
            return multiple()
        event: Event = Leave(name, member.incarnation)
        if not leaves:
            event = Evict(name, member.incarnation, "silent", member.timeout_s + 0.1)
        self._step(event)
        return event

    @rule(target=bag, index=SHARDS, kind=st.sampled_from([Fence, Stop, Resume]))
    def speak_of(self, index: int, kind: type[Fence] | type[Stop] | type[Resume]) -> object:
        standing = self.group.shards.get(at(index))
        if standing is None:
            return multiple()
        event = kind(at(index), standing.epoch)
        self._step(event)
        return event

    @rule(target=bag, index=SHARDS)
    def force_back(self, index: int) -> object:
        standing = self.group.shards.get(at(index))
        if index >= self.made or STREAM not in self.group.streams:
            return multiple()
        self.read.discard(index)
        self.unordered = True
        epoch = self.group.floor if standing is None else standing.epoch
        event = ForceCheckpoint(at(index), epoch, 0, False, LINEAGE[index])
        assert not isinstance(self._step(event), Denied)
        return event

    @rule(target=bag, index=SHARDS)
    def finish(self, index: int) -> object:
        standing = self.group.shards.get(at(index))
        if standing is None or standing.owner is None:
            return multiple()
        self.read.add(index)
        self.disturbed.add(at(index))
        return self._look()

    @rule(target=bag, more=st.integers(0, 2))
    def grow(self, more: int) -> object:
        self.made = min(self.made + more, len(LINEAGE))
        return self._look()

    @rule(target=bag, order=st.booleans(), timeout_s=st.sampled_from([5.0, 10.0]))
    def configure(self, order: bool, timeout_s: float) -> object:
        if not self.group.exists:
            return multiple()
        self.unordered = self.unordered or not order
        event = Configure(self.group.configured, order=order, timeout_s=timeout_s)
        assert not isinstance(self._step(event), Denied)
        return event

    @rule(target=bag, decision=st.integers(0, 9))
    def delete(self, decision: int) -> object:
        if decision != 0 or not self.group.exists:
            return multiple()
        self.disturbed.update(self.group.shards)
        self.read.clear()
        event = Delete(self.group.born)
        self._step(event)
        assert not self.group.exists
        swept = Swept(self.group.version)
        self._step(swept)
        return multiple(event, swept)

    @rule(event=bag)
    def come_again(self, event: Event) -> None:
        """Late, a second time."""
        before = self.group
        self._step(event)
        if isinstance(event, Delete | Swept):
            assert self.group is before

    # What always holds

    @invariant()
    def standings_make_sense(self) -> None:
        for shard, standing in self.group.shards.items():
            owned = standing.state in ("held", "moving")
            assert (standing.owner is not None) == owned, (shard, standing)
            assert (standing.granted > 0) == owned, (shard, standing)
            assert standing.owner is None or standing.owner in self.group.members
            assert standing.next is None or standing.next in self.group.members
            assert standing.next is None or standing.state == "moving"
            assert standing.next is None or standing.next != standing.owner
            assert not (standing.stopped and standing.state == "held"), (shard, standing)

    @invariant()
    def an_epoch_has_one_holder_ever(self) -> None:
        for shard, standing in self.group.shards.items():
            if standing.owner is not None:
                who = standing.owner, self.group.members[standing.owner].incarnation
                assert self.holders.setdefault((shard, standing.epoch), who) == who
        for seat in self.seats.values():
            for grant in seat.held.items():
                assert self.holders[grant] == (seat.member, seat.incarnation), grant

    @invariant()
    def what_was_let_go_is_not_taken_up_again(self) -> None:
        for seat in self.seats.values():
            assert not self.let_go & seat.held.items()

    @invariant()
    def work_is_begun_once_and_reported_until_it_is_let_go(self) -> None:
        for seat in self.seats.values():
            if not seat.over:
                at_work = self.work[seat.member, seat.incarnation]
                assert {**seat.held, **seat.leaving} == at_work

    @invariant()
    def members_in_good_standing_never_work_on_the_same_shard(self) -> None:
        workers: dict[ShardId, str] = {}
        for name, seat in self.seats.items():
            if self._is_current(seat):
                for shard in ({*seat.held, *seat.leaving}) - self.disturbed:
                    assert workers.setdefault(shard, name) == name, (shard, workers)

    @invariant()
    def who_works_on_a_shard_owns_it(self) -> None:
        for name, seat in self.seats.items():
            if self._is_current(seat):
                for shard in ({*seat.held, *seat.leaving}) - self.disturbed:
                    assert self.group.shards[shard].owner == name, shard

    @invariant()
    def an_ordered_group_reads_ancestors_first(self) -> None:
        if self.unordered:
            return
        for shard, standing in self.group.shards.items():
            if standing.owner is not None:
                assert _ancestors(shard.index) <= self.read, (shard, self.read)

    @invariant()
    def it_reads_back_from_its_bytes(self) -> None:
        assert decoded(encoded(self.group), _balanced) == self.group

    def teardown(self) -> None:
        """Left alone, everything that may be read has an owner, evenly, and nothing moves."""
        self.answers.clear()
        for name in list(self.seats):
            if not self._is_current(self.seats[name]):
                del self.seats[name]
        for _ in range(6):
            for seat in self.seats.values():
                seat.unanswered(seat.beat)
                self._converse(seat)
        self._look()
        if self.group.exists:
            known = {shard.index for shard in self.group.shards}
            assert set(range(self.made)) - self.read <= known
        for seat in self.seats.values():
            self._converse(seat)
            self._converse(seat)
        before = self.group
        for seat in self.seats.values():
            self._converse(seat)
        assert self.group is before
        if self.group.members and set(self.group.members) == set(self.seats):
            self._is_shared_evenly()

    def _converse(self, seat: Seat) -> None:
        sent = seat.heartbeat()
        assert sent is not None
        self._heard(Answer(seat, sent.beat, self._step(sent)))
        for event in self._let_go(seat, all_of_it=False):
            self._step(event)

    def _is_shared_evenly(self) -> None:
        held = {name: dict(seat.held) for name, seat in self.seats.items()}
        assert held == {
            name: {s: own.epoch for s, own in self.group.owned(name).items()} for name in held
        }
        sizes = [len(mine) for mine in held.values()]
        assert max(sizes) - min(sizes) <= 1, held
        for shard, standing in self.group.shards.items():
            assert standing.owner is not None or standing.stopped or standing.state != "free", shard

    # How it is done

    def _facts(self) -> StreamFacts:
        """What an observer finds who looks now."""
        rows = []
        for index in range(self.made):
            standing = self.group.shards.get(at(index))
            epoch = 0 if standing is None else standing.epoch
            rows.append(ShardFacts(index, LINEAGE[index], epoch if index in self.read else None))
        return StreamFacts(STREAM, 1, tuple(rows), self.group.version)

    def _look(self) -> Event:
        event = ShardsChanged(self._facts())
        self._step(event)
        return event

    def _heard(self, answer: Answer) -> None:
        seat = answer.seat
        at_work = self.work[seat.member, seat.incarnation]
        for shard, epoch, begin in seat.answered(answer.beat, answer.reply):
            if begin:
                assert shard not in at_work
                at_work[shard] = epoch
            else:
                assert at_work[shard] == epoch

    def _let_go(self, seat: Seat, all_of_it: bool) -> list[Release]:
        """End the work on what is leaving, and maybe on the rest."""
        at_work = self.work[seat.member, seat.incarnation]
        releases = []
        for shard, epoch in list(at_work.items()):
            if all_of_it or shard in seat.leaving:
                release = seat.let_go(shard, epoch)
                assert release is not None
                self.let_go.update(release.shards.items())
                releases.append(release)
                del at_work[shard]
                if shard in seat.held:
                    at_work[shard] = seat.held[shard]
        return releases

    def _step(self, event: Event) -> Reply:
        before = self.group
        self.group, reply = step(before, event)
        if self.group is before:
            return reply
        assert not isinstance(reply, Denied)
        assert self.group.version == before.version + 1
        _check_moves(before, event, self.group)
        self._check_owners(before, event)
        if isinstance(reply, Granted):
            assert isinstance(event, Join | Heartbeat | Release)
            held = {
                shard: s.epoch
                for shard, s in self.group.owned(event.member).items()
                if s.state == "held"
            }
            assert reply.shards == held
        return reply

    def _check_owners(self, before: Group, event: Event) -> None:
        for shard, new in self.group.shards.items():
            old = before.shards.get(shard)
            if old is None:
                assert new.epoch >= before.floor
                continue
            assert new.epoch >= old.epoch
            if new.owner is not None and new.owner != old.owner:
                more = new.epoch - old.epoch
                assert more == 1 or isinstance(event, ForceCheckpoint | Resume), (shard, old, new)
            if old.owner is not None and new.owner != old.owner and new.state != "done":
                # Only by its own word, or when it is gone.
                assert isinstance(event, Heartbeat | Release | Join | Leave | Evict), event
                assert event.member == old.owner

    def _is_current(self, seat: Seat) -> bool:
        member = self.group.members.get(seat.member)
        return not seat.over and member is not None and member.incarnation == seat.incarnation


def _check_moves(before: Group, event: Event, after: Group) -> None:
    """They are drawn in the docstring, and lead from what was to what is."""
    states: dict[ShardId, str] = {shard: s.state for shard, s in before.shards.items()}
    if isinstance(event, ForceCheckpoint):
        # What the group does not know was read.
        states.setdefault(event.shard, "done")
    for move in after.moves:
        assert (move.edge, move.before, move.after) in EDGES, move
        assert states.get(move.shard, "new") == move.before, move
        _follow(states, move)
    if after.exists:
        assert states == {shard: s.state for shard, s in after.shards.items()}


def _follow(states: dict[ShardId, str], move: Move) -> None:
    if move.after == "gone":
        del states[move.shard]
    else:
        states[move.shard] = move.after


def _ancestors(index: int, lineage: Mapping[int, tuple[int, ...]] = LINEAGE) -> set[int]:
    return {*lineage[index]} | {a for parent in lineage[index] for a in _ancestors(parent)}


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
