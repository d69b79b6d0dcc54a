"""The fields of records: headers, timestamps, compression, keys, and those of other programs."""

from __future__ import annotations

import random

import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.backends.kafka.messages import EXTRA, outgoing, split_headers
from headrace.core.model import Bounds
from headrace.core.ports import Append
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.routing import router
from headrace.core.records.row import Row
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace, values_by_offset


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read_and_written(
    place: KafkaPlace, hub: headrace.Hub, codec: str
) -> None:
    topic = place.make_topic("a")
    theirs = Producer({"bootstrap.servers": place.bootstrap, "compression.type": codec})
    for i in range(200):
        theirs.produce(topic, b"%d " % i * 50, b"k", 0)
    assert theirs.flush(WAIT_S) == 0
    with headrace.open(f"{place.url}?compression.type={codec}") as other:
        other.stream("a").append_many([(b"%d " % i * 50, "k") for i in range(200, 400)], shard=0)
    values = list(values_by_offset(hub.stream("a")).values())
    assert values == [b"%d " % i * 50 for i in range(400)]


def test_an_unknown_compression_is_refused_by_name(place: KafkaPlace) -> None:
    with pytest.raises(headrace.BadSetting, match=r"compression\.(type|codec)"):
        headrace.open(f"{place.url}?compression.type=brotli")


_NAMED = st.characters(codec="utf-8", exclude_characters="\0")
_HEADER = st.tuples(
    st.one_of(
        st.just(EXTRA), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
    ),
    st.one_of(st.none(), st.binary(max_size=12)),
)
ROWS = st.builds(
    Row,
    st.one_of(st.none(), st.binary(max_size=20)),
    st.one_of(st.none(), st.binary(max_size=100)),
    st.integers(0, TIMESTAMP_MS_MAX),
    st.one_of(st.just(0), st.integers(0, 2**31 - 1)),
    st.one_of(st.just(0), st.integers(0, 0x1FF)),
    st.lists(_HEADER, max_size=3).map(tuple),
    st.one_of(st.none(), st.binary(max_size=20)),
)


@given(ROWS)
def test_own_headers_and_ours_are_told_apart_in_any_record(row: Row) -> None:
    (message,) = outgoing(Batch.of_rows([row]))
    headers, extra = split_headers(message.headers or [])
    assert headers == row.headers
    assert (extra.sequence, extra.flags, extra.trace) == (row.sequence, row.flags, row.trace)
    assert (0 if extra.at_zero else message.timestamp) == row.timestamp


def test_random_records_survive_the_broker(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(ROWS, min_size=1, max_size=30))
    def survives(rows: list[Row]) -> None:
        (place,) = hub.log.append([Append(stream.info, 0, Batch.of_rows(rows), each=True)])
        reading = hub.log.read(stream.info, 0, place.base, max_records=len(rows), max_bytes=2**22)
        found = [Row(*row) for batch in reading.batches for row in batch.rows]
        assert found == rows

    survives()


def test_records_of_other_programs_are_read_with_kafkas_own_fields(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    topic = place.make_topic("theirs", 2, message_timestamp_after_max_ms=str(2**63 - 1))
    producer = Producer({"bootstrap.servers": place.bootstrap})
    headers = [("h", b"1"), ("h", None), (EXTRA, b"not ours"), ("", b"")]
    producer.produce(topic, None, b"\xff\x00", 1, timestamp=1_490_855_872_363, headers=headers)
    producer.produce(topic, b"", None, 1, timestamp=9 * 10**14)
    assert producer.flush(WAIT_S) == 0
    stream = hub.stream("theirs")
    assert (stream.info.codec, stream.info.routing, stream.shards) == ("bytes", "murmur2", 2)
    tombstone, empty = stream.read(1)
    assert (tombstone.data, tombstone.key_bytes) == (None, b"\xff\x00")
    assert tombstone.headers == tuple(headers)
    assert (tombstone.timestamp_ms, int(tombstone.flags), tombstone.trace) == (
        1_490_855_872_363,
        0,
        None,
    )
    assert (empty.data, empty.key, empty.timestamp_ms) == (b"", None, TIMESTAMP_MS_MAX)


def test_a_header_that_the_client_would_cut_is_refused(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    with pytest.raises(headrace.BadRecord, match="cannot hold a zero byte"):
        stream.append(b"x", headers={"a\0b": b"1"})
    assert stream.bounds(0) == Bounds(0, 0)


def test_keys_go_to_the_partition_that_the_java_client_chooses(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    """librdkafka's partitioner of that name is the Java producer's."""
    topic = place.make_topic("a", 7)
    keys = [random.Random(3).randbytes(n % 23) for n in range(300)]
    producer = Producer({"bootstrap.servers": place.bootstrap, "partitioner": "murmur2"})
    for key in keys:
        producer.produce(topic, b"", key)
    assert producer.flush(WAIT_S) == 0
    stream = hub.stream("a")
    route = router("murmur2", stream.info.shards)
    found = [record for shard in range(7) for record in stream.read(shard)]
    assert len(found) == 300
    assert all(route(record.key_bytes or b"") == record.shard for record in found)
    assert stream.append(b"", keys[5]).shard == route(keys[5])
