"""A hub of its own for a test: topics behind one prefix, and what other programs do with them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import headrace
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from headrace.tools.kafka_node import Broker


class KafkaPlace:
    """The address of a hub with a prefix of its own, and what other programs do there."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap
        self.prefix = f"t{uuid.uuid4().hex[:12]}"
        self.url = f"kafka://{self.bootstrap}/{self.prefix}"

    def topic(self, stream: str) -> str:
        return f"{self.prefix}.{stream.replace('/', '--')}"

    def make_topic(self, stream: str, partitions: int = 1, **config: str) -> str:
        """Make a topic as a program without Headrace does."""
        topic, admin = self.topic(stream), self._admin()
        settings = {name.replace("_", "."): value for name, value in config.items()}
        settings.setdefault("retention.ms", "-1")  # old timestamps are not to be dropped
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(30)
        until(
            lambda: len(admin.list_topics(topic, 10).topics[topic].partitions) == partitions, topic
        )
        return topic

    def config(self, stream: str, name: str) -> str:
        """A setting of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, self.topic(stream))
        (future,) = self._admin().describe_configs([resource]).values()
        return str(future.result(WAIT_S)[name].value)

    def set_config(self, stream: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(
            ResourceType.TOPIC, self.topic(stream), incremental_configs=[entry]
        )
        (future,) = self._admin().incremental_alter_configs([resource]).values()
        future.result(WAIT_S)
        until(lambda: self.config(stream, name) == value, f"{name} is {value}", WAIT_S)

    def group(self, name: str) -> str:
        """A name that no other test uses."""
        return f"{self.prefix}-{name}"

    def commit(self, group: str, stream: str, offsets: Mapping[int, int]) -> None:
        """Commit offsets as a consumer of Kafka does."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0}
        )
        topic = self.topic(stream)
        consumer.commit(
            offsets=[TopicPartition(topic, shard, at) for shard, at in offsets.items()],
            asynchronous=False,
        )
        consumer.close()

    def write(self, stream: str, values: Iterable[bytes], *, commit: bool = True) -> None:
        """Write to shard 0 in one transaction, and wait until its end can be seen."""
        with self.transaction(stream, values) as transaction:
            transaction.end(commit=commit)

    @contextmanager
    def transaction(self, stream: str, values: Iterable[bytes]) -> Iterator[Transaction]:
        """A transaction that has written to shard 0 and is open."""
        topic = self.topic(stream)
        offsets: list[int] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"{self.prefix}-{uuid.uuid4().hex}",
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(
                topic, value, partition=0, callback=lambda _, sent: offsets.append(sent.offset())
            )
        producer.flush(30)
        yield Transaction(self.bootstrap, topic, producer, offsets[-1])

    def clear(self) -> None:
        admin = self._admin()
        left = [topic for topic in admin.list_topics(timeout=30).topics if self._has(topic)]
        for deleted in admin.delete_topics(left).values() if left else ():
            deleted.result(30)
        groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
        mine = [name for name in groups if name.startswith(self.prefix)]
        for done in admin.delete_consumer_groups(mine).values() if mine else ():
            done.result(30)

    def _has(self, topic: str) -> bool:
        return topic.startswith(f"{self.prefix}.")

    def _admin(self) -> AdminClient:
        return _admin_of(self.bootstrap)


@dataclass(frozen=True)
class Transaction:
    bootstrap: str
    topic: str
    producer: Producer
    last: int
    """The offset of its last record."""

    def end(self, *, commit: bool = True) -> None:
        """End it, and wait until readers see that: the broker answers before it has written the
        marker."""
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)
        asker = _asker_of(self.bootstrap)
        until(
            lambda: asker.offsets_for_times([_end_of(self.topic)], 30)[0].offset > self.last + 1,
            f"the marker behind {self.topic}+{self.last} is seen",
        )


def _end_of(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0, -1)


@cache
def _asker_of(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "headrace-tests",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )


@cache
def _admin_of(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def values_by_offset(stream: headrace.Stream, *where: int | None) -> dict[int, bytes]:
    """The values of shard 0, by offset."""
    return {record.offset: record.value for record in stream.read(0, *where)}  # type: ignore[arg-type]
