"""A real broker of Kafka on this machine, without installing one: its jars, its certificates, and
one node that listens on loopback only."""

from __future__ import annotations

from penstock.testing.kafka.certificates import Certificates
from penstock.testing.kafka.jars import KAFKA_VERSION, has_jars, kafka_jars
from penstock.testing.kafka.node import Broker
from penstock.testing.kafka.properties import LISTENERS, User

__all__ = ["KAFKA_VERSION", "LISTENERS", "Broker", "Certificates", "User", "has_jars", "kafka_jars"]
