"""One step at a time: every edge of the picture in `machine`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.groups import machine as group_module
from headrace.core.groups.events import (
    Configure,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Join,
    Leave,
    Release,
    Resume,
    Settled,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.groups.group import Move, ShardStanding, State
from headrace.core.groups.machine import step
from tests.core.groups.building import (
    EDGES,
    NEXT,
    STREAM,
    VERSION,
    all_to_first,
    answer,
    at,
    beat,
    built,
    done,
    facts,
    finished,
    free,
    held,
    join,
    member,
    moves,
    moving,
    owners,
    stepped,
    waiting,
)

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
    assert moves(after) == [(3, "1 waiting", "new", "waiting")]
    assert reply == Settled(NEXT)


def test_edge_1_without_order_a_new_shard_does_not_wait() -> None:
    before = built({0: free()})
    after, _ = step(before, ShardsChanged(facts(0, 3)))
    assert after.shards == {at(0): free(), at(3): free(parents=(0,))}
    assert moves(after) == [(3, "1 free", "new", "free")]


def test_edge_1_a_new_shard_is_empty_and_an_ancestor_is_not_done() -> None:
    before = built({0: held("A")}, "A", order=True)
    after, reply = step(before, ShardsChanged(facts(0, finished(3, 0))))
    shards = {at(0): held("A"), at(3): done(0, (0,))}
    assert after == replace(before, version=NEXT, shards=shards, entered=NEXT)
    assert moves(after) == [(3, "1 done", "new", "done")]
    assert reply == Settled(NEXT)


def test_a_new_shard_that_is_read_already_does_not_enter() -> None:
    before = built({0: held("A")}, "A", order=True)
    assert stepped(before, ShardsChanged(facts(0, finished(1, 0)))) is before


def test_edge_2_all_ancestors_are_done() -> None:
    before = built({0: free(1), 3: waiting(parents=(0,))}, order=True)
    after, _ = step(before, ShardsChanged(facts(finished(0, 1), 3)))
    shards = {at(3): free(parents=(0,))}
    assert after == replace(before, version=NEXT, shards=shards, floor=1, removed=NEXT, forgotten=1)
    assert moves(after) == [
        (0, "8 free", "free", "done"),
        (3, "2", "waiting", "free"),
        (0, "forget", "done", "gone"),
    ]


def test_edge_2_order_was_switched_off() -> None:
    before = built({0: free(), 3: waiting(parents=(0,))}, order=True)
    after, reply = step(before, Configure(0, order=False))
    shards = {at(0): free(), at(3): free(parents=(0,))}
    assert after == replace(before, version=NEXT, order=False, shards=shards, configured=NEXT)
    assert moves(after) == [(3, "2", "waiting", "free")]
    assert reply == Settled(NEXT)


def test_edge_3_given_to_a_member_under_a_new_epoch() -> None:
    before = built({0: free(4)})
    after, reply = step(before, join("A", facts(0)))
    shards = {at(0): held("A", 5, NEXT)}
    assert after == replace(before, version=NEXT, members={"A": member()}, shards=shards)
    assert moves(after) == [(0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 5})


@pytest.mark.parametrize(
    "event", [Evict("A", 1, "dead"), Evict("A", 1, "silent", 10.1), Leave("A", 1)]
)
def test_edge_4_the_owner_is_gone(event: Event) -> None:
    before = built({0: held("A", 3)}, "A")
    after, reply = step(before, event)
    shards = {at(0): free(3)}
    assert after == replace(before, version=NEXT, members={}, gone={"A": 1}, shards=shards)
    assert moves(after) == [(0, "4 gone", "held", "free")]
    assert reply == Settled(NEXT)


def test_edge_4_the_owner_is_back_as_a_newer_one() -> None:
    before = built({0: held("A", 3)}, "A")
    after, reply = step(before, join("A", facts(0), 2))
    shards = {at(0): held("A", 4, NEXT)}
    assert after == replace(
        before, version=NEXT, members={"A": member(2)}, gone={"A": 1}, shards=shards
    )
    assert moves(after) == [(0, "4 gone", "held", "free"), (0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 4})


def test_a_member_that_is_back_as_a_newer_one_gets_its_shards_back() -> None:
    mine = {**dict.fromkeys((0, 1, 2), held("A", 3)), **dict.fromkeys((3, 4), held("B", 3))}
    before = built(mine, "A", "B")
    after = stepped(before, join("A", facts(0, 1, 2, 3, 4), 2))
    assert owners(after) == owners(before)
    assert after.owned("B") == before.owned("B")


def test_edge_5_another_member_should_own_it() -> None:
    before = built({0: held("A"), 1: held("A", 7)}, "A")
    after, reply = step(before, join("B", facts(0, 1)))
    members = {"A": member(), "B": member()}
    shards = {at(0): held("A"), at(1): moving("A", "B", 7)}
    assert after == replace(before, version=NEXT, members=members, shards=shards)
    assert moves(after) == [(1, "5", "held", "moving")]
    assert reply == answer(NEXT, {})


def test_edge_6_the_owner_has_let_go() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, reply = step(before, beat(before, "A", {0: 1}))
    shards = {at(0): held("A"), at(1): held("B", 8, NEXT)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert moves(after) == [(1, "6 released", "moving", "held")]
    assert reply == answer(NEXT, {0: 1}, beat=1)


def test_edge_6_the_owner_has_let_go_by_a_release() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, reply = step(before, Release("A", 1, {at(1): 7}))
    shards = {at(0): held("A"), at(1): held("B", 8, NEXT)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert moves(after) == [(1, "6 released", "moving", "held")]
    assert reply == answer(NEXT, {0: 1})


def test_edge_6_the_next_owner_is_gone() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Evict("B", 1, "silent", 10.1))
    shards = {at(0): held("A"), at(1): held("A", 7)}
    assert after == replace(
        before, version=NEXT, members={"A": member()}, gone={"B": 1}, shards=shards
    )
    assert moves(after) == [(1, "6 kept", "moving", "held")]


def test_edge_6_the_next_owner_is_not_needed() -> None:
    before = built({0: held("B"), 1: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, ShardsChanged(facts(0, 1)))
    assert after == replace(before, version=NEXT, shards={at(0): held("B"), at(1): held("A", 7)})
    assert moves(after) == [(1, "6 kept", "moving", "held")]


def test_edge_7_the_checkpoint_was_moved_back_by_force() -> None:
    before = built({0: done(3), 1: free(), 6: waiting(parents=(0, 1))}, order=True)
    after, reply = step(before, ForceCheckpoint(at(0), 3, 0, finished=False))
    assert after == replace(before, version=NEXT, shards={**before.shards, at(0): free(4)})
    assert moves(after) == [(0, "fence", "done", "done"), (0, "7", "done", "free")]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize("order", [True, False])
def test_edge_7_of_a_shard_that_was_forgotten(order: bool) -> None:
    before = replace(built({}, order=order), floor=3, forgotten=1)
    after, reply = step(before, ForceCheckpoint(at(4), 3, 0, finished=False, parents=(0,)))
    assert after.shards == {at(4): free(4, (0,))}
    assert moves(after) == [(4, "fence", "done", "done"), (4, "7", "done", "free")]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize(("order", "state"), [(True, "waiting"), (False, "free")])
def test_edge_7_while_an_ancestor_is_not_done(order: bool, state: State) -> None:
    before = built({0: free(), 3: done(5, (0,))}, order=order)
    after, _ = step(before, ForceCheckpoint(at(3), 5, 0, finished=False))
    shards = {at(0): free(), at(3): ShardStanding(state, 6, parents=(0,))}
    assert after == replace(before, version=NEXT, shards=shards)
    assert moves(after) == [(3, "fence", "done", "done"), (3, "7", "done", state)]


def test_edge_7_of_an_unknown_shard_that_waits_for_an_ancestor() -> None:
    before = replace(built({0: held("A", 5)}, "A", order=True), floor=3)
    after, reply = step(before, ForceCheckpoint(at(4), 3, 0, finished=False, parents=(0,)))
    shards = {at(0): held("A", 5), at(4): waiting(4, (0,))}
    assert after == replace(before, version=NEXT, shards=shards, entered=NEXT)
    assert moves(after) == [(4, "fence", "done", "done"), (4, "7", "done", "waiting")]
    assert reply == Settled(NEXT)


def test_edge_7_without_order_an_unknown_shard_does_not_wait() -> None:
    before = built({0: free(5)})
    after = stepped(before, ForceCheckpoint(at(4), 0, 0, finished=False, parents=(0,)))
    assert after.shards == {at(0): free(5), at(4): free(1, (0,))}


def test_an_unknown_shard_forced_to_its_end_stays_known_for_its_ancestor() -> None:
    before = built({0: free(5)}, order=True)
    after = stepped(before, ForceCheckpoint(at(4), 0, 9, finished=True, parents=(0,)))
    assert after.shards == {at(0): free(5), at(4): done(1, (0,))}
    assert moves(after) == [(4, "fence", "done", "done")]


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
    assert moves(after) == [edge, (0, "forget", "done", "gone")]
    assert reply == Settled(NEXT)


def test_edge_8_a_checkpoint_was_moved_to_the_end_by_force() -> None:
    before = built({0: held("A", 3)}, "A")
    after, _ = step(before, ForceCheckpoint(at(0), 3, 90, finished=True))
    assert after == replace(before, version=NEXT, shards={}, floor=4, removed=NEXT, forgotten=1)
    assert moves(after) == [
        (0, "fence", "held", "held"),
        (0, "8 held", "held", "done"),
        (0, "forget", "done", "gone"),
    ]


@pytest.mark.parametrize("event", [Evict("A", 1, "dead"), Leave("A", 1), join("A", facts(0), 2)])
def test_edge_9_the_owner_is_gone_while_it_moves(event: Event) -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, _ = step(before, event)
    assert after.shards == {at(0): free(7, stopped=True)}
    assert moves(after) == [(0, "9 gone", "moving", "free")]


def test_edge_9_a_promised_shard_is_dealt_anew() -> None:
    before = built({0: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Evict("A", 1, "dead"))
    assert after.shards == {at(0): held("B", 8, NEXT)}
    assert moves(after) == [(0, "9 gone", "moving", "free"), (0, "3", "free", "held")]


def test_edge_let_go_though_the_owner_could_have_kept_it() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Release("A", 1, {at(0): 7}))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 8, NEXT)})
    assert moves(after) == [(0, "let go", "held", "free"), (0, "3", "free", "held")]
    assert reply == answer(NEXT, {0: 8})


def test_edge_let_go_without_a_next_owner() -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, reply = step(before, beat(before, "A", {}))
    assert after == replace(before, version=NEXT, shards={at(0): free(7, stopped=True)})
    assert moves(after) == [(0, "let go", "moving", "free")]
    assert reply == answer(NEXT, {}, beat=1)


def test_edge_stop() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Stop(at(0), 7))
    shards = {at(0): moving("A", None, 7, stopped=True)}
    assert after == replace(before, version=NEXT, shards=shards)
    assert moves(after) == [(0, "stop", "held", "moving")]
    assert reply == Settled(NEXT)


def test_a_shard_is_stopped_while_it_moves() -> None:
    before = built({0: moving("A", "B", 7)}, "A", "B")
    after, _ = step(before, Stop(at(0), 7))
    assert after.shards == {at(0): moving("A", None, 7, stopped=True)}
    assert moves(after) == [(0, "next", "moving", "moving")]


def test_a_stopped_shard_is_given_to_no_member() -> None:
    before = built({0: free(7)})
    after = stepped(before, Stop(at(0), 7), join("A", facts(0)))
    assert after.shards == {at(0): free(7, stopped=True)}


def test_a_resumed_free_shard_is_granted_under_a_new_epoch() -> None:
    before = built({0: free(7, stopped=True)}, "A")
    after, reply = step(before, Resume(at(0), 7))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 9, NEXT)})
    assert moves(after) == [(0, "fence", "free", "free"), (0, "3", "free", "held")]
    assert reply == Settled(NEXT)


def test_a_shard_resumed_before_it_was_let_go_stays_under_a_new_epoch() -> None:
    before = built({0: moving("A", None, 7, stopped=True)}, "A")
    after, _ = step(before, Resume(at(0), 7))
    assert after == replace(before, version=NEXT, shards={at(0): held("A", 8, NEXT)})
    assert moves(after) == [(0, "fence", "moving", "moving"), (0, "6 kept", "moving", "held")]


def test_resuming_a_shard_that_was_not_stopped_changes_nothing() -> None:
    before = built({0: held("A", 7)}, "A")
    after, reply = step(before, Resume(at(0), 7))
    assert after is before
    assert reply == Settled(VERSION)


def test_edge_next_promised_to_another_member() -> None:
    before = built({0: held("A"), 1: moving("A", "B", 7)}, "A", "B", allocator=all_to_first())
    given_to_c = all_to_first(at(1), "C")
    after, _ = step(before, Join("C", 1, (facts(0, 1),), given_to_c))
    shards = {at(0): held("A"), at(1): moving("A", "C", 7)}
    assert after.shards == shards
    assert moves(after) == [(1, "next", "moving", "moving")]


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
    assert moves(after) == [(0, "fence", standing.state, standing.state)]
    assert reply == Settled(NEXT)


@pytest.mark.parametrize("standing", [waiting(3, (1,)), free(3), done(3), None])
def test_fencing_a_shard_without_an_owner_is_late(standing: ShardStanding | None) -> None:
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
    assert moves(after) == [
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
    assert moves(after) == [(0, "drop", standing.state, "gone")]
    assert reply == Settled(NEXT)


def test_edge_drop_the_stream_was_created_anew() -> None:
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
    assert moves(after) == [
        (0, "drop", "held", "gone"),
        (1, "drop", "held", "gone"),
        (0, "1 free", "new", "free"),
        (0, "3", "free", "held"),
    ]


def test_facts_of_an_older_stream_of_the_same_name_change_nothing() -> None:
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
