"""How far groups are behind that live in Kafka itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer

import headrace
from headrace.backends.kafka.groups import kept_groups
from headrace.testing.children import until
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.commands import Kafka
from tests.backends.kafka.hubs import KafkaPlace

STREAM = "shop/orders"


@pytest.fixture(autouse=True)
def time_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine too it is found out whether a mark is all that is left."""
    monkeypatch.setattr(kept_groups, "LOOK_S", 30.0)


@pytest.fixture
def orders(kafka: Kafka) -> Iterator[headrace.Stream]:
    """Two shards with ten records each."""
    with headrace.open(kafka.url) as hub:
        stream = hub.create_stream(STREAM, shards=2)
        for shard in range(2):
            stream.append_many(
                [(b"%d" % number, f"k{number}") for number in range(10)], shard=shard
            )
        yield stream


def test_groups_of_the_cluster_are_listed_with_their_lag(
    kafka: Kafka, orders: headrace.Stream
) -> None:
    billing, other = kafka.group("billing"), kafka.group("other")
    kafka.commit(billing, STREAM, {0: 4, 1: 10})
    kafka.commit(other, STREAM, {0: 10, 1: 10})
    first, second = kafka.json("lag")
    assert first.pop("lag_s") > 0
    assert first == {
        "stream": STREAM, "group": billing, "shard": "all", "lag": 6, "pos": 14, "end": 20,
    }  # fmt: skip
    assert (second["group"], second["lag"], second["lag_s"]) == (other, 0, 0)
    assert kafka.lags(billing) == [6, 0]
    assert [row["group"] for row in kafka.json("lag", "--quiet")] == [billing]
    assert [row["group"] for row in kafka.json("lag", "--stream", STREAM)] == [billing, other]


def test_latency_is_the_age_of_the_record_read_last(kafka: Kafka, orders: headrace.Stream) -> None:
    billing = kafka.group("billing")
    kafka.commit(billing, STREAM, {0: 4, 1: 10})
    first, second = kafka.json("latency", billing, "--verbose")
    assert (first["key"], second["latency_s"]) == ("k3", 0)
    assert first["latency_s"] > 0


def test_a_shard_without_a_commit_is_unread(kafka: Kafka, orders: headrace.Stream) -> None:
    billing = kafka.group("billing")
    kafka.commit(billing, STREAM, {0: 10})
    assert kafka.lags(billing) == [0, 10]


def test_lag_counts_kept_records_behind_a_trimmed_checkpoint(
    kafka: Kafka, orders: headrace.Stream
) -> None:
    billing = kafka.group("billing")
    kafka.commit(billing, STREAM, {0: 2, 1: 10})
    orders.trim(0, 7)
    (row, _) = kafka.json("lag", billing, "--verbose")
    assert (row["lag"], row["pos"], row["end"]) == (3, 7, 10)


