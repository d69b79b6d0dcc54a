"""What other threads see of the slice that a lane works on."""

from __future__ import annotations

from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.lanes.slice_in_hand import APART, SliceInHand


def _batch(first: int, count: int) -> Batch:
    rows = [Row(None, b"%d" % number, 0) for number in range(count)]
    return Batch.of_rows(rows, stream="s", shard=0, offsets=range(first, first + count))


def test_the_offset_of_the_record_in_hand_is_seen_while_the_handler_works() -> None:
    slice_in_hand = SliceInHand(7, 100)
    assert slice_in_hand.offset is None
    records = slice_in_hand.records(_batch(100, 5), 0, 5)
    with slice_in_hand:
        assert slice_in_hand.offset == 100, "where the slice starts, until there is a record"
        assert [slice_in_hand.offset for _ in records] == [100, 101, 102, 103, 104]
    assert slice_in_hand.offset is None


def test_a_call_without_a_record_is_told_apart() -> None:
    slice_in_hand = SliceInHand(7, 100)
    with slice_in_hand.apart():
        assert slice_in_hand.offset == APART
    with slice_in_hand:
        assert slice_in_hand.offset == 100


def test_a_cut_ends_the_rows_in_hand_and_all_that_come_later() -> None:
    slice_in_hand = SliceInHand(7, 100)
    given = []
    for record in slice_in_hand.records(_batch(100, 5), 1, 5):
        given.append(record.offset)
        if record.offset == 102:
            slice_in_hand.cut()
    assert given == [101, 102]
    assert slice_in_hand.rows.given == 3
    assert list(slice_in_hand.records(_batch(105, 5), 0, 5)) == []


def test_a_slice_that_was_cut_before_its_first_record_hands_out_none() -> None:
    slice_in_hand = SliceInHand(7, 100)
    slice_in_hand.cut()
    assert list(slice_in_hand.records(_batch(100, 5), 0, 5)) == []
