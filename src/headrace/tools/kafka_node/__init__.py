"""A real Kafka broker on this machine, without an installation: jars, certificates, and one node
that listens on loopback only."""

from __future__ import annotations

from headrace.tools.kafka_node.certificates import Certificates
from headrace.tools.kafka_node.jars import KAFKA_VERSION, has_jars, kafka_jars
from headrace.tools.kafka_node.node import Broker
from headrace.tools.kafka_node.properties import LISTENERS, User

__all__ = ["KAFKA_VERSION", "LISTENERS", "Broker", "Certificates", "User", "has_jars", "kafka_jars"]
