"""Promises about copying from another log: the records and the position in the source are stored
together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

from headrace.core.errors import BadRecord, Fenced, UnknownShard, UnknownStream
from headrace.core.model import StreamInfo
from headrace.core.ports import Copying, Log
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX, Row
from headrace.testing.contracts.backend_under_test import (
    AS_ROWS_AND_AS_ARROW,
    BackendUnderTest,
    BatchOf,
    Opening,
    appended,
    lacks,
    made,
    read_rows,
    some_rows,
)
from headrace.testing.contracts.records import ODD_ROWS

ORIGIN = "somewhere/7:0"


class CopyingContract(BackendUnderTest):
    def test_a_new_copy_has_no_position(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        appended(log, stream, Batch.of_rows(some_rows(3)))
        for _ in range(2):
            with _copying(log, stream) as copying:
                assert copying.at is None

    def test_a_log_has_an_identity_that_stays(self, log: Log) -> None:
        assert log.identity
        assert log.identity == log.identity

    def test_copied_records_and_their_position_are_visible_together(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        rows = some_rows(30)
        for start in (0, 10, 20):
            with _copying(log, stream) as copying:
                assert copying.at == (start or None)
                copying.append(Batch.of_rows(rows[start : start + 5]), start + 5)
                assert copying.at == start + 5
                copying.append(Batch.of_rows(rows[start + 5 : start + 10]), start + 10)
        with _copying(log, stream) as copying:
            assert copying.at == 30
        assert _rows(log, stream) == rows

    def test_the_position_of_a_copy_survives_a_restart(self, opening: Opening) -> None:
        log = opening().log
        stream = made(log)
        if _lacks_copying(log, stream) or "durable" in log.capabilities.missing:
            log.close()
            return
        name = log.identity
        with _copying(log, stream) as copying:
            copying.append(Batch.of_rows(some_rows(3)), 12)
        log.close()
        again = opening().log
        assert again.identity == name
        with _copying(again, again.stream(stream.name)) as copying:
            assert copying.at == 12
        assert _rows(again, stream) == some_rows(3)
        again.close()

    @AS_ROWS_AND_AS_ARROW
    def test_every_field_is_copied(self, log: Log, made_of: BatchOf) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        rows = [*ODD_ROWS, *some_rows(40)]
        with _copying(log, stream) as copying:
            copying.append(made_of(rows).part(0, 3), 3)
            copying.append(made_of(rows).part(3, 45), 45)
        assert _rows(log, stream) == rows

    def test_positions_may_have_gaps(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        nothing = Batch.of_rows([])
        with _copying(log, stream) as copying:
            copying.append(nothing, 4)
            copying.append(nothing, 5)
        with _copying(log, stream) as copying:
            assert copying.at == 5
            copying.append(Batch.of_rows(some_rows(2)), 2**62)
            copying.append(nothing, 2**62 + 1)
        with _copying(log, stream) as copying:
            assert copying.at == 2**62 + 1
        assert _rows(log, stream) == some_rows(2)

    def test_when_two_copy_the_same_shard_the_older_is_fenced(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        rows = some_rows(9)
        with _copying(log, stream) as older:
            older.append(Batch.of_rows(rows[:3]), 3)
            with _copying(log, stream) as newer:
                newer.append(Batch.of_rows(rows[3:6]), 6)
                for records, end in ((rows[3:6], 6), (rows[3:5], 5), (rows[3:], 9), ([], 9)):
                    with pytest.raises(Fenced):
                        older.append(Batch.of_rows(records), end)
                newer.append(Batch.of_rows(rows[6:]), 9)
        assert _rows(log, stream) == rows
        with _copying(log, stream) as copying:
            assert copying.at == 9

    def test_two_copies_without_a_position_are_fenced_too(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        with _copying(log, stream) as older, _copying(log, stream) as newer:
            newer.append(Batch.of_rows(some_rows(2)), 2)
            for records, end in ((some_rows(2), 2), (some_rows(5), 5), ([], 1)):
                with pytest.raises(Fenced):
                    older.append(Batch.of_rows(records), end)
        assert _rows(log, stream) == some_rows(2)

    def test_several_copies_at_once_neither_double_nor_lose_records(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        rows = some_rows(60)

        def copy(step: int) -> None:
            done = False
            while not done:
                try:
                    with _copying(log, stream) as copying:
                        _copy_on(copying, rows, step)
                    done = True
                except Fenced:
                    continue

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(copy, (4, 5, 7)))
        assert _rows(log, stream) == rows

    def test_each_source_shard_and_stream_has_its_own_position(self, log: Log) -> None:
        stream, other = made(log, shards=2), made(log, "other")
        if _lacks_copying(log, stream):
            return
        places = [(stream, 0, "a"), (stream, 0, "b"), (stream, 1, "a"), (other, 0, "a")]
        for number, (target, shard, origin) in enumerate(places, 1):
            with closing(log.copying(target, shard, origin)) as copying:
                assert copying.at is None
                copying.append(Batch.of_rows(some_rows(number)), 10 * number)
        for number, (target, shard, origin) in enumerate(places, 1):
            with closing(log.copying(target, shard, origin)) as copying:
                assert copying.at == 10 * number
        assert len(read_rows(log, stream, 0)) == 3
        assert len(read_rows(log, stream, 1)) == 3
        assert len(read_rows(log, other)) == 4

    def test_copies_of_several_shards_do_not_fence_each_other(self, log: Log) -> None:
        stream, other = made(log, shards=2), made(log, "other")
        if _lacks_copying(log, stream):
            return
        rows = some_rows(20)
        places = [(stream, 0), (stream, 1), (other, 0)]
        with ExitStack() as stack:
            copies = [
                stack.enter_context(closing(log.copying(target, shard, ORIGIN)))
                for target, shard in places
            ]
            for start in (0, 10):
                for copying in copies:
                    copying.append(Batch.of_rows(rows[start : start + 10]), start + 10)
        for target, shard in places:
            assert list(read_rows(log, target, shard).values()) == rows

    def test_appends_by_others_do_not_move_the_position_of_a_copy(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        first, between, last = some_rows(3), some_rows(1, data=b"own"), some_rows(2)
        with _copying(log, stream) as copying:
            copying.append(Batch.of_rows(first), 3)
            appended(log, stream, Batch.of_rows(between))
            copying.append(Batch.of_rows(last), 5)
        assert _rows(log, stream) == [*first, *between, *last]

    def test_copying_a_record_that_is_too_large_names_it_and_changes_nothing(
        self, log: Log
    ) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        rows = [Row(None, b"x", 1), Row(None, bytes(4 * COMMIT_BYTES_MAX), 2)]
        batch = Batch.of_rows(rows, stream="far/away", shard=3, offsets=[17, 19])
        with _copying(log, stream) as copying:
            with pytest.raises(BadRecord, match=r"far/away:3\+19 has 16\.0 MiB"):
                copying.append(batch, 20)
            assert copying.at is None
            copying.append(batch.part(0, 1), 18)
        assert _rows(log, stream) == rows[:1]

    def test_a_stream_created_again_has_no_position_of_the_old_copy(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        with _copying(log, stream) as copying:
            copying.append(Batch.of_rows(some_rows(3)), 3)
        log.delete_stream(stream.name)
        with _copying(log, made(log)) as copying:
            assert copying.at is None

    def test_copying_into_a_missing_stream_or_shard_is_refused(self, log: Log) -> None:
        stream = made(log)
        if _lacks_copying(log, stream):
            return
        with pytest.raises(UnknownShard):
            log.copying(stream, 1, ORIGIN)
        log.delete_stream(stream.name)
        with pytest.raises(UnknownStream):
            log.copying(stream, 0, ORIGIN)


def _lacks_copying(log: Log, stream: StreamInfo) -> bool:
    return lacks(log, "copying", lambda: log.copying(stream, 0, ORIGIN))


@contextmanager
def _copying(log: Log, stream: StreamInfo) -> Iterator[Copying]:
    with closing(log.copying(stream, 0, ORIGIN)) as copying:
        yield copying


def _copy_on(copying: Copying, rows: Sequence[Row], step: int) -> None:
    while (at := copying.at or 0) < len(rows):
        taken = rows[at : at + step]
        copying.append(Batch.of_rows(taken), at + len(taken))


def _rows(log: Log, stream: StreamInfo) -> list[Row]:
    return list(read_rows(log, stream).values())
