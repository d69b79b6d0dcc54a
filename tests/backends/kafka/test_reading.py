"""Records that cannot be had: damaged, larger than a client takes, or written by others oddly."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer

import headrace
from headrace.backends.kafka.messages import EXTRA
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.reading.fetched import FetchedMessages, Taken, Trouble
from headrace.backends.kafka.reading.listed import ListedRecords
from headrace.ops.doctor import find_damage
from headrace.testing.contracts.backend_under_test import WAIT_S
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.hubs import KafkaPlace


@pytest.fixture(params=["true", "false"], ids=["native", "messages"])
def hub(place: KafkaPlace, request: pytest.FixtureRequest) -> Iterator[headrace.Hub]:
    with headrace.open(f"{place.url}?native={request.param}") as hub:
        yield hub


@pytest.fixture
def damaged(place: KafkaPlace, hub: headrace.Hub, broker: Broker) -> headrace.Stream:
    """Three batches of ten records; a bit of the second is another one."""
    stream = hub.create_stream("a", shards=1)
    for batch in range(3):
        stream.append_many([(b"%d-%d" % (batch, i), "k") for i in range(10)])
    (segment,) = (broker.directory / "data" / f"{place.topic('a')}-0").glob("*0.log")
    with segment.open("r+b") as stored:
        at = stored.read().index(b"1-4")
        stored.seek(at)
        stored.write(b"0")
    return stream


def test_a_damaged_batch_is_named_and_what_lies_behind_it_is_read(damaged: headrace.Stream) -> None:
    reading = damaged.read(0)
    assert [next(reading).offset for _ in range(10)] == list(range(10))
    with pytest.raises(headrace.BadBatch, match=r"a:0, offsets 10 to 19: .*CRC") as why:
        next(reading)
    assert (why.value.start, why.value.end) == (10, 20)
    assert next(damaged.read(0, why.value.end)).value == b"2-0"
    for within in (14, 19):
        with pytest.raises(headrace.BadBatch) as why:
            list(damaged.read(0, within))
        assert (why.value.start, why.value.end) == (10, 20)


def test_records_behind_damage_are_not_returned_before_it_is_raised(
    place: KafkaPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may find its way behind a damaged batch by chance."""
    offsets = [*range(10), *range(20, 30)]
    values: list[bytes | None] = [b"%d" % offset for offset in offsets]
    records = ListedRecords(offsets, [None] * 20, values, [1] * 20, [None] * 20)
    news = Trouble(10, KafkaError(KafkaError._BAD_MSG, "CRC"))
    monkeypatch.setattr(FetchedMessages, "take", lambda *_: Taken(records, [news]))
    with headrace.open(f"{place.url}?native=false") as hub:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"x", "k")] * 30)
        reading = stream.read(0)
        assert [next(reading).value for _ in range(10)] == values[:10]
        with pytest.raises(headrace.BadBatch, match="offsets 10 to 29"):
            next(reading)


def test_doctor_counts_whole_records_before_and_behind_damage(
    hub: headrace.Hub, damaged: headrace.Stream
) -> None:
    first, second = find_damage(hub, "a")
    assert (first["ok"], "offsets 10 to 19" in first["found"]) == (False, True)
    assert second["found"] == "20 records are whole"


NARROW = {
    "message.max.bytes": 100_000,
    "fetch.max.bytes": 100_000,
    "receive.message.max.bytes": 101_000,
    "fetch.message.max.bytes": 50_000,
}


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("follow", [True, False])
def test_an_answer_larger_than_the_client_takes_raises_with_the_limit(
    place: KafkaPlace, native: str, follow: bool
) -> None:
    with headrace.open(place.url) as wide:
        stream = wide.create_stream("a", shards=1)
        for value in (b"first", os.urandom(3_000_000), b"last"):
            stream.append(value)
    with headrace.open(f"{place.url}?native={native}", settings=NARROW) as narrow:
        found: list[bytes] = []
        told: list[Exception] = []

        def read() -> None:
            try:
                found.extend(r.value for r in narrow.stream("a").read(0, follow=follow))
            except headrace.HeadraceError as why:
                told.append(why)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        reading.join(WAIT_S)
        assert found == [b"first"]
        (why,) = told
        assert isinstance(why, headrace.RecordTooLarge)
        assert "a:0+1 holds 3000" in str(why)
        assert "raise receive.message.max.bytes" in str(why)


@pytest.mark.parametrize(
    "packed",
    [
        struct.pack(">BBIH", 1, 0, 2**32 - 1, 0),
        struct.pack(">BBIH", 1, 0, 0, 0x200),
        struct.pack(">BBIH", 1, 4, 0, 0),
        struct.pack(">BBIH", 9, 0, 0, 0),
        b"x",
    ],
)
def test_a_header_with_our_name_from_another_program_is_kept(
    place: KafkaPlace, hub: headrace.Hub, packed: bytes
) -> None:
    stream = hub.create_stream("a", shards=1)
    producer = Producer({"bootstrap.servers": place.bootstrap})
    producer.produce(place.topic("a"), b"v", headers=[(EXTRA, packed)])
    assert producer.flush(WAIT_S) == 0
    (record,) = stream.read(0)
    assert (record.sequence, record.flags, record.headers) == (0, 0, ((EXTRA, packed),))
    assert stream.read_arrow(0).read_all().num_rows == 1


def test_records_at_hand_are_returned_before_unreachable_is_raised(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(20)])
    limits = {"max_records": 100, "max_bytes": 2**20}

    def nobody(cursor: Cursor) -> bool:
        raise headrace.Unreachable("no broker answers")

    # The first few come at once; then it is asked where the end is.
    assert hub.log.read(stream.info, 0, 0, max_records=5, max_bytes=2**20).next == 5
    monkeypatch.setattr(Cursor, "_is_at_end", nobody)
    assert hub.log.read(stream.info, 0, 5, **limits).next == 20
    with pytest.raises(headrace.Unreachable):
        hub.log.read(stream.info, 0, 20, **limits)
