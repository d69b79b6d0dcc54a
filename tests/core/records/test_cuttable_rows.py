"""Rows that are handed out one by one until they are cut."""

from __future__ import annotations

import threading
from itertools import islice

from headrace.core.records.batch import Batch
from headrace.core.records.cuttable_rows import CuttableRows
from headrace.core.records.row import Row

BATCH = Batch.of_rows([Row(None, b"%d" % number, 0) for number in range(10)], stream="s", shard=0)


def test_the_rows_of_a_part_of_a_batch_are_handed_out_in_order() -> None:
    rows = CuttableRows(BATCH, 2, 6)
    assert rows.given == 2
    assert [record.data for record in rows.left] == [b"2", b"3", b"4", b"5"]
    assert rows.given == rows.end == 6
    assert not rows.is_cut


def test_the_record_in_hand_is_told_without_counting() -> None:
    rows = CuttableRows(BATCH, 2, 6)
    count_left = rows.count_left
    for row, _ in enumerate(rows.left, 2):
        assert rows.given - 1 == row == rows.end - 1 - count_left()


def test_no_row_is_handed_out_after_a_cut_and_none_is_lost() -> None:
    rows = CuttableRows(BATCH, 2, 6)
    assert [record.data for record in islice(rows.left, 2)] == [b"2", b"3"]
    rows.cut()
    assert rows.is_cut
    assert list(rows.left) == []
    assert rows.given == 4, "the row behind the last one that was handed out"


def test_another_thread_ends_an_iteration_behind_the_record_in_hand() -> None:
    rows = CuttableRows(BATCH, 0, 10)
    given = []
    for record in rows.left:
        given.append(record.data)
        if len(given) == 3:
            cutting = threading.Thread(target=rows.cut)
            cutting.start()
            cutting.join()
    assert (given, rows.given) == ([b"0", b"1", b"2"], 3)


def test_no_rows_are_no_rows() -> None:
    rows = CuttableRows(BATCH, 4, 4)
    assert (list(rows.left), rows.given) == ([], 4)
