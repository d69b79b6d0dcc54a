"""One step at a time: every edge of the picture, then the promises that take several."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadName, BadSetting
from headrace.core.groups import machine as group_module
from headrace.core.groups.allocators import Allocator, balanced, capped, round_robin
from headrace.core.groups.even_shares import Candidate
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
    Resume,
    Settled,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group, Member, Move, ShardStanding, State
from headrace.core.groups.group_bytes import decoded, encoded
from headrace.core.groups.machine import GROUP_SHARDS_MAX, step
from headrace.core.model import OFFSET_MAX, ShardId
from tests.core.groups.building import (
    EDGES,
    NAME,
    NOW,
    OPS,
    STREAM,
    VERSION,
    Op,
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
    moving,
    owners,
    reached,
    rows_of,
    settled,
    stepped,
    waiting,
)

NEXT = VERSION + 1
"""The version after one step."""


def _moves(group: Group) -> list[tuple[int, str, str, str]]:
    return [(move.shard.index, *move[1:]) for move in group.moves]


# The edges


def test_edge_1_a_new_shard_may_be_read() -> None:
    before = built({})
    after, reply = step(before, ShardsChanged(facts(0)))
    assert after == replace(before, version=NEXT, shards={at(0): free()}, entered=NEXT)
    assert after.moves == (Move(at(0), "1 free", "new", "free"),)
    assert reply == Settled(NEXT)


def test_edge_1_a_new_shard_waits_for_an_ancestor() -> None:
    before = built({0: held("A")}, "A", order=True)
    after, reply = step(before, ShardsChanged(facts(0, 3)))
    shards = {at(0): held("A"), at(3): waiting(parents=(0,))}
    assert after == replace(before, version=NEXT, shards=shards, entered=NEXT)
    assert _moves(after) == [(3, "1 waiting", "new", "waiting")]
    assert reply == Settled(NEXT)


def test_edge_1_without_order_a_new_shard_waits_for_nobody() -> None:
    before = built({0: free()})
    after, _ = step(before, ShardsChanged(facts(0, 3)))
    assert after.shards == {at(0): free(), at(3): free(parents=(0,))}
    assert _moves(after) == [(3, "1 free", "new", "free")]


def test_edge_1_a_new_shard_is_empty_and_an_ancestor_is_not_done() -> None:
    before = built({0: held("A")}, "A", order=True)
    after, reply = step(before, ShardsChanged(facts(0, finished(3, 0))))
    shards = {at(0): held("A"), at(3): done(0, (0,))}
    assert after == replace(before, version=NEXT, shards=shards, entered=NEXT)
    assert _moves(after) == [(3, "1 done", "new", "done")]
    assert reply == Settled(NEXT)


def test_a_new_shard_that_is_read_already_does_not_enter() -> None:
    before = built({0: held("A")}, "A", order=True)
    assert stepped(before, ShardsChanged(facts(0, finished(1, 0)))) is before


def test_edge_2_all_ancestors_are_done() -> None:
    before = built({0: free(1), 3: waiting(parents=(0,))}, order=True)
    after, _ = step(before, ShardsChanged(facts(finished(0, 1), 3)))
    shards = {at(3): free(parents=(0,))}
    assert after == replace(before, version=NEXT, shards=shards, floor=1, removed=NEXT, forgotten=1)
    assert _moves(after) == [
        (0, "8 free", "free", "done"),
        (3, "2", "waiting", "free"),
        (0, "forget", "done", "gone"),
    ]


def test_edge_2_order_was_switched_off() -> None:
    before = built({0: free(), 3: waiting(parents=(0,))}, order=True)
    after, reply = step(before, Configure(0, order=False))
    shards = {at(0): free(), at(3): free(parents=(0,))}
    assert after == replace(before, version=NEXT, order=False, shards=shards, configured=NEXT)
    assert _moves(after) == [(3, "2", "waiting", "free")]
    assert reply == Settled(NEXT)


def test_edge_3_given_to_a_member_under_a_new_epoch() -> None:
    before = built({0: free(4)})
    after, reply = step(before, join("A", facts(0)))
    shards = {at(0): held("A", 5, NEXT)}
    assert after == replace(before, version=NEXT, members={"A": member()}, shards=shards)
    assert _moves(after) == [(0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 5})


@pytest.mark.parametrize(
    "event", [Evict("A", 1, "dead"), Evict("A", 1, "silent", 10.1), Leave("A", 1)]
)
def test_edge_4_the_owner_is_gone(event: Event) -> None:
    before = built({0: held("A", 3)}, "A")
    after, reply = step(before, event)
    shards = {at(0): free(3)}
    assert after == replace(before, version=NEXT, members={}, gone={"A": 1}, shards=shards)
    assert _moves(after) == [(0, "4 gone", "held", "free")]
    assert reply == Settled(NEXT)


def test_edge_4_the_owner_is_back_as_a_newer_one() -> None:
    before = built({0: held("A", 3)}, "A")
    after, reply = step(before, join("A", facts(0), 2))
    shards = {at(0): held("A", 4, NEXT)}
    assert after == replace(
        before, version=NEXT, members={"A": member(2)}, gone={"A": 1}, shards=shards
    )
    assert _moves(after) == [(0, "4 gone", "held", "free"), (0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 4})


def test_who_is_back_as_a_newer_one_gets_its_shards_back() -> None:
    mine = {**dict.fromkeys((0, 1, 2), held("A", 3)), **dict.fromkeys((3, 4), held("B", 3))}
    before = built(mine, "A", "B")
    after = stepped(before, join("A", facts(0, 1, 2, 3, 4), 2))
    assert owners(after) == owners(before)
    assert after.owned("B") == before.owned("B")


def test_edge_5_it_should_be_anothers() -> None:
    before = built({0: held("A"), 1: held("A", 7)}, "A")
    after, reply = step(before, join("B", facts(0, 1)))
    members = {"A": member(), "B": member()}
    shards = {at(0): held("A"), at(1): moving("A", "B", 7)}
    assert after == replace(before, version=NEXT, members=members, shards=shards)
    assert _moves(after) == [(1, "5", "held", "moving")]
    assert reply == answer(NEXT, {})


def test_edge_6_the_owner_has_let_go() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, reply = step(before, beat(before, "A", {0: 1}))
    shards = {at(0): held("A"), at(1): held("B", 8, NEXT)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert _moves(after) == [(1, "6 released", "moving", "held")]
    assert reply == answer(NEXT, {0: 1}, beat=1)


def test_edge_6_the_owner_tells_at_once_that_it_has_let_go() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, reply = step(before, Release("A", 1, {at(1): 7}))
    shards = {at(0): held("A"), at(1): held("B", 8, NEXT)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert _moves(after) == [(1, "6 released", "moving", "held")]
    assert reply == answer(NEXT, {0: 1})


def test_edge_6_the_next_owner_is_gone() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Evict("B", 1, "silent", 10.1))
    shards = {at(0): held("A"), at(1): held("A", 7)}
    assert after == replace(
        before, version=NEXT, members={"A": member()}, gone={"B": 1}, shards=shards
    )
    assert _moves(after) == [(1, "6 kept", "moving", "held")]


def test_edge_6_the_next_owner_is_not_needed() -> None:
    before = built({0: held("B"), 1: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, ShardsChanged(facts(0, 1)))
    assert after == replace(before, version=NEXT, shards={at(0): held("B"), at(1): held("A", 7)})
    assert _moves(after) == [(1, "6 kept", "moving", "held")]


def test_edge_7_the_checkpoint_was_moved_back_by_force() -> None:
    before = built({0: done(3), 1: free(), 6: waiting(parents=(0, 1))}, order=True)
    after, reply = step(before, ForceCheckpoint(at(0), 3, 0, finished=False))
    assert after == replace(before, version=NEXT, shards={**before.shards, at(0): free(4)})
    assert _moves(after) == [(0, "fence", "done", "done"), (0, "7", "done", "free")]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize("order", [True, False])
def test_edge_7_of_a_shard_that_was_forgotten(order: bool) -> None:
    before = replace(built({}, order=order), floor=3, forgotten=1)
    after, reply = step(before, ForceCheckpoint(at(4), 3, 0, finished=False, parents=(0,)))
    assert after.shards == {at(4): free(4, (0,))}
    assert _moves(after) == [(4, "fence", "done", "done"), (4, "7", "done", "free")]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize(("order", "state"), [(True, "waiting"), (False, "free")])
def test_edge_7_while_an_ancestor_is_not_done(order: bool, state: State) -> None:
    before = built({0: free(), 3: done(5, (0,))}, order=order)
    after, _ = step(before, ForceCheckpoint(at(3), 5, 0, finished=False))
    shards = {at(0): free(), at(3): ShardStanding(state, 6, parents=(0,))}
    assert after == replace(before, version=NEXT, shards=shards)
    assert _moves(after) == [(3, "fence", "done", "done"), (3, "7", "done", state)]


def test_edge_7_of_a_shard_not_heard_of_yet_that_waits_for_an_ancestor() -> None:
    before = replace(built({0: held("A", 5)}, "A", order=True), floor=3)
    after, reply = step(before, ForceCheckpoint(at(4), 3, 0, finished=False, parents=(0,)))
    shards = {at(0): held("A", 5), at(4): waiting(4, (0,))}
    assert after == replace(before, version=NEXT, shards=shards, entered=NEXT)
    assert _moves(after) == [(4, "fence", "done", "done"), (4, "7", "done", "waiting")]
    assert reply == Settled(NEXT)


def test_edge_7_without_order_a_shard_not_heard_of_yet_waits_for_nobody() -> None:
    before = built({0: free(5)})
    after = stepped(before, ForceCheckpoint(at(4), 0, 0, finished=False, parents=(0,)))
    assert after.shards == {at(0): free(5), at(4): free(1, (0,))}


def test_a_shard_not_heard_of_yet_is_forced_to_its_end_and_stays_known_for_its_ancestor() -> None:
    before = built({0: free(5)}, order=True)
    after = stepped(before, ForceCheckpoint(at(4), 0, 9, finished=True, parents=(0,)))
    assert after.shards == {at(0): free(5), at(4): done(1, (0,))}
    assert _moves(after) == [(4, "fence", "done", "done")]


@pytest.mark.parametrize(
    ("standing", "edge"),
    [
        (free(3), (0, "8 free", "free", "done")),
        (held("A", 3), (0, "8 held", "held", "done")),
        (moving("A", None, 3, stopped=True), (0, "8 moving", "moving", "done")),
    ],
    ids=["free", "held", "moving"],
)
def test_edge_8_closed_and_read_to_its_end(
    standing: ShardStanding, edge: tuple[int, str, str, str]
) -> None:
    names = () if standing.state == "free" else ("A",)
    before = built({0: standing}, *names)
    after, reply = step(before, ShardsChanged(facts(finished(0, 3))))
    assert after == replace(before, version=NEXT, shards={}, floor=3, removed=NEXT, forgotten=1)
    assert _moves(after) == [edge, (0, "forget", "done", "gone")]
    assert reply == Settled(NEXT)


def test_edge_8_a_checkpoint_was_moved_to_the_end_by_force() -> None:
    before = built({0: held("A", 3)}, "A")
    after, _ = step(before, ForceCheckpoint(at(0), 3, 90, finished=True))
    assert after == replace(before, version=NEXT, shards={}, floor=4, removed=NEXT, forgotten=1)
    assert _moves(after) == [
        (0, "fence", "held", "held"),
        (0, "8 held", "held", "done"),
        (0, "forget", "done", "gone"),
    ]


@pytest.mark.parametrize("event", [Evict("A", 1, "dead"), Leave("A", 1), join("A", facts(0), 2)])
def test_edge_9_the_owner_is_gone_while_it_moves(event: Event) -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, _ = step(before, event)
    assert after.shards == {at(0): free(7, stopped=True)}
    assert _moves(after) == [(0, "9 gone", "moving", "free")]


def test_edge_9_what_was_promised_is_dealt_anew() -> None:
    before = built({0: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Evict("A", 1, "dead"))
    assert after.shards == {at(0): held("B", 8, NEXT)}
    assert _moves(after) == [(0, "9 gone", "moving", "free"), (0, "3", "free", "held")]


def test_edge_let_go_of_what_it_could_have_kept() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Release("A", 1, {at(0): 7}))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 8, NEXT)})
    assert _moves(after) == [(0, "let go", "held", "free"), (0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 8})


def test_edge_let_go_and_nobody_is_next() -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, reply = step(before, beat(before, "A", {}))
    assert after == replace(before, version=NEXT, shards={at(0): free(7, stopped=True)})
    assert _moves(after) == [(0, "let go", "moving", "free")]
    assert reply == answer(NEXT, {}, beat=1)


def test_edge_stop() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Stop(at(0), 7))
    shards = {at(0): moving("A", None, 7, stopped=True)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert _moves(after) == [(0, "stop", "held", "moving")]
    assert reply == Settled(NEXT)


def test_a_shard_is_stopped_while_it_moves() -> None:
    before = built({0: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Stop(at(0), 7))
    assert after.shards == {at(0): moving("A", None, 7, stopped=True)}
    assert _moves(after) == [(0, "next", "moving", "moving")]


def test_a_stopped_shard_is_given_to_nobody() -> None:
    before = built({0: free(7)})
    after = stepped(before, Stop(at(0), 7), join("A", facts(0)))
    assert after.shards == {at(0): free(7, stopped=True)}


def test_resume_gives_a_free_shard_out_under_an_epoch_of_its_own() -> None:
    before = built({0: free(7, stopped=True)}, "A")
    after, reply = step(before, Resume(at(0), 7))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 9, NEXT)})
    assert _moves(after) == [(0, "fence", "free", "free"), (0, "3", "free", "held")]
    assert reply == Settled(NEXT)


def test_resume_leaves_a_shard_that_was_not_let_go_yet_under_a_new_epoch() -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, _ = step(before, Resume(at(0), 7))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 8, NEXT)})
    assert _moves(after) == [(0, "fence", "moving", "moving"), (0, "6 kept", "moving", "held")]


def test_resume_of_what_was_not_stopped_changes_nothing() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Resume(at(0), 7))
    assert after is before
    assert reply == Settled(VERSION)


def test_edge_next_promised_to_somebody_else() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B", allocator=_table())
    given_to_c = _table(at(1), "C")
    after, _ = step(before, Join("C", 1, (facts(0, 1),), given_to_c))
    shards = {at(0): held("A"), at(1): moving("A", "C", 7)}
    assert after.shards == shards
    assert _moves(after) == [(1, "next", "moving", "moving")]


def _fenced_by_force(standing: ShardStanding) -> ForceCheckpoint:
    return ForceCheckpoint(at(0), standing.epoch, 5, finished=standing.state == "done")


@pytest.mark.parametrize(
    ("standing", "event"),
    [
        (waiting(3, (1,)), None),
        (free(3), None),
        (held("A", 3), None),
        (held("A", 3), Fence(at(0), 3)),
        (moving("A", "B", 3), None),
        (moving("A", "B", 3), Fence(at(0), 3)),
        (done(3), None),
    ],
    ids=lambda value: getattr(value, "state", None) or type(value).__name__,
)
def test_edge_fence(standing: ShardStanding, event: Event | None) -> None:
    rest = {1: held("A"), 2: waiting(parents=(0, 1))}
    names = {"waiting": ("A",), "done": ("A",), "moving": ("A", "B")}.get(standing.state, ())
    if standing.state in ("held", "free"):
        rest = {}
        names = ("A",) if standing.state == "held" else ()
    before = built({0: standing, **rest}, *names, order=True)
    after, reply = step(before, event or _fenced_by_force(standing))
    fenced = standing._replace(epoch=4, granted=NEXT if standing.owner else 0)
    assert after == replace(before, version=NEXT, shards={**before.shards, at(0): fenced})
    assert _moves(after) == [(0, "fence", standing.state, standing.state)]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize("standing", [waiting(3, (1,)), free(3), done(3), None])
def test_fencing_what_nobody_owns_is_late(standing: ShardStanding | None) -> None:
    shards = {1: free(), 2: waiting(parents=(0, 1))}
    before = built({**shards, **({} if standing is None else {0: standing})}, order=True)
    after, reply = step(before, Fence(at(0), 3))
    assert after is before
    assert reply == Denied("late", "")


def test_edge_forget_once_no_descendant_waits() -> None:
    before = built({0: done(3), 1: held("A", 9), 6: waiting(parents=(0, 1))}, "A", order=True)
    after, _ = step(before, ShardsChanged(facts(0, finished(1, 9), 6)))
    shards = {at(6): held("A", 1, NEXT, (0, 1))}
    assert after == replace(before, version=NEXT, shards=shards, floor=9, removed=NEXT, forgotten=2)
    assert _moves(after) == [
        (1, "8 held", "held", "done"),
        (6, "2", "waiting", "free"),
        (0, "forget", "done", "gone"),
        (1, "forget", "done", "gone"),
        (6, "3", "free", "held"),
    ]


@pytest.mark.parametrize(
    "standing",
    [waiting(3, (1,)), free(3), held("A", 3), moving("A", "B", 3), done(3)],
    ids=lambda standing: standing.state,
)
def test_edge_drop_its_stream_is_gone(standing: ShardStanding) -> None:
    before = built({0: standing}, "A", "B", order=True)
    after, reply = step(before, ShardsChanged(facts()))
    assert after == replace(before, version=NEXT, streams={}, shards={}, floor=3, removed=NEXT)
    assert _moves(after) == [(0, "drop", standing.state, "gone")]
    assert reply == Settled(NEXT)


def test_edge_drop_the_stream_was_made_anew() -> None:
    before = built({0: held("A", 3), 1: held("A", 8)}, "A")
    after, _ = step(before, ShardsChanged(facts(0, id=2)))
    shards = {at(0): held("A", 9, NEXT)}
    assert after == replace(
        before,
        version=NEXT,
        streams={STREAM: 2},
        shards=shards,
        floor=8,
        entered=NEXT,
        removed=NEXT,
    )
    assert _moves(after) == [
        (0, "drop", "held", "gone"),
        (1, "drop", "held", "gone"),
        (0, "1 free", "new", "free"),
        (0, "3", "free", "held"),
    ]


def test_what_is_told_of_an_older_stream_of_the_same_name_changes_nothing() -> None:
    before = replace(built({0: held("A", 3)}, "A"), streams={STREAM: 2})
    for late in (facts(0, 1, id=1), facts(id=1), facts(finished(0, 3), id=1)):
        after, reply = step(before, ShardsChanged(late))
        assert after is before
        assert reply == Settled(VERSION)


def test_a_stream_that_is_gone_and_was_not_known_changes_nothing() -> None:
    before = built({0: held("A", 3)}, "A")
    after, _ = step(before, ShardsChanged(StreamFacts("never", 7, ())))
    assert after is before


def test_the_docstring_draws_every_edge_once() -> None:
    text = group_module.__doc__ or ""
    assert len(EDGES) == text.count(" -> ") - text.count("``step(group, event) -> ")
    assert {edge.split()[0] for edge, _, _ in EDGES} == {
        *"123456789", "drop", "fence", "forget", "let", "next", "stop",
    }  # fmt: skip


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


# Late, repeated and unknown events

_HELD = built({0: held("A", 3), 1: held("A", 3), 2: held("B", 5)}, "A", "B")

ONE_OF_EACH: list[Event] = [
    join("C", facts(0, 1, 2)),
    join("A", facts(0, 1, 2), 2),
    beat(_HELD, "A", {0: 3}),
    Release("A", 1, {at(0): 3}),
    Leave("A", 1),
    Evict("A", 1, "dead"),
    ShardsChanged(facts(0, 1, 2, 3)),
    ShardsChanged(facts(finished(0, 3), 1, 2)),
    ShardsChanged(facts()),
    Fence(at(0), 3),
    Stop(at(0), 3),
    Resume(at(0), 3),
    ForceCheckpoint(at(0), 3, 4, finished=False),
    ForceCheckpoint(at(0), 3, 4, finished=True),
    Configure(0, order=True, timeout_s=3.0, allocator=round_robin),
    Delete(0),
    Swept(VERSION),
]


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_that_comes_twice_changes_nothing_the_second_time(event: Event) -> None:
    once, _ = step(_HELD, event)
    twice, _ = step(once, event)
    assert twice is once


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_a_group_that_is_not_there_refuses_all_but_a_join(event: Event) -> None:
    before = Group(NAME, version=VERSION + 3)
    after, reply = step(before, event)
    if isinstance(event, Join):
        assert after.exists
    else:
        assert after is before
        assert isinstance(event, Swept) or reply == Denied("no group", "")


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (Heartbeat("A", 1, 1, 99, {}), "fenced"),
        (Heartbeat("A", 3, 1, 99, {}), "fenced"),
        (Heartbeat("X", 1, 1, 99, {}), "fenced"),
        (Release("A", 1, {at(0): 3}), "fenced"),
        (Release("X", 1, {at(0): 3}), "fenced"),
        (join("A", facts(0, 1), 1), "fenced"),
        (Leave("A", 1), None),
        (Leave("A", 3), None),
        (Leave("X", 1), None),
        (Evict("A", 1, "dead"), None),
        (Evict("A", 3, "silent", 10.1), None),
        (Fence(at(0), 2), "late"),
        (Fence(at(0), 4), "late"),
        (Fence(at(7), 0), "late"),
        (Stop(at(0), 2), "late"),
        (Stop(at(7), 0), "late"),
        (Resume(at(0), 4), "late"),
        (Resume(at(7), 0), "late"),
        (ForceCheckpoint(at(0), 2, 0, finished=False), "late"),
        (ForceCheckpoint(at(0), 4, 0, finished=True), "late"),
        (ForceCheckpoint(at(7), 0, 9, finished=True), "late"),
        (ForceCheckpoint(at(7), 3, 9, finished=False), "late"),
        (ForceCheckpoint(at(0, "never"), 2, 9, finished=False), "late"),
        (ForceCheckpoint(at(0, "never"), 0, 9, finished=True), "late"),
        (ShardsChanged(facts(finished(0, 2), finished(1, 4))), None),
        (Configure(0), None),
        (Swept(VERSION), None),
    ],
    ids=str,
)
def test_an_event_of_another_time_changes_nothing(event: Event, why: str | None) -> None:
    before = built({0: held("A", 3), 1: held("B", 3)}, "A", "B")
    before = replace(before, members={"A": member(2), "B": member()}, floor=2)
    after, reply = step(before, event)
    assert after is before
    assert (reply.why if isinstance(reply, Denied) else None) == why


def test_a_release_of_another_epoch_changes_nothing() -> None:
    group = built({0: held("A", 3), 1: held("B", 5)}, "A", "B")
    for shards in ({at(0): 2}, {at(0): 4}, {at(1): 5}, {at(7): 1}, {}):
        after, reply = step(group, Release("A", 1, shards))
        assert after is group
        assert reply == answer(VERSION, {0: 3})


def test_a_join_that_comes_again_gets_the_same_answer() -> None:
    group = stepped(Group(NAME), join("A", rows_of(2)))
    after, reply = step(group, join("A", rows_of(9)))
    assert after is group
    assert reply == answer(1, {0: 1, 1: 1})


def test_a_member_takes_on_further_streams_and_keeps_what_it_holds() -> None:
    group = stepped(Group(NAME), join("A", rows_of(2)))
    before = dict(group.shards)
    after, reply = step(group, join("A", facts(0, 1, stream="clicks", id=2)))
    assert after.members["A"].streams == {STREAM, "clicks"}
    assert {s: x for s, x in after.shards.items() if s.stream == STREAM} == before
    assert isinstance(reply, Granted)
    assert {at(0, "clicks"), at(1, "clicks")} < reply.shards.keys()


def test_a_join_that_comes_late_takes_no_stream_away() -> None:
    group = stepped(Group(NAME), join("A", rows_of(2)), join("A", facts(0, stream="clicks", id=2)))
    after, _ = step(group, join("A", rows_of(2)))
    assert after is group


@pytest.mark.parametrize(
    "events",
    [[Leave("A", 2)], [Evict("A", 2, "silent", 10.1)], [join("A", facts(0), 3), Leave("A", 3)]],
    ids=["left", "evicted", "replaced"],
)
def test_a_join_that_comes_again_does_not_bring_back_who_is_gone(events: list[Event]) -> None:
    group = stepped(Group(NAME), join("A", facts(0), 2), join("B", facts(0)), *events)
    for incarnation in (1, 2):
        after, reply = step(group, join("A", facts(0), incarnation))
        assert after is group
        assert reply == Denied("fenced", "")
    assert set(stepped(group, join("A", facts(0), 4)).members) == {"A", "B"}


def test_the_sixty_four_who_are_gone_last_are_remembered() -> None:
    names = [f"m{n:02}" for n in range(65)]
    group = stepped(built({}, *names, "B"), *(Leave(name, 1) for name in names))
    assert list(group.gone) == names[1:]
    again = stepped(group, join(names[1], facts(0), 2), Leave(names[1], 2))
    assert list(again.gone.items()) == [*((name, 1) for name in names[2:]), (names[1], 2)]


def test_a_late_stop_does_not_stop_what_was_resumed() -> None:
    group = built({0: held("A", 3)}, "A")
    group = stepped(group, Stop(at(0), 3), Resume(at(0), 3))
    after, reply = step(group, Stop(at(0), 3))
    assert after is group
    assert reply == Denied("late", "")


@pytest.mark.parametrize("standing", [free(3), waiting(3, (1,))], ids=["free", "waiting"])
def test_a_late_stop_does_not_stop_what_was_resumed_while_nobody_owned_it(
    standing: ShardStanding,
) -> None:
    group = built({0: standing, 1: free()}, order=True)
    group = stepped(group, Stop(at(0), 3), Resume(at(0), 3))
    after, _ = step(group, Stop(at(0), 3))
    assert not after.shards[at(0)].stopped


def test_late_facts_do_not_bring_back_a_shard_that_was_forgotten() -> None:
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group = stepped(group, ShardsChanged(facts(finished(0, 3), 1)))
    assert owners(group) == {1: "A"}
    assert stepped(group, ShardsChanged(facts(0, 1, seen=VERSION))) is group
    assert owners(stepped(group, join("B", facts(0, 1, seen=VERSION)))) == {1: "A"}
    assert owners(stepped(group, ShardsChanged(facts(0, 1, seen=NEXT)))) == {1: "A", 0: "A"}


def test_late_facts_still_tell_which_known_shards_are_finished() -> None:
    group = replace(built({0: held("A", 3), 1: held("A", 3)}, "A"), removed=VERSION)
    after = stepped(group, ShardsChanged(facts(finished(0, 3), 1, seen=VERSION - 1)))
    assert owners(after) == {1: "A"}


@pytest.mark.parametrize("known", [{0: held("A", 3)}, {}], ids=["a shard", "no shard"])
def test_late_facts_do_not_bring_back_a_stream_that_is_gone(
    known: Mapping[int, ShardStanding],
) -> None:
    group = stepped(built(known, "A"), ShardsChanged(facts()))
    after, _ = step(group, ShardsChanged(facts(0, seen=VERSION)))
    assert after.shards == {}


def test_a_stream_made_anew_is_taken_in_by_however_old_a_look() -> None:
    group = replace(built({0: held("A", 3)}, "A"), removed=VERSION)
    after = stepped(group, ShardsChanged(facts(0, 1, id=2, seen=0)))
    assert owners(after) == {0: "A", 1: "A"}


def test_a_forced_checkpoint_that_comes_again_after_all_was_read_again_changes_nothing() -> None:
    forced = ForceCheckpoint(at(0), 3, 0, finished=False)
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group = stepped(group, ShardsChanged(facts(finished(0, 3), 1)), forced)
    epoch = group.shards[at(0)].epoch
    group = stepped(group, ShardsChanged(facts(finished(0, epoch), 1)))
    after, _ = step(group, forced)
    assert after is group


@pytest.mark.parametrize("nothing", ["nothing", None, 7, Delete, Settled(1), facts(0)])
def test_what_is_no_event_is_refused(nothing: Any) -> None:
    after, reply = step(_HELD, nothing)
    assert after is _HELD
    assert isinstance(reply, Denied)
    assert (reply.why, reply.text) == ("unknown", f"no event: {type(nothing).__name__}")


def test_what_is_no_event_is_refused_as_such_also_where_there_is_no_group() -> None:
    nothing: Any = "nothing"
    assert step(Group(NAME), nothing)[1] == Denied("unknown", "")


def test_a_late_delete_does_not_delete_the_next_group_of_that_name() -> None:
    made = stepped(Group(NAME), join("A", facts(0)))
    delete = Delete(made.born)
    deleted = stepped(made, delete)
    anew = stepped(deleted, Swept(deleted.version), join("B", facts(0)))
    assert anew.born > made.born
    after, reply = step(anew, delete)
    assert after is anew
    assert isinstance(reply, Denied)
    assert (reply.why, reply.text) == ("late", "group 'billing' is another one by now")
    assert not stepped(anew, Delete(anew.born)).exists


@pytest.mark.parametrize("born", [0, 2, 10**20])
def test_only_the_group_that_is_meant_is_deleted(born: int) -> None:
    before = replace(_HELD, born=1)
    after, reply = step(before, Delete(born))
    assert after is before
    assert reply == Denied("late", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Configure(0, order=True), Configure(NEXT, order=False)),
        (Configure(0, timeout_s=3.0), Configure(NEXT, timeout_s=7.0)),
        (Configure(0, allocator=round_robin), Configure(NEXT, allocator=capped(2))),
        (Configure(0, order=True), Configure(NEXT, timeout_s=7.0)),
    ],
    ids=["order", "timeout", "allocator", "another attribute"],
)
def test_an_old_configuration_does_not_undo_a_newer_one(old: Configure, new: Configure) -> None:
    first = stepped(_HELD, old)
    assert first.configured == NEXT
    group = stepped(first, new)
    assert group.configured == NEXT + 1
    for late in (old, new):
        after, reply = step(group, late)
        assert after is group
        assert isinstance(reply, Denied)
        assert (reply.why, reply.text) == ("late", "group 'billing' was configured meanwhile")


def test_a_late_configuration_does_not_change_the_next_group_of_that_name() -> None:
    made = stepped(Group(NAME), join("A", facts(0)))
    configure = Configure(made.configured, timeout_s=3.0)
    deleted = stepped(made, configure, Delete(made.born))
    anew = stepped(deleted, Swept(deleted.version), join("B", facts(0)))
    after, reply = step(anew, configure)
    assert after is anew
    assert reply == Denied("late", "")


def test_what_is_configured_as_it_is_already_is_no_change_that_others_come_too_late_for() -> None:
    group = stepped(_HELD, Configure(0, order=False, timeout_s=10.0, allocator=balanced))
    assert group is _HELD
    assert stepped(group, Configure(0, order=True)).order


# Shards that are gone


def test_a_shard_that_is_listed_no_more_is_dropped() -> None:
    before = built({0: held("A", 3), 1: held("A", 8)}, "A")
    before = replace(before, entered=VERSION)
    after, reply = step(before, ShardsChanged(facts(0, seen=VERSION)))
    shards = {at(0): held("A", 3)}
    assert after == replace(before, version=NEXT, shards=shards, floor=8, removed=NEXT)
    assert _moves(after) == [(1, "drop", "held", "gone")]
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
    assert _moves(after) == [(7, "drop", standing.state, "gone")]
    assert (after.floor, after.removed, after.forgotten) == (3, NEXT, 0)


def test_facts_drop_no_shards_of_another_stream() -> None:
    bills = StreamFacts("bills", 2, (ShardFacts(7),), NOW)
    group = stepped(built({0: held("A")}, "A"), ShardsChanged(bills))
    assert stepped(group, ShardsChanged(facts(0))) is group


def test_who_joins_drops_what_is_listed_no_more() -> None:
    after = stepped(built({0: held("A"), 7: held("A", 5)}, "A"), join("B", facts(0)))
    assert owners(after) == {0: "A"}


def test_what_waits_for_a_shard_that_is_dropped_waits_no_more() -> None:
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


def test_what_is_not_reported_is_released_only_after_its_grant_was_seen() -> None:
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
def test_what_is_reported_under_any_epoch_is_not_released(epoch: int) -> None:
    group = built({0: held("A", 3)}, "A")
    after, mine = granted(group, beat(group, "A", {0: epoch}))
    assert after is group
    assert mine == {0: 3}


def test_a_fenced_shard_moves_only_when_its_owner_works_on_it_no_more() -> None:
    group = built({0: held("A"), 1: moving("A", "B", 8)}, "A", "B")
    after, mine = granted(group, beat(group, "A", {0: 1, 1: 7}))
    assert after is group
    assert mine == {0: 1}
    after = stepped(group, beat(group, "A", {0: 1}))
    assert after.shards[at(1)] == held("B", 9, NEXT)


def test_shards_that_are_reported_and_not_owned_are_simply_absent() -> None:
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


def _table(shard: ShardId | None = None, owner: str = "") -> Allocator:
    """All to the first member, but for one shard."""

    def deal(
        members: Sequence[Candidate], shards: Sequence[ShardId], _: object
    ) -> Mapping[str, Sequence[ShardId]]:
        if shard is None or owner not in {m.name for m in members}:
            return {members[0].name: shards}
        return {members[0].name: [s for s in shards if s != shard], owner: [shard]}

    return Allocator("table", deal=deal)


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


def test_the_own_function_is_called_and_its_result_used() -> None:
    own = _table(at(2), "B")
    group = stepped(Group(NAME), *(Join(n, 1, (rows_of(4),), own) for n in "AB"))
    assert owners(settled(group)) == {0: "A", 1: "A", 2: "B", 3: "A"}


def test_an_allocator_with_a_cap_leaves_shards_to_nobody() -> None:
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


def test_whoever_is_alone_brings_its_allocator() -> None:
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
    healed = stepped(replace(after, allocator=_table()), beat(after, "C"))
    assert (healed.pending, healed.fault) == (False, "")
    assert healed.shards[at(40)] == held("A", 4, NEXT + 1)


def test_a_group_whose_allocator_is_not_known_here_is_dealt_by_who_knows_it() -> None:
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
    knowing = replace(after, allocator=_table())
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


def test_a_fault_told_in_other_words_each_time_is_no_change() -> None:
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


# Attributes, limits, the end of a group


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1.1e9, 10**400])
def test_no_event_has_a_capacity_or_a_timeout_that_cannot_be(bad: float) -> None:
    with pytest.raises(
        BadSetting, match=re.escape(f"bad capacity {bad} of A: above 0, up to 1e+09")
    ):
        Join("A", 1, (), balanced, capacity=bad)
    for event in (partial(Join, "A", 1, (), balanced), partial(Configure, 0)):
        with pytest.raises(
            BadSetting, match=re.escape(f"bad timeout {bad}: seconds above 0, up to 1e+09")
        ):
            event(timeout_s=bad)


def _making(kind: Any, *args: Any, **more: Any) -> Callable[[], Event]:
    """Of whatever types: who is not checked by one may give anything."""
    return partial(kind, *args, **more)


_A = ("A", 1, (), balanced)
_MEMBER_NAME = "1 to 200 printable characters"
_INDEX = "0 to 4294967295"
_OFFSET = f"an offset is 0 to {OFFSET_MAX}"
_SECONDS = "seconds above 0, up to 1e+09"
_AMOUNT = "above 0, up to 1e+09"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_making(Join, "", 1, (), balanced), f"bad member name '': {_MEMBER_NAME}"),
        (
            _making(Join, "m" * 201, 1, (), balanced),
            f"bad member name '{'m' * 50}': {_MEMBER_NAME}",
        ),
        (_making(Join, "a\nb", 1, (), balanced), f"bad member name 'a\\nb': {_MEMBER_NAME}"),
        (_making(Join, "\ud800", 1, (), balanced), f"bad member name '\\ud800': {_MEMBER_NAME}"),
        (_making(Join, 7, 1, (), balanced), f"bad member name '7': {_MEMBER_NAME}"),
        (_making(Join, b"A", 1, (), balanced), f"bad member name \"b'A'\": {_MEMBER_NAME}"),
        (_making(Join, "A", -1, (), balanced), "bad incarnation -1 of A"),
        (_making(Join, "A", 2**63, (), balanced), f"bad incarnation {2**63} of A"),
        (_making(Join, "A", "1", (), balanced), "bad incarnation '1' of A"),
        (_making(Join, "A", None, (), balanced), "bad incarnation None of A"),
        (_making(Join, "A", 1.5, (), balanced), "bad incarnation 1.5 of A"),
        (_making(Configure, 0, order="no"), "bad order 'no': True or False"),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0, (-1,)),)),
            f"bad shard or id -1: {_INDEX}",
        ),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0, (1, 2**32)),)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (
            _making(ForceCheckpoint, at(0), 0, 0, False, (2**32,)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (_making(Join, *_A, capacity="2"), f"bad capacity '2' of A: {_AMOUNT}"),
        (_making(Join, *_A, capacity=None), f"bad capacity None of A: {_AMOUNT}"),
        (_making(Join, *_A, timeout_s="2"), f"bad timeout '2': {_SECONDS}"),
        (_making(Join, *_A, timeout_s=None), f"bad timeout None: {_SECONDS}"),
        (_making(Configure, 0, timeout_s="2"), f"bad timeout '2': {_SECONDS}"),
        (_making(StreamFacts, STREAM, -1, ()), f"bad shard or id -1: {_INDEX}"),
        (_making(StreamFacts, STREAM, 2**32, ()), f"bad shard or id {2**32}: {_INDEX}"),
        (_making(StreamFacts, STREAM, "1", ()), f"bad shard or id '1': {_INDEX}"),
        (_making(StreamFacts, STREAM, 1, (ShardFacts(-1),)), f"bad shard or id -1: {_INDEX}"),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(2**32),)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0), ShardFacts(1.0))),  # type: ignore[arg-type]
            f"bad shard or id 1.0: {_INDEX}",
        ),
        (_making(ForceCheckpoint, at(-1), 0, 0, False), f"bad shard or id -1: {_INDEX}"),
        (_making(ForceCheckpoint, at(2**32), 0, 0, False), f"bad shard or id {2**32}: {_INDEX}"),
        (_making(ForceCheckpoint, at(0), 0, -1, False), f"a checkpoint at -1: {_OFFSET}"),
        (
            _making(ForceCheckpoint, at(0), 0, OFFSET_MAX + 1, False),
            f"a checkpoint at {OFFSET_MAX + 1}: {_OFFSET}",
        ),
        (_making(ForceCheckpoint, at(0), 0, 1.5, False), f"a checkpoint at 1.5: {_OFFSET}"),
        (_making(ForceCheckpoint, at(0), 0, None, False), f"a checkpoint at None: {_OFFSET}"),
    ],
)
def test_an_event_outside_its_limits_is_refused(make: Callable[[], Event], why: str) -> None:
    with pytest.raises(BadSetting) as caught:
        make()
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a/b/c", "at most one slash, as in namespace/name"),
        ("no way", "only letters, digits, '.', '_' and '-', and one slash"),
        ("\ud800", "only letters, digits, '.', '_' and '-', and one slash"),
        (7, "a name is text"),
    ],
)
def test_facts_of_a_stream_that_has_no_name_are_refused(name: Any, why: str) -> None:
    with pytest.raises(BadName) as caught:
        StreamFacts(name, 1, ())
    assert str(caught.value) == f"bad name {name!r}: {why}"


def test_events_at_their_limits_are_taken_in_and_stored() -> None:
    last = 2**32 - 1
    name = "\U0001f40c" * 200
    stream = StreamFacts(STREAM, last, (ShardFacts(0), ShardFacts(last)))
    group = stepped(
        Group(NAME),
        Join(name, 2**63 - 1, (stream,), balanced, capacity=5e-324, timeout_s=1e9),
        ForceCheckpoint(at(last), 1, OFFSET_MAX, finished=False),
        Configure(1, timeout_s=1),
    )
    assert owners(group) == {0: name, last: name}
    assert decoded(encoded(group), lambda _name, _version: balanced) == group
    assert Join("A", 0, (), balanced, capacity=2).capacity == 2


def test_the_first_who_joins_makes_the_group() -> None:
    made, reply = step(
        Group(NAME), Join("A", 4, (rows_of(1),), round_robin, 2.0, order=True, timeout_s=3.0)
    )
    assert made == Group(
        NAME,
        version=1,
        exists=True,
        born=1,
        order=True,
        timeout_s=3.0,
        allocator=round_robin,
        members={"A": Member(4, frozenset({STREAM}), 2.0, 3.0)},
        streams={STREAM: 1},
        shards={at(0): held("A", 1, 1)},
        entered=1,
        configured=1,
    )
    assert reply == answer(1, {0: 1}, timeout_s=3.0)
    later = Join("B", 1, (rows_of(1),), round_robin, timeout_s=77.0)
    assert (stepped(made, later).order, stepped(made, later).timeout_s) == (True, 3.0)


def test_a_shorter_timeout_holds_for_a_member_when_it_has_seen_it() -> None:
    before = built({0: held("A"), 1: held("B")}, "A", "B")
    group = stepped(before, Configure(0, timeout_s=2.0))
    assert group == replace(before, version=NEXT, timeout_s=2.0, configured=NEXT)
    group, reply = step(group, beat(group, "A", seen=VERSION))
    assert reply == answer(NEXT, {0: 1}, beat=1, timeout_s=2.0)
    assert group.members == {"A": member(), "B": member()}
    group = stepped(group, beat(group, "A", seen=NEXT))
    assert group.members == {"A": member(timeout_s=2.0), "B": member()}
    assert stepped(group, beat(group, "A")) is group


def test_a_longer_timeout_is_a_members_own_when_the_group_knows_that_it_has_seen_it() -> None:
    before = built({0: held("A")}, "A")
    group = stepped(before, Configure(0, timeout_s=20.0))
    after, reply = step(group, beat(group, "A", seen=VERSION))
    assert after is group
    assert reply == answer(NEXT, {0: 1}, beat=1, timeout_s=10.0)
    after, reply = step(group, beat(group, "A", seen=NEXT))
    assert after.members == {"A": member(timeout_s=20.0)}
    assert reply == answer(NEXT + 1, {0: 1}, beat=1, timeout_s=20.0)


def test_a_timeout_that_is_the_same_already_changes_nothing() -> None:
    group = built({0: held("A")}, "A")
    assert stepped(group, Configure(0, order=False, timeout_s=10.0, allocator=balanced)) is group


def test_a_thousand_members_are_all_that_a_group_can_hold() -> None:
    before = built({}, *(f"m{n}" for n in range(1_000)))
    after, reply = step(before, join("A", facts()))
    assert after is before
    assert isinstance(reply, Denied)
    assert (reply, reply.text) == (
        Denied("full", ""),
        "group 'billing' has 1000 members already",
    )
    for event in (join("m7", facts(), 2), Leave("m8", 1)):
        before = stepped(before, event)
    assert len(stepped(before, join("A", facts())).members) == 1_000


@pytest.mark.parametrize("event", [ShardsChanged, lambda rows: join("B", rows)])
def test_a_group_takes_no_more_shards_than_it_can_hold(
    event: Callable[[StreamFacts], Event],
) -> None:
    before = built({0: held("A")}, "A")
    after, reply = step(before, event(rows_of(GROUP_SHARDS_MAX + 1)))
    assert after is before
    assert isinstance(reply, Denied)
    assert (reply, reply.text) == (
        Denied("full", ""),
        "group 'billing' would have 20001 shards, of at most 20000",
    )


def test_a_full_group_takes_in_that_two_became_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "GROUP_SHARDS_MAX", 2)
    group = built({1: held("A", 3), 2: held("A", 3)}, "A")
    after, _ = step(group, ShardsChanged(facts(finished(1, 3), finished(2, 3), 5)))
    assert owners(after) == {5: "A"}


def test_a_checkpoint_forced_in_a_full_group_does_not_lock_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "GROUP_SHARDS_MAX", 2)
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group, _ = step(group, ForceCheckpoint(at(7), 0, 0, finished=False))
    after, _ = step(group, ShardsChanged(facts(finished(0, 3), 1)))
    assert at(0) not in after.shards


def test_a_deleted_group_keeps_its_version_and_its_highest_epoch() -> None:
    before = built({0: held("A", 3), 1: held("A", 8)}, "A", order=True)
    before = replace(before, floor=4, gone={"B": 1}, entered=4, removed=5, born=2, configured=3)
    after, reply = step(before, Delete(2))
    assert after == Group(NAME, version=NEXT, gone={"B": 1, "A": 1}, streams={STREAM: 1}, floor=8)
    assert reply == Settled(NEXT)
    for event in (beat(before, "A"), Release("A", 1, {at(0): 3}), Delete(2)):
        still, refused = step(after, event)
        assert still is after
        assert refused == Denied("no group", "")


def test_a_group_begins_anew_only_when_the_old_one_was_swept() -> None:
    deleted = stepped(built({0: held("A", 3), 1: held("A", 8)}, "A"), Delete(0))
    after, reply = step(deleted, join("A", facts(0), 2))
    assert after is deleted
    assert reply == Denied("no group", "")
    swept, reply = step(deleted, Swept(NEXT))
    assert swept == Group(NAME, version=NEXT + 1, gone={"A": 1}, floor=8)
    assert reply == Settled(NEXT + 1)
    after, reply = step(swept, join("A", facts(0), 1))
    assert after is swept
    assert reply == Denied("fenced", "")
    anew = stepped(swept, join("A", facts(0), 2))
    assert (anew.version, anew.born) == (NEXT + 2, NEXT + 2)
    assert anew.shards == {at(0): held("A", 9, NEXT + 2)}


def test_a_group_that_was_made_anew_is_not_swept_by_the_sweep_of_the_old_one() -> None:
    deleted = stepped(built({0: held("A", 3)}, "A"), Delete(0))
    swept = stepped(deleted, Swept(NEXT))
    assert stepped(swept, Swept(NEXT)) is swept
    anew = stepped(swept, join("A", facts(0), 2))
    assert stepped(anew, Swept(anew.version)) is anew


@pytest.mark.parametrize(
    "streams", [(facts(0), facts(1)), tuple(StreamFacts(f"s{n}", n, ()) for n in range(1_001))]
)
def test_a_join_names_each_stream_once_and_not_too_many(streams: tuple[StreamFacts, ...]) -> None:
    with pytest.raises(BadSetting, match=f"A: {len(streams)} streams: each once, at most 1000"):
        Join("A", 1, streams, balanced)


def test_order_is_on_or_off() -> None:
    order: Any = 5
    for make in (
        lambda: Join("A", 1, (), balanced, order=order),
        lambda: Configure(0, order=order),
    ):
        with pytest.raises(BadSetting, match="bad order 5: True or False"):
            make()