def test_idle_lag_is_0_behind_transaction_markers(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    kafka.write("gaps", [b"a", b"b", b"c"])
    kafka.write("gaps", [b"x", b"y"], commit=False)
    kafka.write("gaps", [b"d", b"e", b"f", b"g"])
    position, last_plus_1, before = map(kafka.group, ("position", "last-plus-1", "before"))
    kafka.commit(position, "gaps", {0: 12})
    kafka.commit(last_plus_1, "gaps", {0: 11})
    kafka.commit(before, "gaps", {0: 3})
    rows = {row["group"]: row for row in kafka.json("lag")}
    assert {rows[group]["lag"] for group in (position, last_plus_1)} == {0}
    assert {rows[group]["lag_s"] for group in (position, last_plus_1)} == {0}
    # Before the last four records lie a mark, two aborted records and a mark: offsets, not records.
    assert rows[before]["lag"] == 9
    assert rows[before]["lag_s"] > 0


def test_a_marker_alone_is_no_lag_where_the_records_were_trimmed(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    kafka.write("gaps", [b"a", b"b"])
    group = kafka.group("reader")
    kafka.commit(group, "gaps", {0: 1})
    with headrace.open(kafka.url) as hub:
        hub.stream("gaps").trim(0, 2)
    (row,) = kafka.json("lag", group)
    assert (row["lag"], row["pos"], row["end"]) == (0, 3, 3)


def test_any_number_of_markers_behind_the_last_record_is_no_lag(kafka: Kafka) -> None:
    group = kafka.group("billing")
    with headrace.open(kafka.url) as hub:
        stream = hub.create_stream("marked", shards=1)
        stream.append(b"read")
        for _ in range(8):
            kafka.write("marked", [b"x"], commit=False)
        until(lambda: stream.bounds(0).end == 17, "the marks are written")
    kafka.commit(group, "marked", {0: 1})
    assert kafka.lags(group) == [0]


def test_aborted_records_alone_are_no_lag(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    kafka.write("gaps", [b"a"])
    kafka.write("gaps", [b"x", b"y"], commit=False)
    group = kafka.group("reader")
    kafka.commit(group, "gaps", {0: 1})
    assert kafka.lags(group) == [0]


def test_latency_finds_the_record_before_a_gap(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    kafka.write("gaps", [b"a"])
    kafka.write("gaps", [b"b"])
    group = kafka.group("reader")
    kafka.commit(group, "gaps", {0: 2})
    (row,) = kafka.json("latency", group)
    assert row["lag"] == 2
    assert row["latency_s"] > 0


def test_lag_ends_before_an_open_transaction(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    kafka.write("gaps", [b"a"])
    group = kafka.group("reader")
    kafka.commit(group, "gaps", {0: 2})
    with kafka.transaction("gaps", [b"x", b"y"]) as transaction:
        assert kafka.lags(group) == [0]
        transaction.end()
    assert kafka.lags(group) == [3]


def test_a_group_with_members_is_listed_too(kafka: Kafka, orders: headrace.Stream) -> None:
    group = kafka.group("living")
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    with closing(consumer):
        consumer.subscribe([kafka.topic(STREAM)])
        assert len(consumer.consume(20, 30)) == 20
        consumer.commit(asynchronous=False)
        assert kafka.lags(group) == [0, 0]


def test_groups_of_other_hubs_and_of_copies_are_not_listed(
    kafka: Kafka, orders: headrace.Stream, broker: Broker
) -> None:
    kafka.commit(kafka.group("billing"), STREAM, {0: 1})
    kafka.commit(f"headrace-copy.{kafka.prefix}", STREAM, {0: 1})
    elsewhere = KafkaPlace(broker)
    elsewhere.make_topic("x")
    elsewhere.commit(kafka.group("elsewhere"), "x", {0: 0})
    try:
        assert {row["group"] for row in kafka.json("lag")} == {kafka.group("billing")}
        _, err = kafka.shell("--hub", kafka.url, "lag", kafka.group("elsewhere"))
        assert "reads no stream that is there" in err
    finally:
        elsewhere.clear()


def test_a_deleted_stream_takes_its_checkpoints_with_it(
    kafka: Kafka, orders: headrace.Stream
) -> None:
    group = kafka.group("billing")
    kafka.commit(group, STREAM, {0: 1})
    kafka.shell("--hub", kafka.url, "stream", "delete", STREAM, "--yes")
    kafka.shell("--hub", kafka.url, "stream", "create", STREAM, "--shards", "2")
    assert kafka.json("lag") == []


def test_a_missing_group_or_stream_is_one_line(kafka: Kafka, orders: headrace.Stream) -> None:
    billing = kafka.group("billing")
    kafka.commit(billing, STREAM, {0: 1})
    kafka.shell("--hub", kafka.url, "stream", "create", "other")
    fails = kafka.shell.fails
    told = fails("--hub", kafka.url, "lag", "nope")
    assert "no group 'nope'" in told
    assert told.endswith("see headrace lag\n")
    assert "no stream 'x'" in fails("--hub", kafka.url, "lag", "--stream", "x")
    told = fails("--hub", kafka.url, "lag", billing, "--stream", "other")
    assert f"does not read 'other': it reads {STREAM}" in told
    _, err = kafka.shell("--hub", kafka.url, "lag", "--stream", "other")
    assert "no group reads other" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "list"],
        ["group", "show", "x"],
        ["group", "history", "x"],
        ["group", "explain", "x"],
        ["group", "seek", "x", "--to", "earliest", "--yes"],
        ["group", "delete", "x", "--yes"],
    ],
    ids=lambda arguments: arguments[1],
)
def test_what_needs_groups_of_headrace_is_refused_with_the_reason(
    kafka: Kafka, arguments: list[str]
) -> None:
    told = kafka.shell.fails("--hub", kafka.url, *arguments)
    assert "groups of Headrace do not live on Kafka yet" in told


def test_calls_on_groups_are_refused_with_the_reason(kafka: Kafka) -> None:
    with headrace.open(kafka.url) as hub:
        with pytest.raises(headrace.Unsupported, match="groups of Headrace do not live on Kafka"):
            hub.groups.names()
        with pytest.raises(headrace.Unsupported):
            hub.groups.load("x")
        with pytest.raises(headrace.Unsupported):
            hub.groups.seek("x", "earliest")
