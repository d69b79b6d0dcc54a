from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.groups.checkpoint import Checkpoint, HandedOut
from headrace.core.model import Bounds, ShardId, Slice

SHARD = ShardId("orders", 2)


def _slice(start: int, end: int) -> Slice:
    return Slice("orders", 2, start, end)


def test_a_checkpoint_begins_at_the_beginning() -> None:
    assert Checkpoint() == Checkpoint(next=0, commits=0)


def test_a_checkpoint_advances_behind_the_slice() -> None:
    assert Checkpoint(5, 3).advanced(_slice(5, 9)) == Checkpoint(9, 4)


def test_a_checkpoint_advances_over_a_gap() -> None:
    assert Checkpoint(5, 3).advanced(_slice(7, 9)) == Checkpoint(9, 4)


def test_a_checkpoint_advances_by_nothing() -> None:
    assert Checkpoint(5, 3).advanced(_slice(5, 5)) == Checkpoint(5, 4)


@pytest.mark.parametrize("done", [(4, 9), (0, 5), (4, 4), (0, 99)])
def test_a_slice_that_begins_before_the_checkpoint_was_committed_already(
    done: tuple[int, int],
) -> None:
    assert Checkpoint(5, 3).advanced(_slice(*done)) is None


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_a_checkpoint_never_goes_back_by_advancing(next: int, start: int, more: int) -> None:
    after = Checkpoint(next, 3).advanced(_slice(start, start + more))
    assert (after is None) == (start < next)
    assert after is None or after.next >= next


@pytest.mark.parametrize("to", [3, 5, 7, 10])
def test_a_checkpoint_is_moved_by_force_within_what_is_kept_and_that_is_no_commit(to: int) -> None:
    assert Checkpoint(5, 3).moved(SHARD, to, Bounds(3, 10)) == Checkpoint(to, 3)


@pytest.mark.parametrize(
    ("to", "where"),
    [
        (2, "before the first kept offset 3"),
        (-1, "before the first kept offset 3"),
        (11, "beyond the end, the next offset is 10"),
        (2**70, "beyond the end, the next offset is 10"),
    ],
)
def test_a_checkpoint_is_not_moved_out_of_bounds(to: int, where: str) -> None:
    with pytest.raises(OffsetOutOfRange) as caught:
        Checkpoint(5, 3).moved(SHARD, to, Bounds(3, 10))
    assert str(caught.value) == f"orders:2+{to} is {where}; start at 3 up to 10"
    assert vars(caught.value) == {
        "stream": "orders",
        "shard": 2,
        "offset": to,
        "start": 3,
        "end": 10,
    }


@pytest.mark.parametrize("to", [True, False, 4.0, "4", None, b"4"])
def test_a_checkpoint_is_moved_to_a_whole_number_only(to: Any) -> None:
    with pytest.raises(BadSetting, match="an offset is a whole number"):
        Checkpoint(5, 3).moved(SHARD, to, Bounds(0, 10))


@pytest.mark.parametrize(
    ("next", "lag"), [(0, 7), (3, 7), (4, 6), (9, 1), (10, 0), (11, 0), (99, 0)]
)
def test_lag_counts_kept_records_that_are_still_to_be_read(next: int, lag: int) -> None:
    assert Checkpoint(next).lag(Bounds(3, 10)) == lag


def test_an_empty_shard_has_no_lag() -> None:
    assert Checkpoint().lag(Bounds(0, 0)) == 0
    assert Checkpoint().lag(Bounds(7, 7)) == 0


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_checkpoint_reads_back_from_its_bytes(next: int, commits: int) -> None:
    assert Checkpoint.decoded(Checkpoint(next, commits).encoded()) == Checkpoint(next, commits)


# Marks


def _marks(*ends: int, start: int = 0) -> HandedOut:
    marks = HandedOut(start)
    for end in ends:
        marks.give(end)
    return marks


def test_slices_are_given_one_behind_the_other() -> None:
    marks = HandedOut(7)
    assert [marks.give(9), marks.give(10), marks.give(20)] == [(7, 9), (9, 10), (10, 20)]
    assert (marks.given, marks.next, marks.committed) == (20, 7, 7)


@pytest.mark.parametrize("end", [9, 8, 0])
def test_nothing_is_not_given(end: int) -> None:
    marks = _marks(9)
    with pytest.raises(AssertionError, match=f"nothing to give from 9 to {end}"):
        marks.give(end)


def test_what_is_done_in_order_moves_the_next_offset() -> None:
    marks = _marks(3, 5)
    marks.done(0, 1.0)
    assert marks.next == 3
    marks.done(3, 2.0)
    assert marks.next == 5


