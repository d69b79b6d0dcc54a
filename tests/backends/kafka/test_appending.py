"""Appends of several threads and streams that share a producer: ids, refusals, what is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions

import headrace
from headrace.backends.kafka.appending.producers import IdempotentProducer
from headrace.backends.kafka.client.clients import Clients
from headrace.core.records.conform import conformed
from headrace.streams.sharding import Sharding
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace


@pytest.fixture
def hub(place: KafkaPlace) -> Iterator[headrace.Hub]:
    with headrace.open(place.url) as hub:
        yield hub


@pytest.mark.parametrize("native", ["true", "false"])
def test_ids_are_exact_while_the_queue_of_the_client_is_full(
    place: KafkaPlace, native: str
) -> None:
    few = {"queue.buffering.max.messages": 500}
    with headrace.open(f"{place.url}?native={native}", settings=few) as narrow:
        stream = narrow.create_stream("a", shards=1)

        def many(writer: int) -> dict[int, bytes]:
            values = [b"%d/%d" % (writer, i) for i in range(4_000)]
            ids = stream.append_many([(value, "k") for value in values])
            with stream.appender() as out:
                pending = [(out.append(b"%d/bg" % writer), i) for i in range(1_000)]
            told = {id.offset: value for id, value in zip(ids, values, strict=True)}
            return told | {one.result().offset: b"%d/bg" % writer for one, _ in pending}

        def columns(writer: int) -> dict[int, bytes]:
            values = [b"%d/%d" % (writer, i) for i in range(4_000)]
            slices = stream.append_arrow(pa.record_batch({"data": values}), shard=0)
            (first, last) = slices[0].start, slices[-1].end - 1
            return {first: values[0], last: values[-1]}

        with ThreadPoolExecutor(5) as threads:
            doing = [threads.submit(many, n) for n in range(3)]
            doing += [threads.submit(columns, n) for n in (3, 4)]
            told = [each.result(3 * WAIT_S) for each in doing]
        found = {record.offset: record.value for record in stream.read(0)}
    assert [len(own) for own in told] == [5_000] * 3 + [2] * 2
    for own in told:
        assert {offset: found[offset] for offset in own} == own
    assert len(found) == 3 * 5_000 + 2 * 4_000


class Refusing:
    """The client, which refuses one value by itself."""

    def __init__(self, real: Any, value: bytes, code: int) -> None:
        self._real = real
        self._value = value
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __len__(self) -> int:
        return len(self._real)

    def produce(self, topic: str, value: bytes, *more: Any) -> None:
        if value == self._value:
            raise KafkaException(KafkaError(self._code))
        self._real.produce(topic, value, *more)


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes, int], None]:
    def refuse(value: bytes, code: int) -> None:
        real = IdempotentProducer.__init__

        def made(self: IdempotentProducer, producer: Any, columns: Any) -> None:
            real(self, Refusing(producer, value, code), columns)

        monkeypatch.setattr(IdempotentProducer, "__init__", made)

    return refuse


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, headrace.BadRecord),
        (KafkaError._UNKNOWN_PARTITION, headrace.UnknownStream),
    ],
    ids=["too large", "unknown"],
)
def test_a_record_that_the_client_refuses_does_not_affect_other_appends(
    hub: headrace.Hub, refuses: Callable[[bytes, int], None], code: int, error: type[Exception]
) -> None:
    refuses(b"bad", code)
    bad, other = hub.create_stream("bad", shards=1), hub.create_stream("other", shards=1)
    ids: list[headrace.RecordId] = []
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            ids.extend(other.append_many([(b"x", None)] * 200))

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work) for _ in range(2)]
        until(lambda: len(ids) > 400, "they append", WAIT_S)
        for _ in range(5):
            with pytest.raises(error):
                bad.append(b"bad")
            # Some of it was given to the client: that may be there.
            with pytest.raises(headrace.UnknownOutcome):
                bad.append_many([(b"good", None), (b"bad", None)])
        end.set()
        for each in working:
            each.result(WAIT_S)
    found = [record.offset for record in other.read(0)]
    assert sorted(id.offset for id in ids) == found


def test_a_stream_with_more_shards_than_before_takes_records_at_once(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"x")
    hub.delete_stream("a")
    anew = hub.create_stream("a", shards=4)
    assert anew.append(b"x", shard=3).offset == 0
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    topic = place.topic("a")
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(WAIT_S)
    until(lambda: hub.stream("a").shards == 6, "they are there", WAIT_S)
    more = hub.stream("a")
    assert more.append_many([(b"y", None)] * 3, shard=5)[-1].offset == 2
    slices = more.append_arrow(pa.record_batch({"data": [b"z"] * 100}), shard=4)
    assert [(found.start, found.end) for found in slices] == [(0, 100)]


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("each", [True, False])
def test_an_append_refused_in_the_middle_raises_unknown_outcome(
    place: KafkaPlace, shards: int, each: bool
) -> None:
    place.make_topic("a", shards, message_timestamp_after_max_ms="1000")
    now = datetime.now(UTC)
    with headrace.open(place.url, settings={"batch.num.messages": 10}) as hub:
        stream = hub.stream("a")
        count = 400
        data = pa.array([b"%d" % i for i in range(count)], pa.binary())
        times = [now] * (count - 3) + [now + timedelta(days=3)] + [now] * 2
        batch = pa.record_batch(
            [pa.array([b"k%d" % i for i in range(count)], pa.binary()), data,
             pa.array(times, pa.timestamp("us", "UTC"))],
            names=["key", "data", "timestamp"],
        )  # fmt: skip
        (part,) = Sharding(stream.info).parts(conformed(batch, 0), each=each)
        with pytest.raises(headrace.UnknownOutcome, match="look what was written"):
            hub.log.append(part.appends)
        written = sum(1 for shard in range(shards) for _ in stream.read(shard))
        assert 0 < written < count


def _many(stream: headrace.Stream, pairs: list[tuple[bytes, str]]) -> None:
    stream.append_many(pairs)


def _arrow(stream: headrace.Stream, pairs: list[tuple[bytes, str]]) -> None:
    values, keys = zip(*pairs, strict=True)
    stream.append_arrow(pa.record_batch({"data": values, "key": [key.encode() for key in keys]}))


@pytest.mark.parametrize("append", [_many, _arrow])
def test_a_large_record_among_small_ones_is_refused_before_anything_is_sent(
    place: KafkaPlace,
    hub: headrace.Hub,
    append: Callable[[headrace.Stream, list[tuple[bytes, str]]], None],
) -> None:
    place.make_topic("a", 4, max_message_bytes="100000")
    stream = hub.stream("a")
    pairs = [(b"x", f"k{i}") for i in range(399)] + [(b"y" * 150_000, "large")]
    with pytest.raises(headrace.BadRecord, match=r"a record of .* for a: its topic takes at most"):
        append(stream, pairs)
    assert [stream.bounds(shard).end for shard in range(4)] == [0] * 4


@pytest.mark.parametrize(
    ("asked", "topic_takes", "size"), [(50_000, 200_000, 50_000), (500_000, 200_000, 200_000)]
)
def test_batches_are_as_large_as_the_setting_and_the_topic_allow(
    place: KafkaPlace, monkeypatch: pytest.MonkeyPatch, asked: int, topic_takes: int, size: int
) -> None:
    place.make_topic("a", max_message_bytes=str(topic_takes))
    real, made = Clients.native_producer, list[int]()

    def producer(self: Clients, native: Any, **more: Any) -> Any:
        made.append(more["batch.size"])
        return real(self, native, **more)

    monkeypatch.setattr(Clients, "native_producer", producer)
    with headrace.open(place.url, settings={"batch.size": asked}) as hub:
        hub.stream("a").append(b"x")
    assert made == [size]
