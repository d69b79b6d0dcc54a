"""The contract of backends on a real broker, under the same names as everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka.admin import AdminClient

from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.core.ports import Backend
from headrace.testing.contracts.appending import AppendingContract
from headrace.testing.contracts.backend import BackendContract, Opening
from headrace.testing.contracts.reading import ReadingContract
from headrace.testing.contracts.records import RecordsContract
from headrace.tools.kafka_node import Broker

_numbers = count(1)


@pytest.fixture(scope="module")
def admin(broker: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def _opened(kafka: KafkaBackend) -> Backend:
    return Backend(kafka, kept_groups=kafka.kept_groups)


class OnKafka:
    native = True

    @pytest.fixture
    def opening(self, broker: Broker, admin: AdminClient) -> Iterator[Opening]:
        """Each test has a hub of its own: the topics behind one prefix."""
        prefix = f"contract-{next(_numbers)}"
        settings = KafkaSettings.of(f"kafka://{broker.bootstrap}/{prefix}", {"native": self.native})
        yield lambda: _opened(KafkaBackend(settings))
        left = [topic for topic in admin.list_topics().topics if topic.startswith(f"{prefix}.")]
        for deleted in admin.delete_topics(left).values() if left else ():
            deleted.result()


class TestKafka(OnKafka, BackendContract):
    pass


class TestKafkaNotNative(OnKafka, RecordsContract, AppendingContract, ReadingContract):
    """What moves records, where records are not moved as columns."""

    native = False
