"""What is Kafka's own in a log: gaps, transactions, compaction, limits, topics of others."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.kafka.messages import EXTRA, outgoing, split_headers
from headrace.backends.kafka.reading import cursors
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.reading.cursors import IDLE_MAX
from headrace.backends.kafka.topics import topics
from headrace.backends.kafka.topics.offsets import GONE
from headrace.backends.kafka.topics.stream_descriptions import Description, Descriptions
from headrace.core.capabilities import CAPABILITIES
from headrace.core.model import Bounds
from headrace.core.ports import Append, Log, ReadResult
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.routing import router
from headrace.core.records.row import Row
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import Place


@pytest.fixture
def hub(place: Place) -> Iterator[headrace.Hub]:
    with headrace.open(place.url) as hub:
        yield hub


def _values(stream: headrace.Stream, *where: int | None) -> dict[int, bytes]:
    return {record.offset: record.value for record in stream.read(0, *where)}  # type: ignore[arg-type]


# Gaps


@pytest.fixture
def gaps(place: Place, hub: headrace.Hub) -> headrace.Stream:
    """3 records committed, 2 aborted, 4 committed."""
    stream = hub.create_stream("a", shards=1)
    place.write("a", [b"0", b"1", b"2"])
    place.write("a", [b"x", b"x"], commit=False)
    place.write("a", [b"3", b"4", b"5", b"6"])
    until(lambda: stream.bounds(0).end == 12, "the marks of the transactions are written", WAIT_S)
    return stream


GAPS = {0: b"0", 1: b"1", 2: b"2", 7: b"3", 8: b"4", 9: b"5", 10: b"6"}


def test_aborted_records_are_not_read_and_a_read_ends_behind_the_last_mark(
    gaps: headrace.Stream, hub: headrace.Hub
) -> None:
    assert _values(gaps) == GAPS
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
    place: Place, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    place.write("a", [b"x"] * 5, commit=False)
    until(lambda: stream.bounds(0).end == 6, "the mark is written", WAIT_S)
    assert _values(stream) == {}
    reading = hub.log.read(stream.info, 0, 0, max_records=9, max_bytes=999)
    assert (list(reading.batches), reading.next) == ([], 6)


def test_what_an_open_transaction_wrote_comes_when_it_is_committed(
    place: Place, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"before")
    following = stream.read(0, follow=True)
    assert next(following).value == b"before"
    with place.transaction("a", [b"in it"]) as transaction, ThreadPoolExecutor(1) as threads:
        stream.append(b"behind it")
        assert stream.bounds(0) == Bounds(0, 1), "up to the last stable offset"
        waiting = threads.submit(next, following)
        assert _values(stream) == {0: b"before"}
        assert not waiting.done()
        transaction.end()
        assert waiting.result(WAIT_S).value == b"in it"
    assert next(following).value == b"behind it"
    assert _values(stream) == {0: b"before", 1: b"in it", 2: b"behind it"}


# Compaction


def test_a_compacted_topic_reads_what_is_left_and_cannot_be_trimmed(
    place: Place, hub: headrace.Hub
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


# Limits


def test_a_record_over_the_limit_of_its_topic_is_refused_with_the_limit(
    place: Place, hub: headrace.Hub
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
    place: Place, hub: headrace.Hub
) -> None:
    place.make_topic("small", max_message_bytes="20000")
    stream = hub.stream("small")
    assert len(stream.append_many([(b"x" * 100, "k")] * 5_000)) == 5_000
    assert stream.bounds(0) == Bounds(0, 5_000)


def test_a_limit_raised_by_others_is_noticed(place: Place, hub: headrace.Hub) -> None:
    place.make_topic("small", max_message_bytes="20000")
    stream = hub.stream("small")
    with pytest.raises(headrace.BadRecord, match="at most 19"):
        stream.append(b"x" * 50_000)
    _set(place, "small", "max.message.bytes", "200000")
    until(lambda: _lands(stream, b"x" * 50_000), "it is noticed", WAIT_S)
    assert stream.bounds(0).end == 1


def test_a_limit_lowered_by_others_meanwhile_is_told_by_the_broker(
    place: Place, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"first")
    _set(place, "a", "max.message.bytes", "10000")
    until(lambda: not _lands(stream, os.urandom(50_000)), "it is told", WAIT_S)
    stream.append(b"small")
    values = list(_values(stream).values())
    assert (values[0], values[-1]) == (b"first", b"small")
    with pytest.raises(headrace.HeadraceError):
        stream.append(os.urandom(50_000))
    assert list(_values(stream).values()) == values


def _lands(stream: headrace.Stream, value: bytes) -> bool:
    """The broker takes up a changed setting a moment after it was told."""
    try:
        stream.append(value)
    except headrace.HeadraceError:
        return False
    return True


def test_a_record_larger_than_a_reader_allows_is_named_and_can_be_passed(
    place: Place, hub: headrace.Hub
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


def test_as_much_is_fetched_at_once_as_was_asked_for(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
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


def test_a_full_queue_of_the_client_is_waited_for(place: Place, hub: headrace.Hub) -> None:
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
    assert [int(value) for value in _values(hub.stream("a")).values()] == wanted


def test_a_record_that_the_broker_refuses_is_not_lost_silently_among_others(
    place: Place, hub: headrace.Hub
) -> None:
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
        written = len(_values(stream))
        assert written <= 20
        assert stream.append(b"next").offset == written


# Fields


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read_and_written(place: Place, hub: headrace.Hub, codec: str) -> None:
    topic = place.make_topic("a")
    theirs = Producer({"bootstrap.servers": place.bootstrap, "compression.type": codec})
    for i in range(200):
        theirs.produce(topic, b"%d " % i * 50, b"k", 0)
    assert theirs.flush(WAIT_S) == 0
    with headrace.open(f"{place.url}?compression.type={codec}") as other:
        other.stream("a").append_many([(b"%d " % i * 50, "k") for i in range(200, 400)], shard=0)
    values = list(_values(hub.stream("a")).values())
    assert values == [b"%d " % i * 50 for i in range(400)]


def test_an_unknown_compression_is_refused_by_name(place: Place) -> None:
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
def test_whatever_a_record_holds_its_headers_are_told_apart(row: Row) -> None:
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


def test_records_of_others_are_read_with_kafkas_own_fields(place: Place, hub: headrace.Hub) -> None:
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


def test_keys_go_where_the_java_client_puts_them(place: Place, hub: headrace.Hub) -> None:
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


# Names and topics


def test_names_and_topics_stand_for_each_other(place: Place, hub: headrace.Hub) -> None:
    made = ["shop/orders", "shop-orders", "a.b", "c_d", "A"]
    for name in made:
        hub.create_stream(name, shards=1)
    topics = AdminClient({"bootstrap.servers": place.bootstrap}).list_topics(timeout=10).topics
    mine = {topic.removeprefix(f"{place.prefix}.") for topic in topics if place.prefix in topic}
    assert mine == {"shop--orders", "shop-orders", "a.b", "c_d", "A"}
    for foreign in ("x--y--z", "--a"):
        place.make_topic(foreign)  # no stream has such a topic
    assert [info.name for info in hub.streams()] == sorted(made)
    with headrace.open(f"kafka://{place.bootstrap}") as whole:
        names = {info.name for info in whole.streams()}
        assert f"{place.prefix}.shop/orders" in names
        assert not any(name.startswith("__") for name in names)
        for hidden in ("__consumer_offsets", "__mine"):
            with pytest.raises(headrace.BadName, match="begin with '__'"):
                whole.create_stream(hidden)
            with pytest.raises(headrace.UnknownStream):
                whole.stream(hidden)


def test_a_dot_and_an_underscore_in_one_place_collide_and_that_is_said(hub: headrace.Hub) -> None:
    hub.create_stream("a.b")
    with pytest.raises(headrace.BadName, match=r"'a_b': Kafka refuses it: .*collide"):
        hub.create_stream("a_b")


def test_settings_of_a_stream_are_those_of_its_topic(place: Place, hub: headrace.Hub) -> None:
    hub.create_stream("a", retention="7d", retention_bytes="1GiB", codec="json")
    hub.create_stream("for-ever")
    assert _get(place, "a", "retention.ms") == str(7 * 86_400_000)
    assert _get(place, "a", "retention.bytes") == str(2**30)
    assert _get(place, "for-ever", "retention.ms") == "-1"
    _set(place, "a", "retention.ms", "1000")
    assert hub.stream("a").info.retention_s == 1.0


class _DiedError(Exception):
    """Instead of a kill: nothing is tidied up behind it."""


def _die(*_: object, **__: object) -> Any:
    raise _DiedError


def test_a_creator_that_died_half_way_leaves_a_stream_as_it_should_be(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(topics.Topics, "_await_leaders", _die)
        with pytest.raises(_DiedError):
            hub.create_stream("a", shards=3, codec="json", routing="java-hash")
    with headrace.open(place.url) as other:
        until(lambda: other.streams(), "it is there", WAIT_S)
        info = other.stream("a").info
    assert (info.codec, info.routing, len(info.shards)) == ("json", "java-hash", 3)


def test_what_a_creator_meant_that_died_before_it_created_is_not_said_of_a_topic_of_others(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("other", shards=1)
    with monkeypatch.context() as dying:
        dying.setattr(AdminClient, "create_topics", _die)
        with pytest.raises(_DiedError):
            hub.create_stream("a", codec="json", routing="java-hash")
    place.make_topic("a")
    info = hub.stream("a").info
    assert (info.codec, info.routing) == ("bytes", "murmur2")


def test_of_two_who_create_one_name_the_winner_says_what_it_is_from_the_first_moment(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to those who look before the winner has ended, and after the loser has."""
    real, calls = AdminClient.create_topics, iter(range(9))
    created: list[Any] = []
    seen: list[str] = []

    def look() -> None:
        with headrace.open(place.url) as third:
            until(lambda: "a" in {info.name for info in third.streams()}, "it is there", WAIT_S)
            seen.append(third.stream("a").info.codec)

    def one_after_the_other(self: AdminClient, new: list[NewTopic], **how: object) -> object:
        if next(calls) == 0:  # the winner's: first the loser comes as far
            created.append(lambda: real(self, new, **how))
            with headrace.open(place.url) as loser, pytest.raises(headrace.StreamExists):
                loser.create_stream("a", shards=1, codec="text")
            look()
            return created.pop()
        created.append(created.pop()())
        created[0][new[0].topic].result(WAIT_S)
        look()
        return real(self, new, **how)

    hub.create_stream("other", shards=1)
    monkeypatch.setattr(AdminClient, "create_topics", one_after_the_other)
    assert hub.create_stream("a", shards=1, codec="json").info.codec == "json"
    look()
    assert seen == ["json"] * 3


