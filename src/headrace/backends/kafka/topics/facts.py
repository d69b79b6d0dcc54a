"""Asks for facts about brokers and topics; `headrace.ops.findings` says what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from headrace.backends.kafka.client.patient import ASK_S, Admin
from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.backends.kafka.topics.offsets import Offsets, Partition
from headrace.backends.kafka.topics.topics import Topic
from headrace.core.errors import HeadraceError

SETTINGS_PATIENCE_S = 5.0
SETTINGS = (
    "group.min.session.timeout.ms",
    "group.consumer.session.timeout.ms",
    "group.consumer.min.session.timeout.ms",
    "group.consumer.heartbeat.interval.ms",
    "offsets.retention.minutes",
    "message.max.bytes",
    "default.replication.factor",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "auto.create.topics.enable",
    "transaction.max.timeout.ms",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)
"""The settings of a broker that matter to the streams on it."""

_RETENTION_MS = {
    "log.retention.ms": 1,
    "log.retention.minutes": 60_000,
    "log.retention.hours": 3_600_000,
}
"""The first of these settings that a broker has, and its unit in milliseconds."""


def ask_broker_facts(settings: KafkaSettings, admin: Admin) -> dict[str, Any]:
    """The cluster, and the settings of one of its brokers."""

    def ask(client: AdminClient) -> Any:
        found = client.list_topics(timeout=ASK_S)
        if not found.brokers:
            raise KafkaException(KafkaError(KafkaError.BROKER_NOT_AVAILABLE))  # it is starting
        return found

    listed = admin.patiently(ask, "asking the brokers")
    controller = listed.brokers.get(listed.controller_id)
    return {
        "backend": "kafka",
        "hub": str(settings),
        "cluster": listed.cluster_id,
        "brokers": len(listed.brokers),
        "controller": f"{controller.host}:{controller.port}" if controller else None,
        **_ask_broker_settings(min(listed.brokers), admin),
    }


def ask_topic_facts(
    topics: Sequence[Topic], admin: Admin, offsets: Offsets
) -> list[dict[str, Any]]:
    """What is unusual about each topic; shards are given by their indexes."""
    if not topics:
        return []
    names = [topic.name for topic in topics]

    def ask(client: AdminClient) -> dict[str, Any]:
        futures = client.describe_topics(TopicCollection(names), request_timeout=ASK_S)
        return {name: future.result() for name, future in futures.items()}

    found = admin.patiently(ask, "describing topics")
    led = [(name, p.id) for name in names for p in found[name].partitions if p.leader is not None]
    held_back = _ask_held_back(led, admin, offsets)
    return [_topic_facts(topic, found[topic.name].partitions, held_back) for topic in topics]


def _topic_facts(
    topic: Topic, partitions: Sequence[Any], held_back: dict[Partition, int]
) -> dict[str, Any]:
    every = {
        "leaderless": [p.id for p in partitions if p.leader is None],
        "under_replicated": [p.id for p in partitions if len(p.isr) < len(p.replicas)],
        "held_back": {
            p.id: held_back[topic.name, p.id] for p in partitions if (topic.name, p.id) in held_back
        },
        "compacted": topic.compacted,
    }
    return {what: found for what, found in every.items() if found}


def _ask_held_back(
    partitions: Sequence[Partition], admin: Admin, offsets: Offsets
) -> dict[Partition, int]:
    """How many offsets lie behind the last stable one, for partitions where there are any."""
    if not partitions:
        return {}

    def ask(client: AdminClient) -> dict[Partition, int]:
        latest = {TopicPartition(*part): OffsetSpec.latest() for part in partitions}
        futures = client.list_offsets(
            latest, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ASK_S
        )
        return {(at.topic, at.partition): f.result().offset for at, f in futures.items()}

    # In this order: a transaction that commits in between does not count as held back.
    written = admin.patiently(ask, "asking for offsets")
    stable = dict(zip(partitions, offsets.ask_ends(partitions), strict=True))
    return {part: written[part] - end for part, end in stable.items() if written[part] > end >= 0}


def _ask_broker_settings(broker: int, admin: Admin) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.BROKER, str(broker))

    def ask(client: AdminClient) -> dict[str, Any]:
        futures = client.describe_configs([resource], request_timeout=ASK_S)
        return {name: entry.value for name, entry in futures[resource].result().items()}

    try:
        found = admin.patiently(
            ask, f"reading the settings of broker {broker}", SETTINGS_PATIENCE_S
        )
    except HeadraceError as why:
        return {"settings_unread": str(why)}
    kept = [int(found[name]) * ms for name, ms in _RETENTION_MS.items() if found.get(name)]
    values = {name: _value(found[name]) for name in SETTINGS if found.get(name) is not None}
    return {**({"log.retention.ms": kept[0]} if kept else {}), **values}


def _value(text: str) -> int | bool | str:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text
