"""The settings of a node: ``server.properties``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.tools.kafka_node.certificates import Certificates
from headrace.tools.kafka_node.ports import LOOPBACK

PLAINTEXT, SASL, TLS, MTLS, SASLTLS = LISTENERS = ("PLAINTEXT", "SASL", "TLS", "MTLS", "SASLTLS")
CONTROLLER = "CONTROLLER"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_PROTOCOLS = {
    CONTROLLER: "PLAINTEXT", PLAINTEXT: "PLAINTEXT", SASL: "SASL_PLAINTEXT", TLS: "SSL",
    MTLS: "SSL", SASLTLS: "SASL_SSL",
}  # fmt: skip
_ONE_NODE = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "5",
}
_QUICK_GROUPS = {
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
}
"""A killed member is noticed after a second, not after 45."""
_QUICK_RETURN = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
"""A killed broker is let in again after two seconds, not after nine."""
_QUICK_ENDS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
"""A transaction past its time is ended within half a second, not within ten seconds."""
_MODULES = "org.apache.kafka.common.security"


class User(NamedTuple):
    name: str
    password: str


def protocol(listener: str) -> str:
    """The protocol of a listener, as clients call it."""
    return _PROTOCOLS[listener]


def node_properties(data: Path, ports: Mapping[str, int]) -> dict[str, str]:
    """The properties of one node that is broker and controller. `ports` has the controller's
    too."""
    public = {name: port for name, port in ports.items() if name != CONTROLLER}
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports[CONTROLLER]}",
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": PLAINTEXT,
        "listeners": _places(ports),
        "advertised.listeners": _places(public),
        "listener.security.protocol.map": ",".join(f"{n}:{_PROTOCOLS[n]}" for n in ports),
        "log.dirs": str(data),
        **_ONE_NODE,
        **_QUICK_GROUPS,
        **_QUICK_RETURN,
        **_QUICK_ENDS,
    }


def security_properties(certificates: Certificates, plain: User) -> dict[str, str]:
    found = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca),
        f"listener.name.{MTLS.lower()}.ssl.client.auth": "required",
    }
    known = f'user_{plain.name}="{plain.password}"'
    for listener in (SASL, SASLTLS):
        for mechanism in MECHANISMS:
            login = (
                f"{_MODULES}.plain.PlainLoginModule required {known};"
                if mechanism == "PLAIN"
                else f"{_MODULES}.scram.ScramLoginModule required;"
            )
            name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
            found[name] = login
    return found


def scram_arguments(user: User) -> list[str]:
    """The arguments that make a user known when the data of a node is made."""
    return [
        argument
        for mechanism in MECHANISMS[1:]
        for argument in (
            "--add-scram", f"{mechanism}=[name={user.name},password={user.password}]",
        )
    ]  # fmt: skip


def written(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(value: str) -> str:
    """Java reads the file as Latin-1, and a backslash as the begin of an escape."""
    units = value.encode("utf-16-be", "surrogatepass")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return "".join(chr(c) if 32 <= c < 127 and c != 92 else f"\\u{c:04x}" for c in codes)


def _places(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
