"""Ordered groups: a shard is read after all its ancestors; and shards that come to their end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    ForceCheckpoint,
    Leave,
    ShardFacts,
    ShardsChanged,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.groups.machine import step
from tests.core.groups.building import (
    NAME,
    VERSION,
    at,
    beat,
    built,
    counts,
    done,
    facts,
    finished,
    free,
    granted,
    held,
    join,
    owners,
    rows_of,
    settled,
    stepped,
    waiting,
)

ALL = range(7)
ANCESTORS = {0: (), 1: (), 2: (), 3: (0,), 4: (0,), 5: (1, 2), 6: (0, 1, 2, 4, 5)}


def _waiting(group: Group) -> list[int]:
    return sorted(s.index for s, standing in group.shards.items() if standing.state == "waiting")


def _ordered(*shards: int | ShardFacts) -> Group:
    return stepped(Group(NAME), join("A", facts(*shards), order=True))


def _finish(group: Group, *indexes: int) -> Group:
    """The group after an observer found these closed and read to their end."""
    for index in indexes:
        group = stepped(group, ShardsChanged(_read(group, index)))
    return group


def _read(group: Group, *indexes: int) -> StreamFacts:
    """What an observer finds: all that the group knows, and these read to their end."""
    return facts(
        *(
            ShardFacts(shard.index, s.parents, s.epoch if shard.index in indexes else None)
            for shard, s in group.shards.items()
        )
    )


def test_in_loghubs_picture_6_waits_for_0_1_2_4_5_and_3_for_0_only() -> None:
    for index in ALL:
        for ahead in _subsets(ANCESTORS[index]):
            group = _finish(_ordered(*ALL), *_in_order(ahead))
            waits = set(ahead) != set(ANCESTORS[index])
            assert (index in _waiting(group)) == waits, (index, ahead)


def _subsets(indexes: tuple[int, ...]) -> Iterable[tuple[int, ...]]:
    """Those that can be read to their end: none without its own ancestors."""
    for size in range(len(indexes) + 1):
        for some in combinations(indexes, size):
            if all(set(ANCESTORS[index]) <= set(some) for index in some):
                yield some


def _in_order(indexes: tuple[int, ...]) -> list[int]:
    return sorted(indexes, key=lambda index: len(ANCESTORS[index]))


def test_waiting_shards_are_given_to_no_member() -> None:
    group, mine = granted(Group(NAME), join("A", facts(*ALL), order=True))
    assert mine == {0: 1, 1: 1, 2: 1}
    assert owners(group) == {**dict.fromkeys((0, 1, 2), "A"), **dict.fromkeys((3, 4, 5, 6))}


def test_shards_are_given_out_as_their_last_ancestor_is_done() -> None:
    group = _finish(_ordered(*ALL), 0)
    assert _waiting(group) == [5, 6]
    group = _finish(group, 1, 2, 4)
    assert _waiting(group) == [6]
    group = _finish(group, 5)
    assert owners(group) == {3: "A", 6: "A"}
    assert group.forgotten == 5


def test_done_ancestors_are_kept_while_a_descendant_waits_and_then_forgotten() -> None:
    group = _finish(_ordered(*ALL), 0, 4)
    kept = {shard.index: s.state for shard, s in group.shards.items() if s.state == "done"}
    assert kept == {0: "done", 4: "done"}
    group = _finish(group, 1, 2, 5)
    assert sorted(shard.index for shard in group.shards) == [3, 6]


def test_a_done_parent_does_not_hide_an_ancestor_that_was_forced_back() -> None:
    shards = {0: held("A", 4), 1: done(3, (0,)), 2: waiting(parents=(1,))}
    group = stepped(built(shards, "A", order=True), Configure(0, timeout_s=3.0))
    assert _waiting(group) == [2]
    assert owners(_finish(group, 0)) == {2: "A"}


def test_an_empty_parent_does_not_block_its_children() -> None:
    group = _ordered(0)
    group = stepped(group, ShardsChanged(facts(finished(0, 1), 3, 4)))
    assert owners(group) == {3: "A", 4: "A"}


def test_an_empty_parent_without_an_owner_does_not_block_its_children() -> None:
    group = built({0: free()}, order=True)
    group = stepped(group, ShardsChanged(facts(finished(0, 0), 3, 4)))
    assert group.shards == {at(3): free(parents=(0,)), at(4): free(parents=(0,))}


def test_a_parent_that_was_finished_before_the_group_knew_it_does_not_block_its_children() -> None:
    group = _ordered(1, 2)
    group = stepped(group, ShardsChanged(facts(finished(0, 0), 1, 2, 3, 4)))
    assert owners(group) == {1: "A", 2: "A", 3: "A", 4: "A"}


def test_a_parent_that_was_empty_when_the_group_was_made_does_not_block_its_children() -> None:
    made = facts(finished(0, 0), 3, 4, seen=0)
    group = stepped(Group(NAME), join("A", made, order=True))
    assert _waiting(group) == [3, 4]
    assert owners(_finish(group, 0)) == {3: "A", 4: "A"}


def test_checkpoints_of_an_earlier_group_of_this_name_do_not_count() -> None:
    group = stepped(_ordered(0, 3), Delete(1))
    seen = group.version
    group = stepped(group, Swept(seen))
    old = facts(finished(0, 1), 3, seen=seen)
    group = stepped(group, join("A", old, 2, order=True))
    assert group.shards[at(0)].state == "held"
    epoch = group.shards[at(0)].epoch
    late = facts(finished(0, epoch), 3, seen=seen)
    assert stepped(group, ShardsChanged(late)) is group
    now = facts(finished(0, epoch), 3, seen=group.version)
    assert owners(stepped(group, ShardsChanged(now))) == {3: "A"}


def test_a_parent_that_was_committed_to_its_end_before_the_split_does_not_block() -> None:
    group = _ordered(0, 1)
    group = stepped(group, beat(group, "A"))
    group = stepped(group, ShardsChanged(facts(finished(0, 1), 1, 3, 4)))
    assert owners(group) == {1: "A", 3: "A", 4: "A"}


def test_an_empty_shard_between_does_not_hide_an_ancestor_that_is_not_done() -> None:
    chain = (ShardFacts(0), ShardFacts(1, (0,), finished_at=0), ShardFacts(2, (1,)))
    group = stepped(Group(NAME), join("A", facts(*chain, seen=0), order=True))
    assert owners(group)[0] == "A"
    assert 2 in _waiting(group)


def test_an_empty_shard_between_that_comes_later_does_not_hide_one_either() -> None:
    group = _ordered(0)
    chain = (ShardFacts(0), ShardFacts(1, (0,), finished_at=0), ShardFacts(2, (1,)))
    group = stepped(group, ShardsChanged(facts(*chain)))
    assert owners(group) == {0: "A", 1: None, 2: None}
    assert _waiting(group) == [2]
    group = stepped(group, Configure(1, timeout_s=3.0))
    assert group.shards[at(1)] == done(0, (0,))
    group = _finish(group, 0)
    assert owners(group) == {2: "A"}
    assert group.forgotten == 2


@pytest.mark.parametrize("order", [True, False])
def test_an_empty_shard_is_kept_until_its_ancestor_is_read(order: bool) -> None:
    group = stepped(Group(NAME), join("A", facts(0), order=order))
    group = stepped(group, ShardsChanged(facts(0, finished(3, 0))))
    assert group.shards[at(3)] == done(0, (0,))
    assert _finish(group, 0).shards == {}


def test_an_ancestor_forced_back_is_waited_for_also_behind_a_shard_that_was_forgotten() -> None:
    group = _finish(_ordered(0, 3), 0, 3)
    assert group.shards == {}
    back = ForceCheckpoint(at(0), group.floor, 0, finished=False)
    chain = (ShardFacts(0), finished(3, 0), ShardFacts(7, (3,)))
    group = stepped(group, back, ShardsChanged(facts(*chain)))
    assert _waiting(group) == [7]
    assert owners(_finish(group, 0)) == {7: "A"}


def test_a_waiting_shard_that_is_empty_is_done_after_its_ancestors() -> None:
    chain = (ShardFacts(0), ShardFacts(1, (0,)), ShardFacts(2, (1,)))
    group = stepped(Group(NAME), join("A", facts(*chain), order=True))
    assert stepped(group, ShardsChanged(_read(group, 1))) is group
    group = _finish(group, 0)
    assert {shard.index: standing.state for shard, standing in group.shards.items()} == {
        0: "done",
        1: "held",
        2: "waiting",
    }
    group = _finish(group, 1)
    assert owners(group) == {2: "A"}


def test_a_waiting_shard_that_is_read_is_done_in_the_step_in_which_it_becomes_free() -> None:
    group = _ordered(0, 3, ShardFacts(7, (3,)))
    assert _waiting(group) == [3, 7]
    read = ShardsChanged(_read(group, 0, 3))
    after = stepped(group, read)
    assert owners(after) == {7: "A"}
    assert after.forgotten == 2
    assert [(move.shard.index, *move[1:]) for move in after.moves] == [
        (0, "8 held", "held", "done"),
        (3, "2", "waiting", "free"),
        (3, "8 free", "free", "done"),
        (7, "2", "waiting", "free"),
        (0, "forget", "done", "gone"),
        (3, "forget", "done", "gone"),
        (7, "3", "free", "held"),
    ]
    assert stepped(after, read) is after


@pytest.mark.parametrize("turned", [False, True])
def test_a_whole_lineage_that_is_read_is_done_in_one_step(turned: bool) -> None:
    group = _ordered(*(reversed(ALL) if turned else ALL))
    read = ShardsChanged(_read(group, *ALL))
    after = stepped(group, read)
    assert (after.shards, after.forgotten) == ({}, 7)
    assert stepped(after, read) is after
    but_one = stepped(group, ShardsChanged(_read(group, *(set(ALL) - {4}))))
    assert _waiting(but_one) == [6]
    assert {shard.index for shard in but_one.owned("A")} == {4}
    assert _finish(but_one, 4).owned("A").keys() == {at(6)}


def test_a_waiting_shard_that_was_read_under_another_epoch_is_read_again() -> None:
    group = _ordered(0, 3)
    late = facts(finished(0, 1), finished(3, 0))
    group = stepped(group, ForceCheckpoint(at(3), 0, 0, finished=False))
    assert owners(stepped(group, ShardsChanged(late))) == {3: "A"}


def test_shards_of_one_fact_may_be_each_others_ancestors_in_any_order() -> None:
    group = _ordered(6, 5, 4, 3, 2, 1, 0)
    assert _waiting(group) == [3, 4, 5, 6]


def test_shards_that_are_their_own_ancestors_end_in_an_answer() -> None:
    round_about = facts(ShardFacts(0, (1,)), ShardFacts(1, (0, 1)))
    group = stepped(Group(NAME), join("A", round_about, order=True))
    assert _waiting(group) == [0, 1]
    assert _waiting(stepped(group, Configure(1, order=False))) == []


def test_ancestors_are_those_of_the_same_stream() -> None:
    group = _ordered(0)
    other = StreamFacts("bills", 2, (ShardFacts(1, (0,)),))
    group = stepped(group, ShardsChanged(other))
    assert group.shards[at(1, "bills")].state == "free"


def test_order_switched_off_frees_all_that_wait_at_once() -> None:
    group = stepped(_ordered(*ALL), Configure(1, order=False))
    assert owners(group) == dict.fromkeys(ALL, "A")


def test_order_switched_on_leaves_started_shards_alone_and_later_children_wait() -> None:
    group = stepped(Group(NAME), join("A", facts(0, 1, 2, 3, 4)))
    before = dict(group.shards)
    group = stepped(group, Configure(1, order=True))
    assert group.shards == before
    group = stepped(group, ShardsChanged(facts(*ALL)))
    assert _waiting(group) == [5, 6]
    assert {s: group.shards[s] for s in before} == before


def test_a_child_does_not_wait_for_a_parent_that_is_gone_with_its_stream() -> None:
    group = stepped(_ordered(0, 3), ShardsChanged(facts(3, id=2)))
    assert owners(group) == {3: "A"}


# The end of shards


def test_a_finished_shard_leaves_and_the_rest_is_rebalanced() -> None:
    rows = rows_of(9)
    group = settled(stepped(Group(NAME), *(join(name, rows) for name in "ABC")))
    for index in (shard.index for shard in group.owned("A")):
        group = settled(_finish(group, index))
        assert max(counts(group).values()) - min(counts(group).values()) <= 1
        assert at(index) not in group.shards
    assert counts(group) == {"A": 2, "B": 2, "C": 2}
    assert group.forgotten == 3


def test_the_owner_of_a_finished_shard_loses_it() -> None:
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group = stepped(group, ShardsChanged(facts(finished(0, 3), 1)))
    after, mine = granted(group, beat(group, "A", {0: 3, 1: 3}))
    assert after is group
    assert mine == {1: 3}


def test_a_shard_that_was_found_finished_under_an_older_epoch_goes_on() -> None:
    before = built({0: held("A", 3)}, "A")
    forced = stepped(before, ForceCheckpoint(at(0), 3, 0, finished=False))
    after, _ = step(forced, ShardsChanged(facts(finished(0, 3))))
    assert after is forced


def test_a_forgotten_shard_that_is_reported_finished_stays_forgotten() -> None:
    group = _finish(_ordered(0, 1), 0)
    after, _ = step(group, ShardsChanged(facts(finished(0, 0), 1)))
    assert after is group


def test_a_shard_forced_back_is_read_again_and_its_started_children_go_on() -> None:
    group = _finish(_ordered(0, 1, 3, 4), 0)
    assert owners(group) == {1: "A", 3: "A", 4: "A"}
    started = {s: group.shards[s] for s in (at(3), at(4))}
    group = stepped(group, ForceCheckpoint(at(0), 1, 0, finished=False))
    assert owners(group) == {1: "A", 3: "A", 4: "A", 0: "A"}
    assert {s: group.shards[s] for s in started} == started
    assert group.shards[at(0)].epoch > 1


def test_children_wait_for_a_shard_forced_back() -> None:
    before = built({0: done(3), 1: held("A"), 6: waiting(parents=(0, 1))}, "A", order=True)
    group = stepped(before, ForceCheckpoint(at(0), 3, 0, finished=False))
    group = _finish(group, 1)
    assert _waiting(group) == [6]
    assert _waiting(_finish(group, 0)) == []


def test_a_checkpoint_forced_to_the_end_of_a_waiting_shard_leaves_it_waiting() -> None:
    group = _ordered(0, 3)
    after = stepped(group, ForceCheckpoint(at(3), 0, 90, finished=True))
    assert after.shards[at(3)] == waiting(1, (0,))


def test_a_forced_checkpoint_of_the_wrong_epoch_is_late() -> None:
    group = _ordered(0, 3)
    after, reply = step(group, ForceCheckpoint(at(3), 7, 90, finished=True))
    assert after is group
    assert reply == Denied("late", "")


def test_epochs_go_on_when_a_stream_is_dropped_and_comes_back() -> None:
    group = replace(built({0: held("A", 30), 1: held("A", 2)}, "A"), floor=7)
    group = stepped(group, ShardsChanged(facts()), ShardsChanged(facts(0, 1, id=2)))
    assert group.shards == {at(0): held("A", 31, VERSION + 2), at(1): held("A", 31, VERSION + 2)}


@settings(max_examples=60)
@given(st.permutations(list(ALL)), st.booleans(), st.integers(1, 7))
def test_in_any_order_of_events_no_shard_is_owned_before_its_ancestors_are_done(
    order: list[int], leaves: bool, known: int
) -> None:
    group = _ordered(*range(known))
    read: set[int] = set()
    for _ in ALL:
        for index in order:
            standing = group.shards.get(at(index))
            if standing is not None and standing.owner is not None:
                assert set(ANCESTORS[index]) <= read, (index, read)
                read.add(index)
                group = _finish(group, index)
        group = stepped(group, ShardsChanged(_with_read(read)))
        if leaves:
            now = group.members["A"].incarnation
            group = stepped(group, Leave("A", now), join("A", _with_read(read), now + 1))
    assert read == set(ALL)
    assert group.shards == {}


def _with_read(read: set[int]) -> StreamFacts:
    return facts(*(finished(index, 0) if index in read else index for index in ALL))


@pytest.mark.parametrize("order", [True, False])
def test_without_parents_order_makes_no_difference(order: bool) -> None:
    group = stepped(Group(NAME), join("A", rows_of(5), order=order))
    assert owners(group) == dict.fromkeys(range(5), "A")
