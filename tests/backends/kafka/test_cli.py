"""The command line on a real broker: the same commands, line by line."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any
from urllib.parse import urlencode

import pytest
from confluent_kafka import Producer

import headrace
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.commands import Kafka

STREAM = "shop/orders"
SECRET = "hunter2"


@pytest.fixture
def orders(kafka: Kafka) -> Kafka:
    kafka("stream", "create", STREAM, "--shards", "2", "--codec", "json")
    return kafka


# Streams


def test_a_stream_is_created_listed_shown_and_deleted(kafka: Kafka) -> None:
    out, _ = kafka(
        "stream", "create", STREAM, "--shards", "3", "--retention", "7d",
        "--retention-bytes", "10GiB", "--routing", "murmur2",
    )  # fmt: skip
    assert out == f"{STREAM}: 3 shards, codec bytes, in {kafka.url}\n"
    (listed,) = kafka.json("stream", "list")
    assert (listed["stream"], listed["shards"], listed["records"]) == (STREAM, 3, 0)
    assert (listed["routing"], listed["retention"]) == ("murmur2", "7d or 10.0 GiB per shard")
    shown = kafka.json("stream", "show", STREAM)
    assert [(s["shard"], s["start"], s["end"]) for s in shown["shards"]] == [
        (0, 0, 0), (1, 0, 0), (2, 0, 0),
    ]  # fmt: skip
    assert "say --yes" in kafka.fails("stream", "delete", STREAM)
    told = kafka.fails("stream", "create", STREAM)
    assert "exists already: take it as it is with exist_ok=True (--exist-ok)" in told
    kafka("stream", "delete", STREAM, "--yes")
    assert kafka.json("stream", "list") == []
    assert "no stream" in kafka.fails("stream", "show", STREAM)


def test_topics_of_other_programs_are_streams_too(kafka: Kafka) -> None:
    kafka.make_topic("theirs", 2, retention_ms="60000")
    (listed,) = kafka.json("stream", "list")
    assert (listed["stream"], listed["shards"], listed["retention"]) == ("theirs", 2, "1m")


def test_a_hundred_shards_are_asked_for_at_once(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.backends.kafka.topics.offsets import Offsets

    kafka.make_topic("wide", 100)
    asked = []
    ask = Offsets._ask

    def counting(self: Offsets, partitions: Any, *more: Any) -> list[int]:
        asked.append(len(partitions))
        return ask(self, partitions, *more)

    monkeypatch.setattr(Offsets, "_ask", counting)
    assert len(kafka.json("stream", "show", "wide")["shards"]) == 100
    assert len(asked) < 10
    asked.clear()
    kafka.json("stream", "list")
    assert len(asked) < 10


# Records


def test_json_lines_of_a_file_are_appended_with_their_keys_and_read_back(orders: Kafka) -> None:
    lines = "".join(f'{{"id": {i}, "city": "Ärnes"}}\n' for i in range(50))
    (orders.shell.cwd / "orders.jsonl").write_text(lines)
    _, err = orders("append", STREAM, "orders.jsonl", "--key-field", "id")
    assert err == f"{STREAM}: 50 records appended\n"
    found = orders.tail(STREAM, "--from", "earliest")
    assert {r["key"]: r["value"] for r in found} == {
        str(i): {"id": i, "city": "Ärnes"} for i in range(50)
    }
    (listed,) = orders.json("stream", "list")
    assert listed["records"] == 50


def test_a_bad_line_is_named_and_the_lines_before_it_are_kept(orders: Kafka) -> None:
    out = orders.shell.fails(
        "--hub", orders.url, "append", STREAM, given=b'{"id": 1}\n{"id": 2}\n{broken\n'
    )
    assert "line 3: it is no JSON" in out
    assert len(orders.tail(STREAM, "--from", "earliest")) == 2


def test_tail_shows_the_last_records_or_those_from_an_offset(orders: Kafka) -> None:
    with headrace.open(orders.url) as hub:
        for i in range(12):
            hub.stream(STREAM).append({"id": i}, shard=i % 2, timestamp=1_700_000_000_000 + i)
    assert [r["value"]["id"] for r in orders.tail(STREAM, "-n", "3")] == [9, 10, 11]
    assert [r["offset"] for r in orders.tail(STREAM, "--shard", "1", "--from", "4")] == [4, 5]
    assert len(orders.tail(STREAM)) == 10
    assert orders.tail(STREAM, "--from", "latest") == []
    told = orders.fails("tail", STREAM, "--shard", "1", "--from", "99")
    assert "beyond the end, the next offset is 6" in told
    out, _ = orders("tail", STREAM, "-n", "1")
    assert out.split()[0] == f"{STREAM}:1+5"
    assert out.rstrip().endswith('{"id":11}')


def test_the_last_records_are_found_behind_gaps(kafka: Kafka) -> None:
    kafka.make_topic("gaps")
    for i in range(4):
        kafka.write("gaps", [b"%d" % i])
        kafka.write("gaps", [b"x"] * 5, commit=False)
    assert [r["value"] for r in kafka.tail("gaps", "-n", "3")] == ["1", "2", "3"]
    assert [r["value"] for r in kafka.tail("gaps", "-n", "9")] == ["0", "1", "2", "3"]
    assert kafka.tail("gaps", "-n", "0") == []


def test_binary_keys_tombstones_and_headers_come_as_json(kafka: Kafka) -> None:
    topic = kafka.make_topic("raw")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"\xff\x00", b"\xfe", headers=[("h", b"1"), ("h", b"\x80")])
    producer.produce(topic, None, b"gone")
    producer.produce(topic, b"plain")
    producer.flush(30)
    first, second, third = kafka.tail("raw")
    assert (first["key_base64"], first["value_base64"]) == ("/g==", "/wA=")
    assert first["headers"] == [
        {"name": "h", "value": "1"}, {"name": "h", "value_base64": "gA=="},
    ]  # fmt: skip
    assert (second["key"], second["value"]) == ("gone", None)
    assert (third["key"], third["value"]) == (None, "plain")
    out, _ = kafka("tail", "raw")
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_tail_follows_until_a_signal(orders: Kafka, number: signal.Signals, code: int) -> None:
    orders("append", STREAM, given=b'{"id": 1}\n')
    following = orders.shell.start(
        "--hub", orders.url, "tail", STREAM, "--follow", "--from", "earliest", "--json"
    )
    assert following.stdout is not None
    try:
        assert json.loads(following.stdout.readline())["value"] == {"id": 1}
        orders("append", STREAM, given=b'{"id": 2}\n')
        assert json.loads(following.stdout.readline())["value"] == {"id": 2}
        following.send_signal(number)
        assert following.wait(timeout=20) == code
    finally:
        _end(following)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert child.stdout is not None
    child.stdout.close()


def test_a_user_creates_appends_shows_and_deletes(orders: Kafka) -> None:
    orders("append", STREAM, "--shard", "0", given=b'{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    group = orders.group("billing")
    orders.commit(group, STREAM, {0: 1})
    out, _ = orders("lag")
    assert [line.split()[:6] for line in out.splitlines()] == [
        ["stream", "group", "shard", "lag", "pos", "end"],
        [STREAM, group, "all", "2", "1", "3"],
    ]
    out, _ = orders("latency", group)
    assert out.splitlines()[1].split()[:4] == [STREAM, group, "all", "2"]
    out, _ = orders("doctor", "--deep")
    assert "3 records are whole" in out


# What can go wrong


def test_a_topology_is_refused_before_any_stream_is_made(kafka: Kafka) -> None:
    (kafka.shell.cwd / "shop.py").write_text(
        "from headrace import Topology, computation\n"
        "@computation(inputs='orders', outputs='bills')\n"
        "def bill(record, out):\n"
        "    pass\n"
        "topology = Topology(bill, streams={'orders': {'shards': 1}, 'bills': {'shards': 1}})\n"
    )
    for options in ([], ["--engine", "local"]):
        told = kafka.fails("run", "shop.py", *options)
        assert "groups of Headrace do not live on Kafka yet" in told
    assert kafka.json("stream", "list") == []


@pytest.mark.parametrize(
    ("hub", "says"),
    [
        ("kafka://nowhere.invalid:9092", "no broker answers at kafka://nowhere.invalid:9092"),
        ("kafka://127.0.0.1:1", "Connection refused"),
        ("kafka://{bootstrap}?sasl.pasword=x", "'sasl.pasword'"),
        ("kafka://{bootstrap}?group.id=x", "'group.id' cannot be set"),
        ("kafka:{bootstrap}", "with two slashes"),
        ("kafkas://{bootstrap}", "no hubs of kind 'kafkas'"),
        ("kafka://ann:secret@{bootstrap}", "a user in a kafka URL"),
    ],
)
def test_a_bad_address_is_one_line_within_seconds(kafka: Kafka, hub: str, says: str) -> None:
    began_s = time.monotonic()
    told = kafka.fails("stream", "list", hub=hub.format(bootstrap=kafka.bootstrap))
    assert says in told
    assert time.monotonic() - began_s < 10


_SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": SECRET,
}


@pytest.mark.parametrize(
    ("where", "more"),
    [
        ("{sasl}", {}),  # refused
        ("{plain}", {}),  # no SASL there
        ("127.0.0.1:1", {}),
        ("nowhere.invalid", {}),
        ("{sasl}", {"sasl.mechanism": "SCRAM-SHA-256"}),
        ("{sasl}", {"sasl.mechanism": "NONE"}),
        ("{sasl}", {"ssl.ca.location": "/no/such/file", "security.protocol": "SASL_SSL"}),
        ("{sasl}", {"no.such.property": "x"}),
        ("{sasl}", {"acks": "0"}),
        ("{sasl}/bad prefix", {}),
        ("{sasl}:x", {}),
        ("ann@{sasl}", {}),
    ],
)
def test_no_error_shows_a_secret(
    kafka: Kafka, broker: Broker, where: str, more: dict[str, str]
) -> None:
    place = where.format(sasl=broker.address("SASL"), plain=broker.bootstrap)
    hub = f"kafka://{place}?{urlencode({**_SASL, **more})}"
    assert SECRET not in kafka.fails("stream", "list", hub=hub)
    out, err = kafka.shell("--hub", hub, "doctor", code=1)
    assert SECRET not in out + err


@pytest.mark.parametrize(
    "scheme",
    ["kafka:", "kafkas://", "memory://", "KAFKA://", "kafka//"],
    ids=lambda scheme: scheme[:-1],
)
def test_a_misspelt_kind_of_hub_shows_no_secret(kafka: Kafka, scheme: str) -> None:
    hub = f"{scheme}{kafka.bootstrap}?{urlencode(_SASL)}"
    assert SECRET not in kafka.fails("stream", "list", hub=hub)


def test_no_output_shows_a_secret(kafka: Kafka, broker: Broker) -> None:
    password = broker.ann.password
    properties = {**_SASL, "sasl.username": broker.ann.name, "sasl.password": password}
    hub = f"kafka://{broker.address('SASL')}/{kafka.prefix}?{urlencode(properties)}"

    def said(*arguments: str, code: int = 0, given: bytes = b"") -> str:
        return "".join(kafka.shell("--hub", hub, *arguments, code=code, given=given))

    every = [
        said("stream", "list"),
        said("lag"),
        said("stream", "create", "a", "--shards", "1"),
        said("stream", "create", "a", code=2),
        said("stream", "show", "a"),
        said("append", "a", given=b"x\n"),
        said("tail", "a"),
        said("lag"),
        said("lag", "nope", code=2),
        said("group", "list", code=2),
        said("story", "a:0+0", code=2),
        said("doctor"),
        said("doctor", "--json"),
        said("stream", "delete", "a", code=2),
        said("stream", "delete", "a", "--yes"),
        said("stream", "show", "a", code=2),
    ]
    assert "no streams in kafka://" in every[0]
    assert "no groups in kafka://" in every[1]
    assert "headrace: the kafka backend does not offer 'store': " in every[10]
    assert [one for one in every if password in one] == []


def test_bounds_of_a_deleted_stream_are_an_error(kafka: Kafka) -> None:
    with headrace.open(kafka.url) as hub:
        info = hub.create_stream("a", shards=2).info
        assert hub.log.bounds_of([(info, 1), (info, 0)]) == [(0, 0), (0, 0)]
        assert hub.log.bounds_of([]) == []
        hub.delete_stream("a")
        with pytest.raises(headrace.UnknownStream):
            hub.log.bounds_of([(info, 0)])
