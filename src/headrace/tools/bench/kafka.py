"""``headrace bench kafka``: streams on Kafka against Kafka's own client, on one local broker.

Both sides have the same records, the same topic and settings that suit them, and take turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

import headrace
from headrace.backends.kafka.client.clients import COMMON, READING, WRITING
from headrace.hub.hub import Hub
from headrace.streams.stream import Stream
from headrace.tools.bench.measure import Say, alternating, timed, workplace
from headrace.tools.kafka_node import Broker

RECORD_BYTES = 100
PARTITIONS = 4
KEYS = 10_000
RECORDS = 800_000
APPENDED = 200_000
APPEND_RECORDS = 100_000
"""Records in one call of ``append_arrow``."""
ROUNDS = 7
CONSUMED_AT_ONCE = 500
SETTINGS = {"queued.max.messages.kbytes": 65536}
"""For both sides: more is fetched ahead than by default."""
RAW_READING = {
    **SETTINGS,
    "fetch.wait.max.ms": 50,
    "enable.partition.eof": False,  # every message is a record then
}


def run(directory: Path | None, say: Say) -> dict[str, Any]:
    """All figures; ``say`` gets a line about what is being measured."""
    with workplace(directory) as place:
        say("starting a broker")
        with (
            Broker(place / "broker") as broker,
            headrace.open(broker.url, settings=SETTINGS) as hub,
            headrace.open(broker.url, settings={**SETTINGS, "native": False}) as plain,
        ):
            hubs = hub, plain
            figures: dict[str, Any] = {
                "native": hub.describe()["native"],
                "rounds": ROUNDS,
                "record_bytes": RECORD_BYTES,
                "partitions": PARTITIONS,
                "records": RECORDS,
            }
            say("appending Arrow batches")
            figures |= _append(hubs, broker)
            _fill(hub)
            say("reading Arrow batches")
            figures |= _read_arrow(hubs, broker)
            say("reading records")
            figures |= _read_records(hubs, broker)
            return figures


Hubs = tuple[Hub, Hub]
"""One hub that moves columns, if the C part was built, and one that moves records one by one."""


def _append(hubs: Hubs, broker: Broker) -> dict[str, Any]:
    for name in ("bench/ours", "bench/raw"):
        hubs[0].create_stream(name, shards=PARTITIONS, routing="murmur2")
    keys, values = _records(APPENDED)
    batches = [
        pa.record_batch(
            [
                pa.array(keys[i : i + APPEND_RECORDS], pa.binary()),
                pa.array(values[i : i + APPEND_RECORDS], pa.binary()),
            ],
            names=["key", "data"],
        )
        for i in range(0, APPENDED, APPEND_RECORDS)
    ]
    producer = Producer(
        {
            **COMMON,
            **WRITING,
            "bootstrap.servers": broker.bootstrap,
            "partitioner": "murmur2",
        }
    )

    def raw() -> None:
        produce = producer.produce
        for key, value in zip(keys, values, strict=True):
            produce("bench--raw", value, key)
        producer.flush()

    def own(stream: Stream) -> None:
        for batch in batches:
            stream.append_arrow(batch)

    return _figures("append", APPENDED, raw, own, [hub.stream("bench/ours") for hub in hubs])


def _read_arrow(hubs: Hubs, broker: Broker) -> dict[str, Any]:
    consumer = _consumer(broker)

    def raw() -> None:
        _assign(consumer)
        seen = 0
        while seen < RECORDS:
            seen += len(consumer.consume(CONSUMED_AT_ONCE, 0.05))

    def own(stream: Stream) -> None:
        seen = 0
        for shard in range(PARTITIONS):
            for batch in stream.read_arrow(shard):
                seen += batch.num_rows
        assert seen == RECORDS, f"{seen} of {RECORDS} records"

    figures = _figures("read_arrow", RECORDS, raw, own, _streams(hubs))
    consumer.close()
    return figures


def _read_records(hubs: Hubs, broker: Broker) -> dict[str, Any]:
    consumer = _consumer(broker)

    def raw() -> None:
        _assign(consumer)
        seen = 0
        while seen < RECORDS:
            for message in consumer.consume(CONSUMED_AT_ONCE, 0.05):
                seen += len(message.value()) > 0

    def own(stream: Stream) -> None:
        seen = 0
        for shard in range(PARTITIONS):
            for record in stream.read(shard):
                seen += len(record.value) > 0
        assert seen == RECORDS, f"{seen} of {RECORDS} records"

    figures = _figures("records", RECORDS, raw, own, _streams(hubs))
    consumer.close()
    return figures


def _streams(hubs: Hubs) -> list[Stream]:
    return [hub.stream("bench/read") for hub in hubs]


def _fill(hub: Hub) -> None:
    stream = hub.create_stream("bench/read", shards=PARTITIONS)
    for shard in range(PARTITIONS):
        keys, values = _records(RECORDS // PARTITIONS)
        stream.append_arrow(
            pa.record_batch(
                [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "data"]
            ),
            shard=shard,
        )


def _records(count: int) -> tuple[list[bytes], list[bytes]]:
    dice = random.Random(7)
    keys = [b"key-%06d" % dice.randrange(KEYS) for _ in range(count)]
    return keys, [dice.randbytes(RECORD_BYTES) for _ in range(count)]


def _consumer(broker: Broker) -> Consumer:
    consumer = Consumer({**COMMON, **READING, **RAW_READING, "bootstrap.servers": broker.bootstrap})
    consumer.list_topics(timeout=10)
    return consumer


def _assign(consumer: Consumer) -> None:
    consumer.unassign()
    consumer.assign([TopicPartition("bench--read", i, 0) for i in range(PARTITIONS)])


def _figures(
    name: str,
    records: int,
    raw: Callable[[], None],
    own: Callable[[Stream], None],
    streams: Sequence[Stream],
) -> dict[str, Any]:
    stream, plain = streams
    raw()
    own(stream)
    own(plain)
    raw_s, own_s, ratio = alternating(
        lambda: timed(raw), lambda: timed(partial(own, stream)), ROUNDS
    )
    _, _, plain_ratio = alternating(lambda: timed(raw), lambda: timed(partial(own, plain)), ROUNDS)
    return {
        f"{name}_per_s": round(records / own_s),
        f"raw_{name}_per_s": round(records / raw_s),
        f"{name}_ratio": round(ratio, 3),
        f"{name}_ratio_not_native": round(plain_ratio, 3),
    }
