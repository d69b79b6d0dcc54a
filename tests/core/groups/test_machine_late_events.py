"""Events that are late, repeated or unknown change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.groups.allocators import balanced, capped, round_robin
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
    ShardsChanged,
    Stop,
    Swept,
)
from headrace.core.groups.group import Group, ShardStanding
from headrace.core.groups.machine import step
from tests.core.groups.building import (
    NAME,
    NEXT,
    STREAM,
    VERSION,
    answer,
    at,
    beat,
    built,
    facts,
    finished,
    free,
    held,
    join,
    member,
    owners,
    rows_of,
    stepped,
    waiting,
)

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
def test_a_group_that_does_not_exist_refuses_all_but_a_join(event: Event) -> None:
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
def test_an_event_about_an_earlier_state_changes_nothing(event: Event, why: str | None) -> None:
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
def test_a_repeated_join_does_not_bring_back_a_member_that_is_gone(events: list[Event]) -> None:
    group = stepped(Group(NAME), join("A", facts(0), 2), join("B", facts(0)), *events)
    for incarnation in (1, 2):
        after, reply = step(group, join("A", facts(0), incarnation))
        assert after is group
        assert reply == Denied("fenced", "")
    assert set(stepped(group, join("A", facts(0), 4)).members) == {"A", "B"}


def test_the_last_sixty_four_members_that_left_are_remembered() -> None:
    names = [f"m{n:02}" for n in range(65)]
    group = stepped(built({}, *names, "B"), *(Leave(name, 1) for name in names))
    assert list(group.gone) == names[1:]
    again = stepped(group, join(names[1], facts(0), 2), Leave(names[1], 2))
    assert list(again.gone.items()) == [*((name, 1) for name in names[2:]), (names[1], 2)]


def test_a_late_stop_does_not_stop_a_resumed_shard() -> None:
    group = built({0: held("A", 3)}, "A")
    group = stepped(group, Stop(at(0), 3), Resume(at(0), 3))
    after, reply = step(group, Stop(at(0), 3))
    assert after is group
    assert reply == Denied("late", "")


@pytest.mark.parametrize("standing", [free(3), waiting(3, (1,))], ids=["free", "waiting"])
def test_a_late_stop_does_not_stop_a_shard_resumed_without_an_owner(
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


def test_a_stream_created_anew_is_taken_in_even_from_an_old_look() -> None:
    group = replace(built({0: held("A", 3)}, "A"), removed=VERSION)
    after = stepped(group, ShardsChanged(facts(0, 1, id=2, seen=0)))
    assert owners(after) == {0: "A", 1: "A"}


def test_a_repeated_forced_checkpoint_changes_nothing_after_the_shard_was_read_again() -> None:
    forced = ForceCheckpoint(at(0), 3, 0, finished=False)
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group = stepped(group, ShardsChanged(facts(finished(0, 3), 1)), forced)
    epoch = group.shards[at(0)].epoch
    group = stepped(group, ShardsChanged(facts(finished(0, epoch), 1)))
    after, _ = step(group, forced)
    assert after is group


@pytest.mark.parametrize("nothing", ["nothing", None, 7, Delete, Settled(1), facts(0)])
def test_a_value_that_is_no_event_is_refused(nothing: Any) -> None:
    after, reply = step(_HELD, nothing)
    assert after is _HELD
    assert isinstance(reply, Denied)
    assert (reply.why, reply.text) == ("unknown", f"no event: {type(nothing).__name__}")


def test_a_value_that_is_no_event_is_refused_without_a_group_too() -> None:
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


def test_configuring_the_same_values_again_makes_no_later_change_late() -> None:
    group = stepped(_HELD, Configure(0, order=False, timeout_s=10.0, allocator=balanced))
    assert group is _HELD
    assert stepped(group, Configure(0, order=True)).order
