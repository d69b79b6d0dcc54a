"""Limits of topics, clients and readers: what is too large is refused and named."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import headrace
from headrace.backends.kafka.reading import cursors
from headrace.core.model import Bounds
from headrace.core.ports import Append
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace, values_by_offset


def test_a_record_over_the_limit_of_its_topic_is_refused_with_the_limit(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    place.make_topic("small", max_message_bytes="100000")
    stream = hub.stream("small")
    large = b"x" * 120_000
    for call in (
        lambda: stream.append(large, "k"),
        lambda: stream.append_many([(b"a", "k"), (large, "k"), (b"b", "k")]),
        lambda: stream.append_arrow(pa.record_batch({"data": [b"a", large]}), shard=0),
    ):
        with pytest.raises(headrace.BadRecord, match=r"117\.2 KiB for small.*at most 97\.7 KiB"):
            call()
    assert stream.bounds(0) == Bounds(0, 0)
    assert stream.append(b"x" * 90_000).offset == 0


def test_many_small_records_go_into_a_topic_of_small_batches(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    place.make_topic("small", max_message_bytes="20000")
    stream = hub.stream("small")
    assert len(stream.append_many([(b"x" * 100, "k")] * 5_000)) == 5_000
    assert stream.bounds(0) == Bounds(0, 5_000)


def test_a_limit_raised_by_another_program_is_noticed(place: KafkaPlace, hub: headrace.Hub) -> None:
    place.make_topic("small", max_message_bytes="20000")
    stream = hub.stream("small")
    with pytest.raises(headrace.BadRecord, match="at most 19"):
        stream.append(b"x" * 50_000)
    place.set_config("small", "max.message.bytes", "200000")
    until(lambda: _lands(stream, b"x" * 50_000), "it is noticed", WAIT_S)
    assert stream.bounds(0).end == 1


def test_a_limit_lowered_meanwhile_is_enforced_by_the_broker(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"first")
    place.set_config("a", "max.message.bytes", "10000")
    until(lambda: not _lands(stream, os.urandom(50_000)), "it is told", WAIT_S)
    stream.append(b"small")
    values = list(values_by_offset(stream).values())
    assert (values[0], values[-1]) == (b"first", b"small")
    with pytest.raises(headrace.HeadraceError):
        stream.append(os.urandom(50_000))
    assert list(values_by_offset(stream).values()) == values


def _lands(stream: headrace.Stream, value: bytes) -> bool:
    """The broker takes up a changed setting a moment after it was told."""
    try:
        stream.append(value)
    except headrace.HeadraceError:
        return False
    return True


def test_a_record_larger_than_a_reader_allows_is_named_and_can_be_passed(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("shop/orders", shards=2)
    stream.append(b"before", shard=1)
    stream.append(b"x" * 2_000_000, shard=1)
    stream.append(b"after", shard=1)
    with headrace.open(f"{place.url}?fetch_max=1MiB") as careful:
        orders = careful.stream("shop/orders")
        reading = orders.read(1)
        assert next(reading).value == b"before"
        with pytest.raises(headrace.RecordTooLarge, match=r"shop/orders:1\+1 holds 2000000") as why:
            next(reading)
        facts = (why.value.stream, why.value.shard, why.value.offset, why.value.limit)
        assert facts == ("shop/orders", 1, 1, 2**20)
        assert [record.value for record in orders.read(1, why.value.offset + 1)] == [b"after"]
        with pytest.raises(headrace.RecordTooLarge):
            orders.read_arrow(1, 1).read_all()
    assert [len(record.data or b"") for record in stream.read(1)] == [6, 2_000_000, 5]


def test_a_fetch_is_as_large_as_the_setting_says(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "IDLE_S", 600.0)  # who is slow does not lose what was fetched
    stream = hub.create_stream("a", shards=1)
    for _ in range(30):
        stream.append(b"x" * 10_000)
    little, usual = (
        headrace.open(place.url, settings={"fetch.message.max.bytes": most, **one_ahead})
        for most in (15_000, 1_048_576)
        for one_ahead in [{"queued.min.messages": 1}]
    )
    with little, usual:
        few, many = (opened.stream("a").read(0, max_records=1) for opened in (little, usual))
        next(few), next(many)
        stream.trim(0, 25)  # what was fetched before is all that can still be read
        assert len(list(many)) == 29
        with pytest.raises(headrace.OffsetOutOfRange) as why:
            list(few)
        assert why.value.offset <= 5


def test_a_full_queue_of_the_client_is_waited_for(place: KafkaPlace, hub: headrace.Hub) -> None:
    hub.create_stream("a", shards=1)
    with headrace.open(place.url, settings={"queue.buffering.max.messages": 50}) as narrow:
        stream = narrow.stream("a")
        ids = stream.append_many([(b"%d" % i, "k") for i in range(2_000)])
        batch = pa.record_batch({"data": [b"%d" % i for i in range(2_000)]})
        stream.append_arrow(batch, shard=0)
        odd = Batch.of_rows([Row(b"k", b"%d" % i, 5, flags=1) for i in range(500)])
        narrow.log.append([Append(stream.info, 0, odd)])
    assert [i.offset for i in ids] == list(range(2_000))
    wanted = [*range(2_000), *range(2_000), *range(500)]
    assert [int(value) for value in values_by_offset(hub.stream("a")).values()] == wanted


def test_a_refused_record_among_others_raises(place: KafkaPlace, hub: headrace.Hub) -> None:
    """Only the first and the last report: what the broker refuses between them must be told."""
    place.make_topic("a", message_timestamp_after_max_ms="1000")
    with headrace.open(place.url, settings={"batch.num.messages": 1}) as other:
        stream = other.stream("a")
        now = datetime.now(UTC)
        times = [now] * 50
        times[20] = now + timedelta(days=3)
        batch = pa.record_batch(
            [
                pa.array([b"%d" % i for i in range(50)], pa.binary()),
                pa.array(times, pa.timestamp("us", "UTC")),
            ],
            names=["data", "timestamp"],
        )
        with pytest.raises(headrace.HeadraceError, match=r"(?i)timestamp"):
            stream.append_arrow(batch, shard=0)
        written = len(values_by_offset(stream))
        assert written <= 20
        assert stream.append(b"next").offset == written
