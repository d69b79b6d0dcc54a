"""Errors of the client translated into ours: one line each that says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException

from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.core.errors import AccessRefused, HeadraceError, Refused, Unreachable

SILENT = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._DESTROY_BROKER,
    }
)
"""Codes that mean: no broker has answered at all."""

AWAY = frozenset(
    {
        *SILENT,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        KafkaError._RETRY,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""Codes that mean: the same call may succeed when a broker is back."""

UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)

_NO_RIGHT = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

_NOT_LET_IN = "user name or password refused: check sasl.username, sasl.password and sasl.mechanism"
_DECISIVE = (
    ("Invalid username or password", _NOT_LET_IN),
    ("invalid credentials", _NOT_LET_IN),
    (
        "Unsupported SASL mechanism",
        "the broker does not take this sasl.mechanism: {why}",
    ),
    (
        "Request not valid in current SASL state",
        "this listener does not use SASL: take another port, or security.protocol without SASL",
    ),
    (
        "certificate verify failed",
        "the broker's certificate is not trusted: check ssl.ca.location, and that the certificate "
        "names this host",
    ),
    (
        "alert bad certificate",
        "the client certificate is missing or refused: check ssl.certificate.location and "
        "ssl.key.location",
    ),
    (
        "alert certificate required",
        "the client certificate is missing: set ssl.certificate.location and ssl.key.location",
    ),
    (
        "connecting to a PLAINTEXT broker listener",
        "this listener is not TLS: take another port, or security.protocol without SSL",
    ),
    ("SSL alert", "the TLS handshake was refused: {why}"),
    (
        "Invalid response size",
        "what listens there does not speak Kafka: check host and port",
    ),
)
"""Part of a text of the client, and the one line that replaces it. Trying again does not help."""


def error_of(why: BaseException) -> KafkaError:
    """The client's own error inside an exception that it raised."""
    while not (why.args and isinstance(why.args[0], KafkaError)):
        if why.__cause__ is None:
            raise why
        why = why.__cause__
    found: KafkaError = why.args[0]
    return found


def connect_failure(errors: Sequence[KafkaError], settings: KafkaSettings) -> HeadraceError:
    """Why no broker could be reached, from all errors of the client so far."""
    for error in errors:
        decisive = decisive_failure(error, settings)
        if decisive is not None:
            return decisive
    reasons = [
        _shortened(settings.without_secrets(error.str()))
        for error in errors
        if error.code() != KafkaError._ALL_BROKERS_DOWN
    ]
    if reasons:
        unresolved = any("Failed to resolve" in reason for reason in reasons)
        ask = "is the name right?" if unresolved else "is it started, on this host and port?"
        why = "; ".join([*list(dict.fromkeys(reasons))[:3], ask])
    elif errors:
        why = (
            "connections are closed at once; the listener may need TLS or SASL, or another kind "
            "of it: check security.protocol"
        )
    else:
        why = "no answer in time; does it speak Kafka, is it stopped?"
    return Unreachable(f"no broker answers at {settings}: {why}")


def decisive_failure(error: KafkaError, settings: KafkaSettings) -> HeadraceError | None:
    """The error of ours where trying again does not help; None where it may."""
    text = settings.without_secrets(error.str())
    why = _shortened(text)
    for part, line in _DECISIVE:
        if part in text:
            return AccessRefused(f"{settings}: {line.format(why=why)}")
    if error.code() == KafkaError._AUTHENTICATION:
        return AccessRefused(f"{settings}: SASL failed: {why}")
    if error.code() == KafkaError._SSL:
        return AccessRefused(f"{settings}: TLS failed: {why}")
    return None


def translated(error: KafkaError, settings: KafkaSettings, doing: str) -> HeadraceError:
    """The error of ours for one of the client; ``doing`` says what was being done."""
    why = _shortened(settings.without_secrets(error.str()))
    code = error.code()
    if code in AWAY:
        return Unreachable(f"{doing}: no broker of {settings} answers: {why}; try again")
    if code in _NO_RIGHT:
        return AccessRefused(f"{doing}: this user has no right to it: {why}")
    decisive = decisive_failure(error, settings)
    return decisive or Refused(f"{doing}: {error.name()}: {why}")


def translated_exception(why: KafkaException, settings: KafkaSettings, doing: str) -> HeadraceError:
    return translated(error_of(why), settings, doing)


def _shortened(text: str) -> str:
    """A text of the client on one line, without the measurements at its end."""
    plain = " ".join(text.split())
    for measurement in (" (after ", " (add broker"):
        plain = plain.partition(measurement)[0]
    return plain if len(plain) <= 300 else plain[:300] + "…"
