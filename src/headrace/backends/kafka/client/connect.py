"""The first contact: an answer of any broker, or within seconds the reason why there is none."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import connect_failure, decisive_failure

log = logging.getLogger("headrace.kafka")

DEADLINE_S = 7.0
GRACE_S = 1.5
"""How long another broker may still answer after one has refused us."""
DOWN_S = 3.0
"""How long all brokers may be down: one may just be starting."""
ASK_S = 0.5
_NO = ("false", "f", "0")


def connect(clients: Clients) -> AdminClient:
    """Make an admin client, and wait until a broker answers it, up to `DEADLINE_S`."""
    properties = clients.settings.properties
    if str(properties.get("enable.ssl.certificate.verification", "true")).lower() in _NO:
        log.warning(
            "hub=%s: the brokers' certificates are not verified "
            "(enable.ssl.certificate.verification=false): a machine in between can read along",
            clients.settings,
        )
    if str(properties.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        log.warning(
            "hub=%s: certificates may be those of any host "
            "(ssl.endpoint.identification.algorithm=none)",
            clients.settings,
        )
    protocol = str(properties.get("security.protocol", "plaintext")).upper()
    if "SASL" not in protocol and any(name.startswith("sasl.") for name in properties):
        log.warning(
            "hub=%s: user and password are not used with security.protocol=%s: set SASL_SSL or "
            "SASL_PLAINTEXT",
            clients.settings,
            protocol,
        )
    errors: list[KafkaError] = []
    clients.divert_errors(errors.append)
    try:
        admin = clients.admin()
        clients.producer()  # settings that contradict each other are refused now
        _await_answer(admin, clients, errors)
    finally:
        clients.divert_errors(None)
    return admin


def _await_answer(admin: AdminClient, clients: Clients, errors: list[KafkaError]) -> None:
    began_s = time.monotonic()
    refused_s: float | None = None
    while True:
        try:
            admin.list_topics(timeout=ASK_S)
            return
        except KafkaException:
            admin.poll(0.05)  # only this makes the client report the reason
        now_s = time.monotonic()
        if any(decisive_failure(error, clients.settings) for error in errors):
            refused_s = refused_s or now_s
        alone = len(clients.settings.brokers) == 1
        down = any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors)
        if (
            now_s - began_s > DEADLINE_S
            or (refused_s is not None and (alone or now_s - refused_s > GRACE_S))
            or (down and now_s - began_s > DOWN_S)
        ):
            raise connect_failure(errors, clients.settings)
