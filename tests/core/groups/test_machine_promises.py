"""The promises of a group that take several steps."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.groups.allocators import Allocator, balanced, capped, round_robin
from headrace.core.groups.even_shares import Candidate
from headrace.core.groups.events import (
    Configure,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Heartbeat,
    Join,
    Leave,
    Release,
    Resume,
    Settled,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Group, ShardStanding
from headrace.core.groups.machine import step
from headrace.core.model import ShardId
from tests.core.groups.building import (
    NAME,
    NEXT,
    NOW,
    OPS,
    VERSION,
    Op,
    all_to_first,
    answer,
    at,
    beat,
    built,
    counts,
    done,
    event_of,
    facts,
    finished,
    free,
    granted,
    held,
    join,
    member,
    moved,
    moves,
    moving,
    owners,
    reached,
    rows_of,
    settled,
    stepped,
    waiting,
)

# Members come and go


def test_ten_shards_stay_balanced_while_members_come_and_go() -> None:
    rows = rows_of(10)
    three = settled(stepped(Group(NAME), *(join(name, rows) for name in "ABC")))
    assert sorted(counts(three).values()) == [3, 3, 4]
    two = settled(stepped(three, Evict("A", 1, "dead")))
    assert counts(two) == {"B": 5, "C": 5}
    assert moved(three, two) == counts(three)["A"]
    back = settled(stepped(two, join("A", rows, 2)))
    assert sorted(counts(back).values()) == [3, 3, 4]
    assert moved(two, back) == counts(back)["A"] == 3
    five = settled(stepped(back, join("D", rows), join("E", rows)))
    assert counts(five) == dict.fromkeys("ABCDE", 2)
    assert moved(back, five) == 4


def test_a_shard_moves_within_two_heartbeats() -> None:
    rows = rows_of(4)
    group, mine = granted(Group(NAME), join("A", rows))
    assert mine == {0: 1, 1: 1, 2: 1, 3: 1}
    group, mine = granted(group, join("B", rows))
    assert mine == {}
    joined = group.version
    group, mine = granted(group, beat(group, "A", dict.fromkeys(range(4), 1)))
    assert mine == {0: 1, 1: 1}
    group, mine = granted(group, beat(group, "A", {0: 1, 1: 1}))
    assert mine == {0: 1, 1: 1}
    group, mine = granted(group, beat(group, "B", {}, seen=joined))
    assert mine == {2: 2, 3: 2}


def test_a_shard_in_transfer_is_in_neither_answer() -> None:
    group = built({0: held("A"), 1: moving("A", "B")}, "A", "B")
    _, of_a = granted(group, beat(group, "A", {0: 1, 1: 1}))
    _, of_b = granted(group, beat(group, "B", {}))
    assert (of_a, of_b) == ({0: 1}, {})


def test_a_shard_stays_with_its_holder_until_it_lets_go_however_often_both_beat() -> None:
    group = built({0: held("A"), 1: moving("A", "B")}, "A", "B")
    for number in range(5):
        for event in (beat(group, "A", {0: 1, 1: 1}, beat=number), beat(group, "B", {})):
            after, _ = step(group, event)
            assert after is group


def test_more_members_than_shards_and_the_idle_get_work_when_one_leaves() -> None:
    rows = rows_of(2)
    group = settled(stepped(Group(NAME), *(join(name, rows) for name in "ABC")))
    assert sorted(counts(group).values()) == [0, 1, 1]
    after = stepped(group, Leave("A", 1))
    assert counts(after) == {"B": 1, "C": 1}


def test_balance_counts_only_free_held_and_moving() -> None:
    shards = {
        0: held("A"),
        1: held("A"),
        2: free(),
        3: waiting(parents=(0,)),
        4: waiting(parents=(0,)),
        6: done(parents=(7,)),
        8: waiting(parents=(6, 0)),
        9: free(stopped=True),
    }
    asked: list[Sequence[ShardId]] = []
    group = built(shards, "A", order=True, allocator=_heard(asked))
    stepped(group, Join("B", 1, (facts(0, 1, 2),), _heard(asked)))
    assert {tuple(shard.index for shard in each) for each in asked} == {(0, 1, 2)}


def test_the_allocator_sees_moving_shards_as_their_next_owners() -> None:
    seen: list[Mapping[ShardId, str]] = []

    def deal(
        members: Sequence[Candidate], shards: Sequence[ShardId], current: Mapping[ShardId, str]
    ) -> Mapping[str, list[ShardId]]:
        seen.append(dict(current))
        return {"A": list(shards)}

    spying = Allocator("spying", deal=deal)
    group = built({0: held("A"), 1: moving("A", "B"), 2: free()}, "A", "B", allocator=spying)
    stepped(group, ShardsChanged(facts(0, 1, 2)))
    assert seen[0] == {at(0): "A", at(1): "B"}


def test_members_share_only_the_streams_they_subscribe_to() -> None:
    bills = StreamFacts("bills", 2, (ShardFacts(0), ShardFacts(1)))
    orders = rows_of(2)
    group = settled(stepped(Group(NAME), join("A", orders), join("B", bills)))
    assert {shard.stream: standing.owner for shard, standing in group.shards.items()} == {
        "orders": "A",
        "bills": "B",
    }
    alone = stepped(group, Leave("B", 1))
    assert {s.stream: standing.state for s, standing in alone.shards.items()} == {
        "orders": "held",
        "bills": "free",
    }


# Shards that are gone


def test_a_shard_that_is_listed_no_more_is_dropped() -> None:
    before = built({0: held("A", 3), 1: held("A", 8)}, "A")
    before = replace(before, entered=VERSION)
    after, reply = step(before, ShardsChanged(facts(0, seen=VERSION)))
    shards = {at(0): held("A", 3)}
    assert after == replace(before, version=NEXT, shards=shards, floor=8, removed=NEXT)
    assert moves(after) == [(1, "drop", "held", "gone")]
    assert reply == Settled(NEXT)
    assert stepped(after, ShardsChanged(facts(0, seen=VERSION))) is after


def test_facts_from_before_a_shard_entered_do_not_drop_it() -> None:
    before = replace(built({0: held("A", 3), 1: held("A", 8)}, "A"), entered=VERSION)
    after, reply = step(before, ShardsChanged(facts(0, seen=VERSION - 1)))
    assert after is before
    assert reply == Settled(VERSION)


def test_late_facts_do_not_drop_the_children_that_came_of_a_split() -> None:
    group = stepped(Group(NAME), join("A", facts(0, 1, seen=0)))
    old = ShardsChanged(facts(0, 1, seen=group.version))
    group = stepped(group, ShardsChanged(facts(0, 1, 3, 4, seen=group.version)))
    assert group.entered == group.version == 2
    assert stepped(group, old) is group


@pytest.mark.parametrize(
    "standing",
    [
        waiting(3, (1,)),
        free(3, stopped=True),
        held("A", 3),
        moving("A", None, 3, stopped=True),
        done(3, (1,)),
    ],
    ids=lambda standing: standing.state,
)
def test_a_shard_in_any_state_is_dropped(standing: ShardStanding) -> None:
    before = built({1: held("A"), 7: standing}, "A", order=True)
    after = stepped(before, ShardsChanged(facts(1)))
    assert after.shards == {at(1): held("A")}
    assert moves(after) == [(7, "drop", standing.state, "gone")]
    assert (after.floor, after.removed, after.forgotten) == (3, NEXT, 0)


def test_facts_drop_no_shards_of_another_stream() -> None:
    bills = StreamFacts("bills", 2, (ShardFacts(7),), NOW)
    group = stepped(built({0: held("A")}, "A"), ShardsChanged(bills))
    assert stepped(group, ShardsChanged(facts(0))) is group


def test_a_join_drops_shards_that_are_no_longer_listed() -> None:
    after = stepped(built({0: held("A"), 7: held("A", 5)}, "A"), join("B", facts(0)))
    assert owners(after) == {0: "A"}


def test_a_shard_that_waits_for_a_dropped_shard_becomes_free() -> None:
    before = built({0: held("A"), 7: free(2, stopped=True)}, "A", order=True)
    before = replace(before, shards={**before.shards, at(8): waiting(parents=(7,))})
    after = stepped(before, ShardsChanged(facts(0, ShardFacts(8, (7,)))))
    assert owners(after) == {0: "A", 8: "A"}


@pytest.mark.parametrize("order", [True, False])
def test_a_shard_that_was_forced_into_being_goes_away_with_the_next_look(order: bool) -> None:
    before = built({0: held("A", 3), 1: held("A", 3)}, "A", order=order)
    phantom = stepped(before, ForceCheckpoint(at(99), 0, 5, finished=False))
    assert owners(phantom) == {0: "A", 1: "A", 99: "A"}
    assert phantom.entered == NEXT
    assert stepped(phantom, ShardsChanged(facts(0, 1, seen=VERSION))) is phantom
    after = stepped(phantom, ShardsChanged(facts(0, 1, seen=NEXT)))
    assert owners(after) == {0: "A", 1: "A"}
    assert after.floor == phantom.shards[at(99)].epoch
    _, mine = granted(after, beat(after, "A", {0: 3, 1: 3, 99: after.floor}))
    assert mine == {0: 3, 1: 3}


def test_a_forgotten_shard_that_was_forced_back_stays_with_the_next_look() -> None:
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group = stepped(group, ShardsChanged(facts(finished(0, 3), 1)))
    back = stepped(group, ForceCheckpoint(at(0), group.floor, 0, finished=False))
    assert stepped(back, ShardsChanged(facts(0, 1, seen=back.version))) is back


@settings(max_examples=100)
@given(st.lists(OPS, max_size=25), OPS)
def test_any_event_on_any_group_is_taken_in_once_or_not_at_all(ops: list[Op], op: Op) -> None:
    group = reached(ops)
    event = event_of(group, op)
    after, reply = step(group, event)
    assert after is group or after.version == group.version + 1
    assert not (isinstance(reply, Denied) and after is not group)
    again, same_reply = step(group, event)
    assert (again, again.moves, same_reply) == (after, after.moves, reply)
    twice, _ = step(after, event)
    assert twice is after


@settings(max_examples=100)
@given(st.lists(OPS, max_size=25), st.integers(0, 3), st.integers(1, 5))
def test_another_incarnation_or_epoch_than_the_current_changes_nothing(
    ops: list[Op], who: int, off: int
) -> None:
    group = reached(ops)
    name = "ABCD"[who]
    now = group.members[name].incarnation if name in group.members else 0
    for incarnation in (now + off, now - off):
        late: list[Event] = [
            Heartbeat(name, incarnation, 1, group.version, {}),
            Release(name, incarnation, {s: own.epoch for s, own in group.shards.items()}),
            Leave(name, incarnation),
            Evict(name, incarnation, "dead"),
        ]
        assert all(step(group, event)[0] is group for event in late)
    for shard, standing in group.shards.items():
        for epoch in (standing.epoch + off, standing.epoch - off):
            speaking_of: list[Event] = [
                Fence(shard, epoch),
                Stop(shard, epoch),
                Resume(shard, epoch),
                ForceCheckpoint(shard, epoch, 0, finished=False),
                ForceCheckpoint(shard, epoch, 0, finished=True),
            ]
            assert all(step(group, event)[0] is group for event in speaking_of)


# The rules that came out of simulations


def test_an_older_incarnation_is_refused_and_the_newer_one_not_disturbed() -> None:
    group = stepped(built({0: held("A", 3)}, "A"), join("A", facts(0), 2))
    late_ones: list[Event] = [
        Heartbeat("A", 1, 40, VERSION, {at(0): 3}),
        Release("A", 1, {at(0): 4}),
        join("A", facts(0), 1),
    ]
    for late in late_ones:
        after, reply = step(group, late)
        assert after is group
        assert reply == Denied("fenced", "")


def test_an_eviction_names_the_incarnation_that_was_silent() -> None:
    group = stepped(built({0: held("A", 3)}, "A"), join("A", facts(0), 2))
    after, reply = step(group, Evict("A", 1, "silent", 10.1))
    assert after is group
    assert reply == Settled(NEXT)


@pytest.mark.parametrize("of_group", [5.0, 20.0])
def test_an_eviction_takes_more_silence_than_the_member_knows_itself_allowed(
    of_group: float,
) -> None:
    group = replace(built({0: held("A", 3)}, "A"), timeout_s=of_group)
    after, reply = step(group, Evict("A", 1, "silent", 10.0))
    assert after is group
    assert reply == Settled(VERSION)
    assert stepped(group, Evict("A", 1, "silent", 10.1)).members == {}


def test_a_shard_that_is_not_reported_is_released_only_after_its_grant_was_seen() -> None:
    group = stepped(built({}, "A"), ShardsChanged(facts(0)))
    after, mine = granted(group, beat(group, "A", {}, seen=VERSION))
    assert after is group
    assert mine == {0: 1}
    after, mine = granted(group, beat(group, "A", {}, seen=NEXT))
    assert after.shards == {at(0): held("A", 2, NEXT + 1)}


def test_an_epoch_once_released_is_dead() -> None:
    group = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    group = stepped(group, Evict("B", 1, "dead"))
    assert group.shards[at(1)] == held("A", 7)
    _, mine = granted(group, beat(group, "A", {0: 1}))
    assert mine == {0: 1, 1: 8}


@pytest.mark.parametrize("epoch", [2, 3, 4])
def test_a_shard_reported_under_any_epoch_is_not_released(epoch: int) -> None:
    group = built({0: held("A", 3)}, "A")
    after, mine = granted(group, beat(group, "A", {0: epoch}))
    assert after is group
    assert mine == {0: 3}


def test_a_fenced_shard_moves_only_when_its_owner_has_stopped_working_on_it() -> None:
    group = built({0: held("A"), 1: moving("A", "B", 8)}, "A", "B")
    after, mine = granted(group, beat(group, "A", {0: 1, 1: 7}))
    assert after is group
    assert mine == {0: 1}
    after = stepped(group, beat(group, "A", {0: 1}))
    assert after.shards[at(1)] == held("B", 9, NEXT)


def test_shards_that_are_reported_and_not_owned_are_not_granted() -> None:
    group = built({0: held("A"), 1: held("B", 5)}, "A", "B")
    after, mine = granted(group, beat(group, "A", {0: 1, 1: 5, 7: 1}))
    assert after is group
    assert mine == {0: 1}


def test_an_answer_carries_beat_version_timeout_and_fault() -> None:
    group = replace(built({0: held("A")}, "A"), timeout_s=4.0, fault="why", allocator=_NAMED_ONLY)
    group = replace(group, members={"A": member(timeout_s=4.0)})
    _, reply = step(group, beat(group, "A", beat=17))
    assert reply == answer(VERSION, {0: 1}, beat=17, timeout_s=4.0, fault="why")


# Allocators


def _heard(asked: list[Sequence[ShardId]]) -> Allocator:
    def deal(
        members: Sequence[Candidate], shards: Sequence[ShardId], _: object
    ) -> Mapping[str, Sequence[ShardId]]:
        asked.append(tuple(shards))
        return {members[0].name: shards}

    return Allocator("heard", deal=deal)


def _raising(*_: object) -> Mapping[str, Sequence[ShardId]]:
    raise RuntimeError("no luck")


def _unstable() -> Allocator:
    dice = random.Random(1)

    def deal(
        members: Sequence[Candidate], shards: Sequence[ShardId], _: object
    ) -> Mapping[str, Sequence[ShardId]]:
        hands: dict[str, list[ShardId]] = {m.name: [] for m in members}
        for shard in shards:
            hands[dice.choice(members).name].append(shard)
        return hands

    return Allocator("table", deal=deal)


_NAMED_ONLY = Allocator("table")
_BAD = [
    pytest.param(Allocator("table", deal=_raising), id="raises"),
    pytest.param(Allocator("table", deal=lambda m, s, c: {}), id="leaves out"),
    pytest.param(Allocator("table", deal=lambda m, s, c: {"X": s}), id="unknown member"),
    pytest.param(Allocator("table", deal=lambda m, s, c: {m[0].name: [*s, *s]}), id="twice"),
    pytest.param(Allocator("table", deal=lambda m, s, c: 5), id="no mapping"),  # type: ignore[arg-type,return-value]
    pytest.param(_unstable(), id="unstable"),
]
_MANY = {index: held("A", 3) for index in range(40)}


def test_a_users_own_function_is_called_and_its_result_used() -> None:
    own = all_to_first(at(2), "B")
    group = stepped(Group(NAME), *(Join(n, 1, (rows_of(4),), own) for n in "AB"))
    assert owners(settled(group)) == {0: "A", 1: "A", 2: "B", 3: "A"}


def test_an_allocator_with_a_cap_leaves_shards_without_an_owner() -> None:
    rows = rows_of(4)
    group = stepped(Group(NAME), Join("A", 1, (rows,), capped(2)))
    assert counts(group) == {"A": 2}
    group = built({index: held("A") for index in range(4)}, "A")
    after = stepped(group, Configure(0, allocator=capped(2)))
    assert sorted(after.shards.values()) == [held("A")] * 2 + [moving("A", None)] * 2
    assert sorted(s.state for s in settled(after).shards.values()) == ["free"] * 2 + ["held"] * 2


@pytest.mark.parametrize(
    "other", [round_robin, Allocator("balanced", "2", deal=balanced.deal)], ids=["name", "version"]
)
def test_a_member_that_disagrees_about_the_allocator_is_refused(other: Allocator) -> None:
    before = built({0: held("A")}, "A")
    after, reply = step(before, join("B", facts(0), allocator=other))
    assert after is before
    assert isinstance(reply, Denied)
    assert reply == Denied("allocator", "")
    assert reply.text == (
        "group 'billing' is dealt by 'balanced' version '1', "
        f"not by {other.name!r} version {other.version!r}"
    )


def test_a_member_that_is_alone_brings_its_allocator() -> None:
    before = built({0: held("A", 3)}, "A")
    after = stepped(before, join("A", facts(0), 2, allocator=round_robin))
    assert after.allocator is round_robin
    assert stepped(built({}), join("A", facts(0), allocator=round_robin)).allocator is round_robin


@pytest.mark.parametrize("bad", _BAD)
def test_a_join_that_cannot_be_dealt_is_refused_and_the_old_assignment_stands(
    bad: Allocator,
) -> None:
    before = built(_MANY, "A", allocator=_NAMED_ONLY)
    after, reply = step(before, Join("B", 1, (rows_of(40),), bad))
    assert after is before
    assert isinstance(reply, Denied)
    assert reply == Denied("allocation", "")
    assert reply.text.startswith("allocator table: ")


@pytest.mark.parametrize("bad", _BAD)
def test_after_an_eviction_that_cannot_be_dealt_the_others_keep_what_they_have(
    bad: Allocator,
) -> None:
    mine = {**_MANY, 40: held("B", 3), 41: moving("A", "B", 3)}
    before = built(mine, "A", "B", "C", allocator=bad)
    after, reply = step(before, Evict("B", 1, "dead"))
    shards = {**before.shards, at(40): free(3), at(41): held("A", 3)}
    members = {"A": member(), "C": member()}
    assert after.fault.startswith("allocator table: ")
    assert after == replace(
        before,
        version=NEXT,
        members=members,
        gone={"B": 1},
        shards=shards,
        pending=True,
        fault=after.fault,
    )
    assert reply == Settled(NEXT)
    healed = stepped(replace(after, allocator=all_to_first()), beat(after, "C"))
    assert (healed.pending, healed.fault) == (False, "")
    assert healed.shards[at(40)] == held("A", 4, NEXT + 1)


def test_a_group_with_an_unknown_allocator_is_dealt_by_a_process_that_knows_it() -> None:
    before = built({0: held("A", 3), 1: held("B", 3)}, "A", "B", allocator=_NAMED_ONLY)
    after = stepped(before, Leave("B", 1))
    shards = {at(0): held("A", 3), at(1): free(3)}
    assert after == replace(
        before,
        version=NEXT,
        members={"A": member()},
        gone={"B": 1},
        shards=shards,
        pending=True,
    )
    assert stepped(after, beat(after, "A")) is after
    knowing = replace(after, allocator=all_to_first())
    dealt, mine = granted(knowing, beat(after, "A"))
    assert not dealt.pending
    assert mine == {0: 3, 1: 4}


def test_an_allocator_that_cannot_deal_is_not_configured() -> None:
    before = built({0: held("A", 3)}, "A")
    after, reply = step(
        before, Configure(0, allocator=Allocator("bad", deal=_raising), timeout_s=3.0)
    )
    assert after is before
    assert reply == Denied("allocation", "")
    assert stepped(before, Configure(0, allocator=round_robin)).allocator is round_robin


def test_attributes_change_also_while_the_group_cannot_be_dealt() -> None:
    bad = Allocator("bad", deal=_raising)
    before = replace(built({0: held("A")}, "A", allocator=bad), pending=True)
    after = stepped(before, Configure(0, order=True))
    assert (after.order, after.fault) == (True, "allocator bad: raised RuntimeError: no luck")


def test_an_allocator_that_is_refused_while_another_fails_is_refused_for_its_own_fault() -> None:
    bad = Allocator("bad", deal=_raising)
    before = replace(built({0: held("A")}, "A", allocator=bad), pending=True, fault="of bad")
    events: list[Event] = [
        Configure(0, allocator=Allocator("worse", deal=_raising)),
        join("A", facts(0), 2, allocator=Allocator("worse", deal=_raising)),
    ]
    for event in events:
        after, reply = step(before, event)
        assert after is before
        assert isinstance(reply, Denied)
        assert reply.text == "allocator worse: raised RuntimeError: no luck"


def test_a_fault_in_other_words_each_time_is_no_change() -> None:
    said: list[str] = []

    def failing(*_: object) -> Mapping[str, Sequence[ShardId]]:
        said.append(f"no luck at {len(said)}")
        raise RuntimeError(said[-1])

    before = built({0: held("A"), 1: held("B")}, "A", "B", allocator=Allocator("bad", deal=failing))
    group = stepped(before, Evict("B", 1, "dead"))
    fault = "allocator bad: raised RuntimeError: no luck at 0"
    assert (group.pending, group.fault) == (True, fault)
    for number in range(3):
        after, reply = step(group, beat(group, "A", beat=number))
        assert after is group
        assert reply == answer(NEXT, {0: 1}, beat=number, fault=fault)
    assert len(said) == 4
    changed = stepped(group, Configure(0, timeout_s=3.0))
    assert (changed.timeout_s, changed.fault) == (3.0, fault)
    healed = stepped(replace(changed, allocator=balanced), beat(changed, "A"))
    assert (healed.pending, healed.fault, owners(healed)) == (False, "", {0: "A", 1: "A"})
    again = stepped(replace(healed, allocator=before.allocator), ShardsChanged(facts(0)))
    assert again.fault == f"allocator bad: raised RuntimeError: {said[-1]}" != fault