def test_a_stream_that_is_created_while_one_of_that_name_is_deleted_keeps_what_it_is(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("a", shards=1)
    real = AdminClient.delete_topics

    def overtaken(self: AdminClient, names: list[str], **how: object) -> object:
        deleted = real(self, names, **how)
        deleted[names[0]].result(WAIT_S)
        until(lambda: names[0] not in self.list_topics(timeout=10).topics, "it is gone", WAIT_S)
        with headrace.open(place.url) as other:
            other.create_stream("a", shards=1, codec="json")
        return deleted

    monkeypatch.setattr(AdminClient, "delete_topics", overtaken)
    hub.delete_stream("a")
    with headrace.open(place.url) as third:
        assert third.stream("a").info.codec == "json"


def test_a_deleted_stream_leaves_no_description(place: Place, hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1, codec="json")
    hub.delete_stream("a")
    with headrace.open(place.url) as other:
        backend = other.log
        assert isinstance(backend, KafkaBackend)
        backend._descriptions.refresh()
        found = backend._descriptions.of(place.topic("a"), stream.info.id, None)
    assert found == Description()


def test_a_creation_that_nobody_answered_may_have_happened_and_is_then_as_it_should_be(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AdminClient.create_topics

    def unheard(self: AdminClient, new: list[NewTopic], **settings: object) -> object:
        for created in real(self, new, **settings).values():
            created.result(WAIT_S)
        lost: Future[None] = Future()
        lost.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {topic.topic: lost for topic in new}

    hub.create_stream("other", shards=1)
    with monkeypatch.context() as lossy:
        lossy.setattr(AdminClient, "create_topics", unheard)
        with pytest.raises(headrace.UnknownOutcome, match="look whether it is there"):
            hub.create_stream("a", shards=1, codec="json")
    until(lambda: "a" in {info.name for info in hub.streams()}, "it is there", WAIT_S)
    assert hub.stream("a").info.codec == "json"


def test_descriptions_that_could_not_be_read_are_read_again(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("a", shards=1, codec="json")
    with headrace.open(place.url) as other:
        with monkeypatch.context() as broken:
            broken.setattr(Descriptions, "_take", _unreachable)
            with pytest.raises(headrace.Unreachable):
                other.stream("a")
        assert other.stream("a").info.codec == "json"


def _unreachable(*_: object) -> list[int]:
    raise headrace.Unreachable("no broker answers")


def test_a_topic_made_anew_by_others_is_not_taken_for_the_old_one(
    place: Place, hub: headrace.Hub
) -> None:
    old = hub.create_stream("a", shards=1, codec="json")
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    topic = place.topic("a")
    admin.delete_topics([topic])[topic].result(WAIT_S)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, "it is gone", WAIT_S)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WAIT_S)
    until(lambda: [len(info.shards) for info in hub.log.streams()] == [2], "it is there", WAIT_S)
    new = hub.stream("a").info
    assert (new.codec, len(new.shards), new.id != old.info.id) == ("bytes", 2, True)
    with pytest.raises(headrace.UnknownStream):
        old.append({"for": "the old one"})
    with pytest.raises(headrace.UnknownStream):
        old.read(0)


def test_a_read_that_took_long_hands_out_nothing_of_a_stream_made_anew(
    place: Place, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = hub.create_stream("a", shards=1)
    old.append_many([(b"old", None)] * 3)
    real = Cursor.read

    def slow(cursor: Cursor, *how: Any) -> ReadResult:
        _made_anew(place, "a")
        time.sleep(topics.IDENTITY_S)
        return real(cursor, *how)

    monkeypatch.setattr(Cursor, "read", slow)
    with pytest.raises(headrace.UnknownStream):
        hub.log.read(old.info, 0, 1, max_records=10, max_bytes=1000)


@pytest.mark.parametrize(
    "call",
    [
        lambda backend, old: backend.trim(old, 0, 2),
        lambda backend, old: backend.copying(old, 0, "elsewhere"),
        # Told that its records are gone, a reader would go on with those of the new one.
        lambda backend, old: backend.read(old, 0, 5, max_records=10, max_bytes=1000),
    ],
    ids=["trim", "copying", "read"],
)
def test_a_stream_made_anew_is_not_harmed_by_who_takes_it_for_the_old_one(
    place: Place,
    hub: headrace.Hub,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Log, headrace.StreamInfo], object],
) -> None:
    old = hub.create_stream("a", shards=1)
    old.append_many([(b"old", None)] * 9)
    old.bounds(0)
    monkeypatch.setattr(topics, "IDENTITY_S", 600.0)
    _made_anew(place, "a")
    with pytest.raises(headrace.UnknownStream, match="anew"):
        call(hub.log, old.info)
    assert list(_values(hub.stream("a")).values()) == [b"new"] * 3


