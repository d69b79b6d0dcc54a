"""What ``headrace doctor`` says about brokers and the streams on them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

import headrace
from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.backends.kafka.topics.facts import ask_broker_facts, ask_topic_facts
from headrace.backends.kafka.topics.topics import Topic
from headrace.ops.doctor import find_damage
from tests.backends.kafka.commands import Kafka


@pytest.fixture
def backend(kafka: Kafka) -> Iterator[KafkaBackend]:
    backend = KafkaBackend(KafkaSettings.of(kafka.url))
    yield backend
    backend.close()


def test_doctor_shows_the_settings_of_a_broker_and_what_they_mean(kafka: Kafka) -> None:
    found = kafka.found()
    assert found["hub"]["found"] == kafka.url
    assert len(found["cluster"]["found"]) == 22
    assert found["brokers"]["found"] == 1
    assert found["controller"]["found"] == kafka.bootstrap
    told = {what: (f["found"], f["ok"], f["advice"]) for what, f in found.items()}
    # The broker of the tests is told to miss the dead soon.
    assert told["group.consumer.session.timeout.ms"] == (
        "1s", None, "a killed consumer's shards are silent for about 1s",
    )  # fmt: skip
    assert told["group.min.session.timeout.ms"][0] == "500ms"
    assert told["group.consumer.min.session.timeout.ms"][0] == "500ms"
    assert told["group.consumer.heartbeat.interval.ms"][0] == "200ms"
    assert told["log.retention.ms"][0] == "7d"
    assert told["offsets.retention.minutes"] == (
        "7d", None, "idle groups forget their checkpoints after 7d",
    )  # fmt: skip
    assert told["message.max.bytes"][0] == "1.0 MiB"
    assert told["transaction.max.timeout.ms"][0] == "15m"
    assert told["transaction.state.log.replication.factor"][0] == 1
    assert told["transaction.state.log.min.isr"][0] == 1
    assert told["default.replication.factor"][0] == 1
    assert told["min.insync.replicas"][0] == 1
    assert told["auto.create.topics.enable"][0] is True
    assert told["unclean.leader.election.enable"] == (False, True, "")
    assert told["streams"][0] == 0


def test_doctor_shows_the_same_as_a_table(kafka: Kafka) -> None:
    out, _ = kafka.shell("--hub", kafka.url, "doctor")
    assert "a killed consumer's shards are silent for about 1s" in out


class Barred:
    """An admin without the right to see settings."""

    def __init__(self, admin: Any) -> None:
        self.list_topics = admin.list_topics

    def describe_configs(self, resources: list[Any], **_: Any) -> dict[Any, Any]:
        def refuse() -> None:
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))

        return {resource: SimpleNamespace(result=refuse) for resource in resources}


def test_settings_that_may_not_be_read_are_a_finding(kafka: Kafka, backend: KafkaBackend) -> None:
    backend._admin.client = Barred(backend._admin.client)
    facts = ask_broker_facts(KafkaSettings.of(kafka.url), backend._admin)
    assert facts["brokers"] == 1
    assert "this user has no right to it" in facts["settings_unread"]
    assert "message.max.bytes" not in facts


class Missing:
    """An admin of a cluster in which brokers are away."""

    def describe_topics(self, topics: Any, **_: Any) -> dict[str, Any]:
        partitions = [
            SimpleNamespace(id=0, leader=None, replicas=[1, 2], isr=[2]),
            SimpleNamespace(id=1, leader=None, replicas=[1], isr=[1]),
        ]
        found = SimpleNamespace(partitions=partitions)
        return {"t": SimpleNamespace(result=lambda: found)}


def test_shards_without_a_leader_or_with_too_few_copies_are_found(
    kafka: Kafka, backend: KafkaBackend
) -> None:
    kafka.make_topic("a", 2)
    info = backend.stream("a")
    backend._admin.client = Missing()
    topic = Topic("t", info, 1, compacted=False, seen_s=0.0)
    assert ask_topic_facts([topic], backend._admin, backend._offsets) == [
        {"leaderless": [0, 1], "under_replicated": [0]}
    ]


def test_what_is_unusual_about_a_stream_is_found(kafka: Kafka) -> None:
    kafka.make_topic("usual", 3)
    kafka.make_topic("compact", cleanup_policy="compact")
    kafka.make_topic("open")
    with kafka.transaction("open", [b"x", b"y"]) as transaction:
        found = kafka.found()
        assert found["open"]["found"] == (
            "2 offsets are held back by an open transaction in shard 0"
        )
        transaction.end()
    found = kafka.found()
    assert found["streams"]["found"] == 3
    assert found["compact"]["found"] == "compacted"
    assert "trim is refused" in found["compact"]["advice"]
    assert {"usual", "open"} & found.keys() == set()


def test_deep_reads_over_gaps_and_ends(kafka: Kafka) -> None:
    kafka.make_topic("gaps", 2)
    kafka.write("gaps", [b"a", b"b", b"c"])
    kafka.write("gaps", [b"x", b"y"], commit=False)
    kafka.write("gaps", [b"d", b"e", b"f", b"g"])
    kafka.write("gaps", [b"z"], commit=False)
    found = kafka.found("--deep")
    assert found["gaps:0"] == {
        "what": "gaps:0", "found": "7 records are whole", "ok": True, "advice": "",
    }  # fmt: skip
    assert found["gaps:1"]["found"] == "0 records are whole"


def test_deep_names_each_record_that_is_too_large_and_reads_on(kafka: Kafka) -> None:
    kafka.make_topic("large")
    kafka.write("large", [b"a", b"b" * 2000, b"c", b"d" * 3000, b"e"])
    findings = kafka.doctor("--deep", code=1, hub=f"{kafka.url}?fetch_max=1000")
    told = [(f["ok"], f["found"]) for f in findings if f["what"] == "large:0"]
    assert [ok for ok, _ in told] == [False, False, True]
    assert "large:0+1 holds 2000 bytes" in told[0][1]
    assert "large:0+3 holds 3000 bytes" in told[1][1]
    assert told[2][1] == "3 records are whole"


def test_records_trimmed_while_doctor_reads_are_no_damage(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headrace.open(kafka.url) as hub:
        stream = hub.create_stream("short", shards=1)
        stream.append_many([(b"%d" % number, None) for number in range(10)])
        bounds = stream.bounds(0)
        stream.trim(0, 4)
    monkeypatch.setattr(headrace.Stream, "bounds", lambda *_: bounds)
    told = [f for f in kafka.doctor("--deep") if f["what"] == "short:0"]
    assert [f["found"] for f in told] == ["6 records are whole"]


def test_a_stream_that_is_deleted_meanwhile_is_no_damage(kafka: Kafka) -> None:
    with headrace.open(kafka.url) as hub:
        hub.create_stream("gone", shards=1)
        hub.delete_stream("gone")
        (told,) = find_damage(hub, "gone")
    assert (told["found"], told["ok"]) == ("deleted meanwhile", None)


def test_a_broker_that_does_not_answer_is_a_finding_and_exit_code_1(kafka: Kafka) -> None:
    hub = "kafka://127.0.0.1:1?sasl.password=hunter2"
    (told,) = [f for f in kafka.doctor(code=1, hub=hub) if f["what"] == "hub"]
    assert told["ok"] is False
    assert "no broker answers at kafka://127.0.0.1:1" in told["found"]
    assert "Connection refused" in told["found"]
    assert "\n" not in told["found"]
    assert "hunter2" not in str(told)
