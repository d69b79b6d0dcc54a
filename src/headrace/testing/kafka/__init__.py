"""A real broker of Kafka on this machine, without installing one: its jars, its certificates, and
one node that listens on loopback only."""

from __future__ import annotations

from headrace.testing.kafka.certificates import Certificates
from headrace.testing.kafka.jars import KAFKA_VERSION, has_jars, kafka_jars
from headrace.testing.kafka.node import Broker
from headrace.testing.kafka.properties import LISTENERS, User

__all__ = ["KAFKA_VERSION", "LISTENERS", "Broker", "Certificates", "User", "has_jars", "kafka_jars"]