def _made_anew(place: Place, name: str) -> None:
    with headrace.open(place.url) as other:
        other.delete_stream(name)
        other.create_stream(name, shards=1).append_many([(b"new", None)] * 3)


class AllOrNothing:
    """A client that does not say which of several partitions it does not know, as it does once it
    has heard that a topic is gone."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def offsets_for_times(self, wanted: Any, timeout: float) -> Any:
        found = self._real.offsets_for_times(wanted, timeout=timeout)
        if any(partition.error is not None for partition in found):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return found


@pytest.mark.parametrize("as_a_whole", [True, False])
def test_what_is_not_there_does_not_hide_what_is(
    place: Place, hub: headrace.Hub, as_a_whole: bool
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"x")
    there, gone = (place.topic("a"), 0), [(place.topic("a"), 7), (place.topic("none"), 0)]
    offsets = hub.log._offsets  # type: ignore[attr-defined]
    if as_a_whole:
        offsets._asker.client = AllOrNothing(offsets._asker.client)
    for asked in ([there, *gone], [*gone, there, there], [gone[0], there], [gone[1], there]):
        wanted = [1 if partition == there else GONE for partition in asked]
        assert offsets.ends(asked, 0.0) == wanted
    assert offsets.ends(gone, 0.0) == [GONE] * 2


# Several at once


def test_ids_are_exact_though_others_write_between(place: Place, hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    start = threading.Barrier(3)

    def write(writer: int) -> dict[int, bytes]:
        # Small requests, so that those of several clients come one between the other.
        with headrace.open(place.url, settings={"batch.num.messages": 20}) as own:
            mine = own.stream("a")
            mine.append(b"warm")
            start.wait(WAIT_S)
            values = [b"%d/%d" % (writer, i) for i in range(3_000)]
            ids = mine.append_many([(value, "k") for value in values])
            with mine.appender() as out:
                pending = [out.append(b"%d/bg/%d" % (writer, i)) for i in range(500)]
            slices = mine.append_arrow(pa.record_batch({"data": values}), shard=0)
            told = {i.offset: value for i, value in zip(ids, values, strict=True)}
            told |= {p.result().offset: b"%d/bg/%d" % (writer, i) for i, p in enumerate(pending)}
            within = dict(_slices(mine, slices))
            own_within = [v for v in within.values() if v.startswith(b"%d/" % writer)]
            assert own_within[: len(values)] == values
            return told

    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(write, range(3), timeout=3 * WAIT_S))
    found = _values(stream)
    for own in told:
        assert len(own) == 3_500
        assert {offset: found[offset] for offset in own} == own
    firsts = [sorted(o for o, v in own.items() if b"bg" not in v) for own in told]
    assert any(own[-1] - own[0] >= 3_000 for own in firsts), "they did come between each other"


def _slices(stream: headrace.Stream, slices: list[headrace.Slice]) -> Iterator[tuple[int, bytes]]:
    for done in slices:
        for record in stream.read(done.shard, done.start, done.end):
            yield record.offset, record.value


def test_more_readers_than_clients_are_kept_read_each_their_own(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(60)])
    readers = [stream.read(0, i, max_records=1) for i in range(IDLE_MAX + 4)]
    for step in range(3):
        for i, reader in enumerate(readers):
            assert next(reader).value == b"%d" % (i + step)


def _interrupted(*_: object) -> list[int]:
    raise KeyboardInterrupt


def test_what_a_failed_read_had_taken_comes_again(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(30)])
    limits = {"max_records": 100, "max_bytes": 2**20}

    assert len(hub.log.read(stream.info, 0, 0, max_records=5, max_bytes=2**20).batches[0]) == 5
    with monkeypatch.context() as broken:
        broken.setattr("headrace.backends.kafka.topics.offsets.Offsets.ask_ends", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.log.read(stream.info, 0, 5, **limits)
    (batch,) = hub.log.read(stream.info, 0, 5, **limits).batches
    assert list(batch.offsets) == list(range(5, 30))


def test_a_read_that_was_under_way_while_records_were_trimmed_hands_out_none_of_them(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(100)])
    real, limits = Cursor.read, {"max_records": 10, "max_bytes": 2**20}

    def overtaken(self: Cursor, *limits: object) -> object:
        found = real(self, *limits)  # type: ignore[arg-type]
        monkeypatch.undo()
        stream.trim(0, 50)
        return found

    monkeypatch.setattr(Cursor, "read", overtaken)
    assert hub.log.read(stream.info, 0, 0, **limits).next == 10
    with pytest.raises(headrace.OffsetOutOfRange):
        hub.log.read(stream.info, 0, 10, **limits)


def test_clients_end_with_the_hub(place: Place) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def used() -> None:
        with headrace.open(place.url) as hub:
            stream = hub.create_stream("a", shards=1, exist_ok=True)
            stream.append(b"x")
            assert list(stream.read(0))

    used()
    before = threads()
    for _ in range(4):
        used()
    until(lambda: threads() <= before + 1, "no thread is left behind", WAIT_S)


def test_what_is_missing_is_published_with_its_reason(hub: headrace.Hub) -> None:
    missing = hub.capabilities.missing
    offered = [name for name in CAPABILITIES if name not in missing]
    assert offered == ["copying", "durable", "processes", "remote", "trim"]
    stream = hub.create_stream("a", shards=1)
    with pytest.raises(headrace.Unsupported, match="only as long as its producer lives"):
        stream.append(b"x", producer="p", producer_seq=1)
    with pytest.raises(headrace.Unsupported, match="partitions of a topic cannot be split"):
        stream.split(0)
    with pytest.raises(headrace.Unsupported, match="partitions of a topic cannot be merged"):
        stream.merge(0, 0)
    with pytest.raises(headrace.Unsupported, match="groups of Headrace do not live on Kafka yet"):
        hub.consumer("a", group="billing")
    assert stream.bounds(0) == Bounds(0, 0)


def test_a_hub_opened_in_the_parent_is_refused_in_the_child(hub: headrace.Hub) -> None:
    hub.create_stream("a", shards=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hub.stream("a")
            told = b"nothing"
        except headrace.ForkedHandle:
            told = b"refused"
        except BaseException as other:
            told = repr(other).encode()
        os.write(writing, told)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) == b"refused"
    os.close(reading)
    os.close(writing)


CHILD = """
import os, sys
import headrace
with headrace.open(sys.argv[1]) as hub:
    stream = hub.create_stream("a", shards=1, exist_ok=True)
    stream.append(b"x")
    list(stream.read(0))
    child = os.fork()
    if child == 0:
        if sys.argv[2] == "opens its own":
            with headrace.open(sys.argv[1]) as own:
                assert own.stream("a").append(b"y").offset == 1
        elif sys.argv[2] == "drops it":
            del hub, stream
        sys.exit(0)  # by the end of the block, which closes the hub; then of the interpreter
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    stream.append(b"z")
"""


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("does", ["nothing", "drops it", "opens its own"])
def test_a_child_of_a_process_with_a_hub_ends_as_it_should(
    place: Place, does: str, native: str
) -> None:
    url = f"{place.url}?native={native}"
    assert subprocess.run([sys.executable, "-c", CHILD, url, does], timeout=60).returncode == 0


def test_clients_end_with_a_hub_that_nobody_closed(place: Place) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    with headrace.open(place.url) as hub:
        hub.create_stream("a", shards=1).append(b"x")
    before = threads()
    for _ in range(4):
        hub = headrace.open(place.url)
        stream = hub.stream("a")
        stream.append(b"x")
        assert next(stream.read(0)).value == b"x"
        del hub, stream
    until(lambda: threads() <= before + 1, "no thread is left behind", WAIT_S)


def _get(place: Place, stream: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, place.topic(stream))
    (future,) = admin.describe_configs([resource]).values()
    return str(future.result(WAIT_S)[name].value)


def _set(place: Place, stream: str, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, place.topic(stream), incremental_configs=[entry])
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result(WAIT_S)
    until(lambda: _get(place, stream, name) == value, f"{name} is {value}", WAIT_S)