def test_what_is_done_before_its_time_waits_for_what_lies_before() -> None:
    marks = _marks(3, 5, 9)
    marks.done(5, 1.0)
    marks.done(3, 1.0)
    assert marks.next == 0
    marks.done(0, 1.0)
    assert marks.next == 9


@pytest.mark.parametrize("start", [0, 1, 4, 5, 99])
def test_what_is_unknown_or_done_already_changes_nothing(start: int) -> None:
    marks = _marks(3, 5)
    marks.done(0, 1.0)
    marks.commit(3, 1.5)
    marks.done(start, 2.0)
    assert (marks.next, marks.committed, marks.given) == (3, 3, 5)
    assert not marks.due(99.0, 0.0)


def test_what_is_done_twice_counts_once() -> None:
    marks = _marks(3, 5)
    marks.done(3, 1.0)
    marks.done(3, 2.0)
    assert marks.next == 0
    marks.done(0, 3.0)
    assert marks.next == 5


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 9), max_size=12).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.lists(st.integers(0, len(sizes)), max_size=24))
    )
)
def test_the_next_offset_is_behind_all_that_is_done_and_before_all_that_is_not(
    drawn: tuple[list[int], list[int]],
) -> None:
    sizes, finishing = drawn
    marks = HandedOut(100)
    slices = [marks.give(marks.given + size) for size in sizes]
    slices.append((9_999, 10_000))  # never given
    done: set[int] = set()
    for which in finishing:
        start, end = slices[which]
        marks.done(start, 0.0)
        if which < len(sizes):
            done.update(range(start, end))
        naive = 100
        while naive in done:
            naive += 1
        # A slice is done as a whole.
        assert marks.next == naive


def test_a_commit_is_due_when_something_done_has_waited_long_enough() -> None:
    marks = _marks(3, 5)
    assert not marks.due(99.0, 5.0)
    marks.done(0, 10.0)
    assert not marks.due(14.9, 5.0)
    assert marks.due(15.0, 5.0)
    marks.done(3, 14.0)
    assert marks.due(15.0, 5.0)


def test_a_commit_is_due_also_if_nothing_follows() -> None:
    marks = _marks(3)
    marks.done(0, 10.0)
    assert marks.due(1_000.0, 5.0)


def test_what_waits_for_what_lies_before_makes_no_commit_due() -> None:
    marks = _marks(3, 5)
    marks.done(3, 10.0)
    assert not marks.due(99.0, 5.0)
    marks.done(0, 20.0)
    assert not marks.due(24.9, 5.0)
    assert marks.due(25.0, 5.0)


def test_after_a_commit_nothing_is_due_until_more_is_done() -> None:
    marks = _marks(3, 5)
    marks.done(0, 10.0)
    marks.commit(3, 10.5)
    assert marks.committed == 3
    assert not marks.due(99.0, 5.0)
    marks.done(3, 100.0)
    assert not marks.due(104.9, 5.0)
    assert marks.due(105.0, 5.0)


def test_what_was_done_after_the_commit_began_waits_from_its_end() -> None:
    marks = _marks(3, 5)
    marks.done(0, 10.0)
    marks.done(3, 11.0)
    marks.commit(3, 12.0)
    assert (marks.committed, marks.next) == (3, 5)
    assert not marks.due(16.9, 5.0)
    assert marks.due(17.0, 5.0)


@pytest.mark.parametrize(
    ("to", "next_", "unmarked"),
    [(0, 0, 3), (2, 2, 3), (3, 3, 2), (4, 4, 2), (5, 5, 1), (9, 9, 0), (12, 9, 0)],
)
def test_all_before_an_offset_is_done(to: int, next_: int, unmarked: int) -> None:
    marks = _marks(3, 5, 9)
    marks.done_to(to, 1.0)
    assert (marks.next, marks.unmarked) == (next_, unmarked)
    assert marks.due(2.0, 1.0) == (next_ > 0)


@pytest.mark.parametrize(
    ("to", "given", "unmarked"), [(0, 0, 0), (2, 2, 1), (3, 3, 1), (4, 4, 2), (9, 9, 3), (12, 9, 3)]
)
def test_what_was_not_handed_out_after_all_is_taken_back(
    to: int, given: int, unmarked: int
) -> None:
    marks = _marks(3, 5, 9)
    marks.take_back(to)
    assert (marks.given, marks.unmarked) == (given, unmarked)
    marks.done_to(99, 1.0)
    assert marks.next == given
    assert marks.give(20) == (given, 20)


def test_what_was_done_in_part_is_done_as_a_whole_by_its_new_start() -> None:
    marks = _marks(3, 5)
    marks.done_to(1, 1.0)
    marks.done(0, 2.0)
    assert marks.next == 1
    marks.done(1, 2.0)
    assert marks.next == 3
