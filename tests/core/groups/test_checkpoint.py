from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadSetting, OffsetOutOfRange
from headrace.core.groups.checkpoint import Checkpoint
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


def test_an_empty_slice_advances_a_checkpoint_by_one_commit() -> None:
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
def test_a_checkpoint_moved_by_force_stays_in_bounds_and_counts_no_commit(to: int) -> None:
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
