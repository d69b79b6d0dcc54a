"""Promises about records: appended in order, never changed, read within limits."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from headrace.core.errors import BadRecord, OffsetOutOfRange, SequenceForgotten, UnknownStream
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import Append, Log, Place, Producer
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX, SEQUENCE_MAX, Row
from headrace.core.records.schema import SCHEMA
from headrace.core.records.to_arrow import arrow_of
from headrace.core.transaction import PRODUCER_SEQS_REMEMBERED
from headrace.testing.contracts.backend_under_test import (
    AS_ROWS_AND_AS_ARROW,
    WAIT_S,
    BackendUnderTest,
    BatchOf,
    Opening,
    appended,
    lacks,
    made,
    plain,
    read_rows,
    some_rows,
)

ODD_ROWS = [
    Row(None, None, 0),
    Row(b"", b"", 1),
    Row(b"\x00\xff\xfe", bytes(range(256)), 1_490_855_872_363, 3, 0x83),
    Row("kéy".encode(), None, TIMESTAMP_MS_MAX, SEQUENCE_MAX, 0x100, (), b""),
    Row(
        None,
        b"\x00",
        2,
        0,
        0x1FF,
        (("a", b"1"), ("b", None), ("a", b"2"), ("", b""), ("é", b"\xff")),
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
]


class RecordsContract(BackendUnderTest):
    # Appending

    def test_appends_get_consecutive_offsets(self, log: Log) -> None:
        stream = made(log)
        rows = some_rows(12)
        offsets = [
            *appended(log, stream, Batch.of_rows(rows[:1])),
            *appended(log, stream, Batch.of_rows(rows[1:9])),
            *appended(log, stream, Batch.of_rows(rows[9:])),
        ]
        assert offsets == sorted(set(offsets))
        assert read_rows(log, stream) == dict(zip(offsets, rows, strict=True))
        assert log.bounds(stream, 0) == Bounds(0, offsets[-1] + 1)
        reason = log.capabilities.missing.get("dense_offsets")
        assert offsets == list(range(12)) or reason

    @AS_ROWS_AND_AS_ARROW
    @pytest.mark.parametrize("count", [5, 40])
    def test_every_field_survives(self, log: Log, made_of: BatchOf, count: int) -> None:
        stream = made(log)
        rows = [*ODD_ROWS, *some_rows(count - 5)]
        offsets = appended(log, stream, made_of(rows))
        assert read_rows(log, stream) == dict(zip(offsets, rows, strict=True))

    @pytest.mark.parametrize("odd", ODD_ROWS, ids=["0", "1", "2", "3", "4"])
    def test_every_field_survives_alone(self, log: Log, odd: Row) -> None:
        stream = made(log)
        offsets = appended(log, stream, Batch.of_rows([odd]))
        assert read_rows(log, stream) == {offsets[0]: odd}

    @pytest.mark.parametrize("count", [1, 16, 17, 1_000])
    def test_rows_and_arrow_read_back_alike(self, log: Log, count: int) -> None:
        stream = made(log)
        rows = some_rows(count)
        appended(log, stream, Batch.of_rows(rows))
        appended(log, stream, Batch.of_arrow(arrow_of(rows)))
        assert list(read_rows(log, stream).values()) == [*rows, *rows]

    @AS_ROWS_AND_AS_ARROW
    def test_a_part_of_a_larger_batch_is_appended_alone(self, log: Log, made_of: BatchOf) -> None:
        stream = made(log)
        rows = [*some_rows(60), *ODD_ROWS]
        appended(log, stream, made_of(rows).part(30, 65))
        assert list(read_rows(log, stream).values()) == rows[30:]

    def test_an_appended_record_does_not_change_with_its_source_buffer(self, log: Log) -> None:
        stream = made(log)
        source = bytearray(b"abc" * 20)
        offsets_buffer = pa.array(range(0, 61, 3), pa.int32()).buffers()[1]
        data = pa.Array.from_buffers(pa.binary(), 20, [None, offsets_buffer, pa.py_buffer(source)])
        columns = arrow_of([Row(None, b"", 7)] * 20).set_column(1, SCHEMA.field(1), data)
        headers = [("name", b"value")]
        appended(log, stream, Batch.of_arrow(columns))
        appended(log, stream, Batch.of_rows([Row(None, b"abc", 7, headers=headers)]))
        source[:] = b"x" * len(source)
        headers.append(("later", b""))
        expected = [Row(None, b"abc", 7)] * 20 + [
            Row(None, b"abc", 7, headers=(("name", b"value"),))
        ]
        assert list(read_rows(log, stream).values()) == expected

    def test_each_part_of_an_append_gets_its_own_place(self, log: Log) -> None:
        first, second = made(log, "a", shards=2), made(log, "b")
        rows = some_rows(6)
        appended(log, first, Batch.of_rows(some_rows(2)))
        places = log.append(
            [
                Append(first, 1, Batch.of_rows(rows[:1])),
                Append(first, 0, Batch.of_arrow(arrow_of(rows[1:3]))),
                Append(second, 0, Batch.of_rows(rows[3:5])),
                Append(first, 1, Batch.of_rows(rows[5:])),
            ]
        )
        assert [place.shard for place in places] == [1, 0, 0, 1]
        assert read_rows(log, first, 1) == {
            places[0].base: rows[0],
            places[3].base: rows[5],
        }
        tail = list(read_rows(log, first, 0).items())[2:]
        assert tail == [(places[1].base, rows[1]), (places[1].base + 1, rows[2])]
        assert read_rows(log, second) == {
            places[2].base: rows[3],
            places[2].base + 1: rows[4],
        }

    def test_the_parts_of_one_append_are_visible_together(self, log: Log) -> None:
        if lacks(log, "atomic_append", lambda: log.capabilities.require("atomic_append")):
            return
        stream = made(log, shards=2)
        parts = [Append(stream, shard, Batch.of_rows(some_rows(1))) for shard in (0, 1)]

        def torn() -> list[tuple[int, int]]:
            """Pairs of record counts, read one after the other, of which the later is smaller."""
            seen = []
            while not writing.done():
                for earlier, later in ((0, 1), (1, 0)):
                    counts = [len(read_rows(log, stream, s)) for s in (earlier, later)]
                    seen.append((counts[0], counts[1]))
            return [pair for pair in seen if pair[1] < pair[0]]

        def write() -> None:
            for _ in range(30):
                log.append(parts)

        with ThreadPoolExecutor(2) as threads:
            writing = threads.submit(write)
            found = threads.submit(torn).result(WAIT_S)
            writing.result(WAIT_S)
        assert found == []

    def test_appends_of_each_thread_keep_their_order(self, log: Log) -> None:
        stream = made(log)

        def write(thread: int) -> list[int]:
            return [
                appended(log, stream, Batch.of_rows([Row(b"%d" % thread, b"%d" % i, i)]))[0]
                for i in range(15)
            ]

        with ThreadPoolExecutor(4) as threads:
            offsets = list(threads.map(write, range(4), timeout=WAIT_S))
        expected = {
            offset: Row(b"%d" % thread, b"%d" % i, i)
            for thread, own in enumerate(offsets)
            for i, offset in enumerate(own)
        }
        assert all(own == sorted(own) for own in offsets)
        assert read_rows(log, stream) == expected

    def test_a_refused_append_does_not_affect_concurrent_appends(self, log: Log) -> None:
        stream, gone = made(log, "a"), made(log, "gone")
        log.delete_stream("gone")

        def write(thread: int) -> int:
            written = 0
            for _ in range(15):
                try:
                    appended(log, gone if thread % 2 else stream, Batch.of_rows(some_rows(1)))
                except UnknownStream:
                    continue
                written += 1
            return written

        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(write, range(6), timeout=WAIT_S)) == [15, 0] * 3
        assert len(read_rows(log, stream)) == 45

    def test_an_append_larger_than_one_commit_is_refused_as_a_whole(self, log: Log) -> None:
        stream = made(log)
        half = Append(stream, 0, Batch.of_rows([Row(None, b"x" * (COMMIT_BYTES_MAX // 2), 1)]))
        with pytest.raises(BadRecord, match=r"4\.0 MiB in one commit: at most 4\.0 MiB"):
            log.append([half, half])
        assert read_rows(log, stream) == {}

    # Reading

    @AS_ROWS_AND_AS_ARROW
    @pytest.mark.parametrize("batch_records", [1, 7, 20, 60])
    @pytest.mark.parametrize(
        ("max_records", "max_bytes"), [(1, 2**20), (7, 2**20), (60, 1), (60, 4_000), (9, 4_000)]
    )
    def test_a_read_takes_at_least_one_record_and_stays_within_its_limits(
        self,
        log: Log,
        made_of: BatchOf,
        batch_records: int,
        max_records: int,
        max_bytes: int,
    ) -> None:
        stream = made(log)
        # The sizes differ on purpose: the average does not say how many records fit.
        rows = [Row(b"k", b"x" * (5_000 if i % 20 == 19 else 100), i) for i in range(60)]
        for i in range(0, 60, batch_records):
            appended(log, stream, made_of(rows[i : i + batch_records]))
        at, end = log.bounds(stream, 0)
        found: list[Row] = []
        while at < end:
            limits = {"max_records": max_records, "max_bytes": max_bytes}
            reading = log.read(stream, 0, at, **limits)
            taken = [plain(row) for batch in reading.batches for row in batch.rows]
            assert 1 <= len(taken) <= max_records
            assert len(taken) == 1 or sum(row.nbytes for row in taken) <= max_bytes
            assert reading.next > at
            found += taken
            at = reading.next
        assert found == rows

    @AS_ROWS_AND_AS_ARROW
    def test_a_read_can_begin_and_end_inside_a_batch(self, log: Log, made_of: BatchOf) -> None:
        stream = made(log)
        rows = some_rows(60)
        offsets = appended(log, stream, made_of(rows[:30]))
        offsets = range(offsets[0], appended(log, stream, made_of(rows[30:]))[-1] + 1)
        if lacks(log, "dense_offsets", lambda: log.capabilities.require("dense_offsets")):
            return
        by_offset = dict(zip(offsets, rows, strict=True))
        for start, end in ((0, 1), (3, 9), (29, 31), (5, 60), (59, 60), (40, 1_000)):
            found = read_rows(log, stream, start=offsets[start], end=offsets[0] + end)
            expected = {offsets[i]: by_offset[offsets[i]] for i in range(start, min(end, 60))}
            assert found == expected

    def test_a_read_at_the_end_or_of_an_empty_slice_finds_no_record(self, log: Log) -> None:
        stream = made(log)
        end = appended(log, stream, Batch.of_rows(some_rows(3)))[-1] + 1
        for start, stop in ((end, None), (1, 1), (2, 1)):
            reading = log.read(stream, 0, start, stop, max_records=9, max_bytes=999)
            assert (list(reading.batches), reading.next) == ([], start)

    def test_a_read_out_of_range_raises_with_the_bounds(self, log: Log) -> None:
        stream = made(log)
        end = appended(log, stream, Batch.of_rows(some_rows(3)))[-1] + 1
        for offset in (-1, end + 1, 2**62):
            with pytest.raises(OffsetOutOfRange) as caught:
                log.read(stream, 0, offset, max_records=1, max_bytes=1)
            facts = vars(caught.value)
            assert facts == {
                "stream": stream.name,
                "shard": 0,
                "offset": offset,
                "start": 0,
                "end": end,
            }

    def test_the_bounds_of_several_shards_are_read_together(self, log: Log) -> None:
        first, second = made(log, "a", shards=3), made(log, "b")
        appended(log, first, Batch.of_rows(some_rows(4)))
        end = appended(log, second, Batch.of_rows(some_rows(2)))[-1] + 1
        asked = [(second, 0), (first, 2), (first, 0), (second, 0)]
        assert log.ends(asked) == [end, 0, log.bounds(first, 0).end, end]
        assert log.bounds_of(asked) == [log.bounds(*shard) for shard in asked]
        assert (log.ends([]), log.bounds_of([])) == ([], [])
        log.delete_stream("b")
        for call in (log.ends, log.bounds_of):
            with pytest.raises(UnknownStream, match="'b'"):
                call(asked)

    # Trimming

    def test_a_trim_removes_only_the_records_before_its_offset(self, log: Log) -> None:
        stream = made(log)
        if lacks(log, "trim", lambda: log.trim(stream, 0, 0)):
            return
        rows = some_rows(60)
        for i in (0, 20, 40):
            appended(log, stream, Batch.of_rows(rows[i : i + 20]))
        for before in (0, 5, 20, 33, 60):
            log.trim(stream, 0, before)
            assert log.bounds(stream, 0) == Bounds(before, 60)
            assert read_rows(log, stream) == dict(enumerate(rows[before:], before))
            if before:
                with pytest.raises(OffsetOutOfRange, match=f"first kept offset {before}") as caught:
                    log.read(stream, 0, before - 1, max_records=1, max_bytes=1)
                assert (caught.value.start, caught.value.end) == (before, 60)
        assert appended(log, stream, Batch.of_rows(rows[:1])) == range(60, 61)
        assert read_rows(log, stream) == {60: rows[0]}

    def test_trimming_goes_neither_back_nor_beyond_the_end(self, log: Log) -> None:
        stream = made(log)
        if lacks(log, "trim", lambda: log.trim(stream, 0, 0)):
            return
        appended(log, stream, Batch.of_rows(some_rows(10)))
        log.trim(stream, 0, 4)
        for before in (3, 11, -1):
            with pytest.raises(OffsetOutOfRange):
                log.trim(stream, 0, before)
        assert log.bounds(stream, 0) == Bounds(4, 10)

    # Times

    @AS_ROWS_AND_AS_ARROW
    def test_a_time_finds_the_first_record_not_earlier(self, log: Log, made_of: BatchOf) -> None:
        stream = made(log)
        times = [50, 10, 40, 20, 70, 60, *range(20, 50), 65, 90, 80]
        offsets: list[int] = []
        for at in range(0, len(times), 20):
            rows = [Row(None, b"", ms) for ms in times[at : at + 20]]
            offsets += appended(log, stream, made_of(rows))
        for wanted in (0, 10, 11, 50, 51, 61, 70, 71, 90):
            first = next(i for i, ms in enumerate(times) if ms >= wanted)
            assert log.offset_at(stream, 0, wanted) == offsets[first]
        assert log.offset_at(stream, 0, 91) == log.bounds(stream, 0).end

    def test_a_time_never_finds_a_trimmed_record(self, log: Log) -> None:
        stream = made(log)
        assert log.offset_at(stream, 0, 0) == 0
        if lacks(log, "trim", lambda: log.trim(stream, 0, 0)):
            return
        appended(log, stream, Batch.of_rows([Row(None, b"", ms) for ms in (90, 10, 20, 30)]))
        log.trim(stream, 0, 2)
        assert log.offset_at(stream, 0, 5) == 2
        assert log.offset_at(stream, 0, 25) == 3
        assert log.offset_at(stream, 0, 50) == 4

    # Producers

    def test_a_repeated_append_returns_the_places_of_the_first(self, log: Log) -> None:
        stream = made(log, shards=2)
        parts = [Append(stream, 1, Batch.of_rows(some_rows(3))), _one(stream)]
        producer = Producer("p", 7)
        if lacks(log, "producer_seq", lambda: log.append(parts, producer)):
            return
        places = log.append(parts, producer)
        appended(log, stream, Batch.of_rows(some_rows(5)))
        assert log.append(parts, producer) == places
        assert len(read_rows(log, stream, 0)) == 6
        assert len(read_rows(log, stream, 1)) == 3

    def test_each_producer_and_stream_has_its_own_numbers(self, log: Log) -> None:
        first, second = made(log, "a"), made(log, "b")
        if lacks(log, "producer_seq", lambda: log.append([_one(first)], Producer("p", 0))):
            return
        for stream in (first, second):
            for name in ("p", "q", "P"):
                log.append([_one(stream)], Producer(name, 0))
        assert (len(read_rows(log, first)), len(read_rows(log, second))) == (3, 3)

    def test_the_promised_number_of_appends_is_remembered(self, log: Log) -> None:
        stream = made(log)
        if lacks(log, "producer_seq", lambda: log.append([_one(stream)], Producer("p", 0))):
            return
        # Numbers of a producer must grow, and may have gaps.
        numbers = range(0, 3 * (PRODUCER_SEQS_REMEMBERED + 2), 3)
        places = {seq: log.append([_one(stream)], Producer("p", seq)) for seq in numbers}
        remembered = numbers[-PRODUCER_SEQS_REMEMBERED:]
        assert {seq: log.append([_one(stream)], Producer("p", seq)) for seq in remembered} == {
            seq: places[seq] for seq in remembered
        }
        for forgotten in (numbers[1], numbers[0], remembered[-1] - 1):
            with pytest.raises(SequenceForgotten) as caught:
                log.append([_one(stream)], Producer("p", forgotten))
            assert vars(caught.value) == {
                "producer": "p",
                "producer_seq": forgotten,
                "last": numbers[-1],
            }
        assert len(read_rows(log, stream)) == len(numbers)

    def test_a_repeated_append_is_recognised_after_a_restart(self, opening: Opening) -> None:
        log = opening().log
        stream = made(log)
        marked = [_one(stream)], Producer("p", 0)
        if lacks(log, "durable", lambda: log.capabilities.require("durable")) or lacks(
            log, "producer_seq", lambda: log.append(*marked)
        ):
            log.close()
            return
        places: dict[int, list[Place]] = {}
        for seq in (2**62, 2**63 - 1):
            places[seq] = log.append([_one(stream), _one(stream)], Producer("pé", seq))
        log.close()
        again = opening().log
        for seq in places:
            found = again.append([_one(stream), _one(stream)], Producer("pé", seq))
            assert found == places[seq]
        with pytest.raises(SequenceForgotten):
            again.append([_one(stream)], Producer("pé", 5))
        assert len(read_rows(again, stream)) == 4
        again.close()

    def test_a_refused_append_does_not_use_up_its_producer_seq(self, log: Log) -> None:
        stream = made(log)
        if lacks(log, "producer_seq", lambda: log.append([_one(stream)], Producer("p", 0))):
            return
        too_much = Append(stream, 0, Batch.of_rows([Row(None, b"x" * COMMIT_BYTES_MAX, 1)]))
        with pytest.raises(BadRecord):
            log.append([too_much], Producer("p", 1))
        log.append([_one(stream)], Producer("p", 1))
        assert len(read_rows(log, stream)) == 1

    # Waiting

    def test_a_waiting_reader_wakes_on_an_append(self, log: Log) -> None:
        stream = made(log)
        seen = log.changes()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(log.wait, seen, 2 * WAIT_S)
            appended(log, stream, Batch.of_rows(some_rows(1)))
            assert waiting.result(WAIT_S) != seen
        assert log.changes() != seen

    def test_a_reader_with_an_old_change_count_does_not_wait(self, log: Log) -> None:
        stream = made(log)
        seen = log.changes()
        appended(log, stream, Batch.of_rows(some_rows(1)))
        began = time.monotonic()
        assert log.wait(seen, WAIT_S) == log.changes()
        assert time.monotonic() - began < WAIT_S / 2

    def test_waiting_ends_after_its_timeout(self, log: Log) -> None:
        made(log)
        seen = log.changes()
        began = time.monotonic()
        assert log.wait(seen, 0.05) == seen
        assert time.monotonic() - began >= 0.05


def _one(stream: StreamInfo) -> Append:
    return Append(stream, 0, Batch.of_rows([Row(b"k", b"v", 1)]))
