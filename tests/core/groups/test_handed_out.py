from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.groups.handed_out import HandedOut


def _handed_out(*ends: int, start: int = 0) -> HandedOut:
    handed_out = HandedOut(start)
    for end in ends:
        handed_out.give(end)
    return handed_out


def test_slices_are_given_one_behind_the_other() -> None:
    handed_out = HandedOut(7)
    assert [handed_out.give(9), handed_out.give(10), handed_out.give(20)] == [
        (7, 9),
        (9, 10),
        (10, 20),
    ]
    assert (handed_out.given, handed_out.next, handed_out.committed) == (20, 7, 7)


@pytest.mark.parametrize("end", [9, 8, 0])
def test_an_empty_slice_cannot_be_given(end: int) -> None:
    handed_out = _handed_out(9)
    with pytest.raises(AssertionError, match=f"nothing to give from 9 to {end}"):
        handed_out.give(end)


def test_slices_done_in_order_move_the_next_offset() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(0, 1.0)
    assert handed_out.next == 3
    handed_out.done(3, 2.0)
    assert handed_out.next == 5


def test_a_slice_done_early_waits_for_the_slices_before_it() -> None:
    handed_out = _handed_out(3, 5, 9)
    handed_out.done(5, 1.0)
    handed_out.done(3, 1.0)
    assert handed_out.next == 0
    handed_out.done(0, 1.0)
    assert handed_out.next == 9


@pytest.mark.parametrize("start", [0, 1, 4, 5, 99])
def test_a_slice_that_is_unknown_or_done_already_changes_nothing(start: int) -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(0, 1.0)
    handed_out.commit(3, 1.5)
    handed_out.done(start, 2.0)
    assert (handed_out.next, handed_out.committed, handed_out.given) == (3, 3, 5)
    assert not handed_out.due(99.0, 0.0)


def test_a_slice_done_twice_counts_once() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(3, 1.0)
    handed_out.done(3, 2.0)
    assert handed_out.next == 0
    handed_out.done(0, 3.0)
    assert handed_out.next == 5


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 9), max_size=12).flatmap(
        lambda sizes: st.tuples(st.just(sizes), st.lists(st.integers(0, len(sizes)), max_size=24))
    )
)
def test_the_next_offset_is_the_first_that_is_not_done(
    drawn: tuple[list[int], list[int]],
) -> None:
    sizes, finishing = drawn
    handed_out = HandedOut(100)
    slices = [handed_out.give(handed_out.given + size) for size in sizes]
    slices.append((9_999, 10_000))  # never given
    done: set[int] = set()
    for which in finishing:
        start, end = slices[which]
        handed_out.done(start, 0.0)
        if which < len(sizes):
            done.update(range(start, end))
        naive = 100
        while naive in done:
            naive += 1
        # A slice is done as a whole.
        assert handed_out.next == naive


def test_a_commit_is_due_when_a_done_slice_has_waited_long_enough() -> None:
    handed_out = _handed_out(3, 5)
    assert not handed_out.due(99.0, 5.0)
    handed_out.done(0, 10.0)
    assert not handed_out.due(14.9, 5.0)
    assert handed_out.due(15.0, 5.0)
    handed_out.done(3, 14.0)
    assert handed_out.due(15.0, 5.0)


def test_a_commit_is_due_even_if_no_slice_follows() -> None:
    handed_out = _handed_out(3)
    handed_out.done(0, 10.0)
    assert handed_out.due(1_000.0, 5.0)


def test_a_slice_that_waits_for_an_earlier_one_makes_no_commit_due() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(3, 10.0)
    assert not handed_out.due(99.0, 5.0)
    handed_out.done(0, 20.0)
    assert not handed_out.due(24.9, 5.0)
    assert handed_out.due(25.0, 5.0)


def test_after_a_commit_none_is_due_until_another_slice_is_done() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(0, 10.0)
    handed_out.commit(3, 10.5)
    assert handed_out.committed == 3
    assert not handed_out.due(99.0, 5.0)
    handed_out.done(3, 100.0)
    assert not handed_out.due(104.9, 5.0)
    assert handed_out.due(105.0, 5.0)


def test_a_slice_done_during_a_commit_waits_from_the_end_of_that_commit() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done(0, 10.0)
    handed_out.done(3, 11.0)
    handed_out.commit(3, 12.0)
    assert (handed_out.committed, handed_out.next) == (3, 5)
    assert not handed_out.due(16.9, 5.0)
    assert handed_out.due(17.0, 5.0)


@pytest.mark.parametrize(
    ("to", "next_", "unmarked"),
    [(0, 0, 3), (2, 2, 3), (3, 3, 2), (4, 4, 2), (5, 5, 1), (9, 9, 0), (12, 9, 0)],
)
def test_done_to_an_offset_ends_all_slices_before_it(to: int, next_: int, unmarked: int) -> None:
    handed_out = _handed_out(3, 5, 9)
    handed_out.done_to(to, 1.0)
    assert (handed_out.next, handed_out.unmarked) == (next_, unmarked)
    assert handed_out.due(2.0, 1.0) == (next_ > 0)


@pytest.mark.parametrize(
    ("to", "given", "unmarked"), [(0, 0, 0), (2, 2, 1), (3, 3, 1), (4, 4, 2), (9, 9, 3), (12, 9, 3)]
)
def test_records_behind_an_offset_are_taken_back(to: int, given: int, unmarked: int) -> None:
    handed_out = _handed_out(3, 5, 9)
    handed_out.take_back(to)
    assert (handed_out.given, handed_out.unmarked) == (given, unmarked)
    handed_out.done_to(99, 1.0)
    assert handed_out.next == given
    assert handed_out.give(20) == (given, 20)


def test_the_rest_of_a_slice_done_in_part_is_known_by_its_new_start() -> None:
    handed_out = _handed_out(3, 5)
    handed_out.done_to(1, 1.0)
    handed_out.done(0, 2.0)
    assert handed_out.next == 1
    handed_out.done(1, 2.0)
    assert handed_out.next == 3
