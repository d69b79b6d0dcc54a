"""Offsets without a record: aborted transactions, transaction markers, compaction."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import headrace
from headrace.core.model import Bounds
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace, values_by_offset


@pytest.fixture
def gaps(place: KafkaPlace, hub: headrace.Hub) -> headrace.Stream:
    """3 records committed, 2 aborted, 4 committed."""
    stream = hub.create_stream("a", shards=1)
    place.write("a", [b"0", b"1", b"2"])
    place.write("a", [b"x", b"x"], commit=False)
    place.write("a", [b"3", b"4", b"5", b"6"])
    until(lambda: stream.bounds(0).end == 12, "the marks of the transactions are written", WAIT_S)
    return stream


GAPS = {0: b"0", 1: b"1", 2: b"2", 7: b"3", 8: b"4", 9: b"5", 10: b"6"}


def test_aborted_records_are_not_read_and_a_read_ends_behind_the_last_marker(
    gaps: headrace.Stream, hub: headrace.Hub
) -> None:
    assert values_by_offset(gaps) == GAPS
    table = gaps.read_arrow(0).read_all()
    assert table.column("offset").to_pylist() == list(GAPS)
    reading = hub.log.read(gaps.info, 0, 0, max_records=100, max_bytes=2**20)
    assert reading.next == 12
    assert hub.log.ends([(gaps.info, 0)]) == [12]


def test_a_slice_that_begins_or_ends_in_a_gap_holds_what_lies_in_it(
    gaps: headrace.Stream, hub: headrace.Hub
) -> None:
    for start in range(13):
        for end in range(start, 13):
            found: dict[int, bytes | None] = {}
            at = start
            while at < end:
                reading = hub.log.read(gaps.info, 0, at, end, max_records=2, max_bytes=2**20)
                assert at < reading.next <= end
                for batch in reading.batches:
                    found |= zip(batch.offsets, batch.data, strict=True)
                at = reading.next
            assert found == {o: value for o, value in GAPS.items() if start <= o < end}


def test_a_shard_of_nothing_but_aborted_records_reads_as_empty(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    place.write("a", [b"x"] * 5, commit=False)
    until(lambda: stream.bounds(0).end == 6, "the mark is written", WAIT_S)
    assert values_by_offset(stream) == {}
    reading = hub.log.read(stream.info, 0, 0, max_records=9, max_bytes=999)
    assert (list(reading.batches), reading.next) == ([], 6)


def test_records_of_an_open_transaction_are_read_when_it_is_committed(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"before")
    following = stream.read(0, follow=True)
    assert next(following).value == b"before"
    with place.transaction("a", [b"in it"]) as transaction, ThreadPoolExecutor(1) as threads:
        stream.append(b"behind it")
        assert stream.bounds(0) == Bounds(0, 1), "up to the last stable offset"
        waiting = threads.submit(next, following)
        assert values_by_offset(stream) == {0: b"before"}
        assert not waiting.done()
        transaction.end()
        assert waiting.result(WAIT_S).value == b"in it"
    assert next(following).value == b"behind it"
    assert values_by_offset(stream) == {0: b"before", 1: b"in it", 2: b"behind it"}


def test_a_compacted_topic_reads_what_is_left_and_cannot_be_trimmed(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    place.make_topic(
        "a",
        cleanup_policy="compact",
        segment_ms="50",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="200",
    )
    stream = hub.stream("a")
    first = stream.append_many([(b"%d" % i, f"k{i % 3}") for i in range(60)])
    # A segment is compacted once it is closed: by a record that comes after its time.
    last = 0

    def compacted() -> bool:
        nonlocal last
        last = stream.append(b"last", "last").offset
        return sum(1 for _ in stream.read(0, "earliest", 60)) <= 3

    until(compacted, "the topic is compacted", 150)
    found = {record.key: int(record.value) for record in stream.read(0, "earliest", 60)}
    assert found == {"k0": 57, "k1": 58, "k2": 59}
    assert list(stream.read(0, first[5].offset, 57)) == [], "a slice in the gap ends"
    assert stream.bounds(0).end == last + 1
    with pytest.raises(headrace.Unsupported, match="does not trim a: its topic is compacted"):
        stream.trim(0, 1)
    for call in (
        lambda: stream.append(b"x"),
        lambda: stream.append_many([(b"x", "k"), (b"x", None)]),
        lambda: stream.append_arrow(pa.record_batch({"data": [b"x"]}), shard=0),
    ):
        with pytest.raises(headrace.BadRecord, match="without a key for a: its topic is compacted"):
            call()
    assert stream.bounds(0).end == last + 1
