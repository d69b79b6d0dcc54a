"""Who is let in by a real broker; and for everybody else one line that says why, soon."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace
from headrace.core.errors import AccessRefused, BadSetting, HeadraceError, Unreachable
from headrace.tools.kafka_node import Broker
from headrace.tools.kafka_node.properties import MECHANISMS

SOON_S = 10.0
WRONG = "hunter-2-wrong"
WAYS = [
    ("PLAINTEXT", "PLAIN"),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("TLS", "PLAIN"),
    ("MTLS", "PLAIN"),
    ("SASLTLS", "PLAIN"),
    ("SASLTLS", "SCRAM-SHA-256"),
    ("SASLTLS", "SCRAM-SHA-512"),
]
NAMELESS = "127.1"
"""Another way to write 127.0.0.1, which the broker's certificate does not have."""
NO_NAME = "no-such-host.invalid"

Settings = dict[str, Any]


def let_in(broker: Broker, listener: str, mechanism: str = "PLAIN") -> Settings:
    """All but the address."""
    found = broker.client(listener, mechanism)
    del found["bootstrap.servers"]
    return found


def port(broker: Broker, listener: str) -> str:
    return broker.address(listener).rpartition(":")[2]


def round_trip(url: str, settings: Settings | None = None) -> None:
    prefix = f"t{uuid.uuid4().hex[:12]}"
    with headrace.open(f"{url}/{prefix}", settings=settings) as hub:
        orders = hub.create_stream("shop/orders", shards=2, codec="json")
        ids = orders.append_many([({"id": number}, f"k{number}") for number in range(20)])
        found = [record.value["id"] for shard in range(2) for record in orders.read(shard)]
        assert sorted(found) == list(range(20))
        assert len(set(ids)) == 20
        hub.delete_stream("shop/orders")
        assert hub.streams() == []


@pytest.fixture
def hidden(broker: Broker, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing of all that is logged holds a secret."""
    with caplog.at_level(logging.DEBUG):
        yield
    for secret in secrets(broker):
        assert secret not in caplog.text


def secrets(broker: Broker) -> list[str]:
    key = broker.certificates.client_key.read_text().splitlines()[1]
    return [broker.ann.password, broker.bob.password, WRONG, key]


# Who is let in


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_streams_behind_every_listener(broker: Broker, listener: str, mechanism: str) -> None:
    round_trip(f"kafka://{broker.address(listener)}", let_in(broker, listener, mechanism))


@pytest.mark.usefixtures("hidden")
def test_all_settings_can_be_in_the_url(broker: Broker) -> None:
    bob = broker.bob
    address, query = broker.address("SASLTLS"), "&".join(
        [
            "security.protocol=SASL_SSL",
            "sasl.mechanism=SCRAM-SHA-512",
            f"sasl.username={bob.name}",
            f"sasl.password={bob.password}",
            f"ssl.ca.location={broker.certificates.ca}",
        ]
    )  # fmt: skip
    with headrace.open(f"kafka://{address}?{query}") as hub:
        stream = hub.create_stream("in-the-url", shards=1, exist_ok=True)
        assert stream.append(b"x").stream == "in-the-url"


@pytest.mark.usefixtures("hidden")
def test_certificates_and_keys_as_text(broker: Broker) -> None:
    certificates = broker.certificates
    settings = {
        "security.protocol": "SSL",
        "ssl.ca.pem": certificates.ca.read_text(),
        "ssl.certificate.pem": certificates.client.read_text(),
        "ssl.key.pem": certificates.client_key.read_text(),
    }
    round_trip(f"kafka://{broker.address('MTLS')}", settings)


NOT_VERIFIED = "certificates are not verified"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [found.getMessage() for found in caplog.records if found.levelno >= logging.WARNING]


@pytest.mark.parametrize("written", [False, "false", "False", "f", 0, "0"])
def test_certificates_that_are_not_verified_are_warned_of(
    broker: Broker, written: object, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"security.protocol": "SSL", "enable.ssl.certificate.verification": written}
    with headrace.open(f"kafka://{broker.address('TLS')}", settings=settings) as hub:
        hub.streams()
    assert [NOT_VERIFIED in line for line in warnings(caplog)].count(True) == 1


def test_certificates_that_are_verified_are_not_warned_of(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    round_trip(f"kafka://{broker.address('TLS')}", let_in(broker, "TLS"))
    assert not [line for line in warnings(caplog) if NOT_VERIFIED in line]


def test_a_password_that_is_not_used_is_warned_of(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "hunter2"}
    with headrace.open(f"kafka://{broker.address('PLAINTEXT')}", settings=settings):
        (told,) = [line for line in warnings(caplog) if "not used" in line]
    assert "security.protocol" in told
    assert "hunter2" not in caplog.text


# Who is not


class Failing(NamedTuple):
    listener: str
    settings: Settings
    error: type[HeadraceError]
    told: tuple[str, ...]
    host: str = "127.0.0.1"


def sasl(mechanism: str, user: str = "", password: str = WRONG) -> Settings:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def tls(**files: Path) -> Settings:
    """With files by the first word of their setting."""
    return {
        "security.protocol": "SSL",
        **{f"ssl.{name}.location": str(path) for name, path in files.items()},
    }


NOT_LET_IN = ("user name or password refused", "sasl.username, sasl.password")
NOT_TRUSTED = ("certificate is not trusted", "check ssl.ca.location", "names this host")
CLIENT = ("client certificate is missing or refused", "check ssl.certificate.location")
CLOSED = ("may need TLS or SASL", "check security.protocol")
NO_SASL = ("this listener does not use SASL", "take another port")


def failing(broker: Broker) -> dict[str, Failing]:
    """Every way not to come in: what is told then."""
    ann, bob, files = broker.ann.name, broker.bob.name, broker.certificates
    over_tls = {**let_in(broker, "SASLTLS"), "sasl.password": WRONG}
    foreign = tls(ca=files.ca, certificate=files.foreign_client, key=files.foreign_client_key)
    oauth = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt": True,
    }
    named = {**oauth, "sasl.oauthbearer.config": "principal=ann"}
    missing = tls(ca=Path("/nowhere/ca.crt"))
    return {
        "password PLAIN": Failing("SASL", sasl("PLAIN", ann), AccessRefused, NOT_LET_IN),
        "user PLAIN": Failing("SASL", sasl("PLAIN", "zoe"), AccessRefused, NOT_LET_IN),
        "password 256": Failing("SASL", sasl("SCRAM-SHA-256", bob), AccessRefused, NOT_LET_IN),
        "user 256": Failing("SASL", sasl("SCRAM-SHA-256", "zoe"), AccessRefused, NOT_LET_IN),
        "password 512": Failing("SASL", sasl("SCRAM-SHA-512", bob), AccessRefused, NOT_LET_IN),
        "user 512": Failing("SASL", sasl("SCRAM-SHA-512", "zoe"), AccessRefused, NOT_LET_IN),
        "password over TLS": Failing("SASLTLS", over_tls, AccessRefused, NOT_LET_IN),
        "mechanism": Failing(
            "SASL", named, AccessRefused, ("does not take this sasl.mechanism", *MECHANISMS)
        ),
        "no token": Failing("SASL", oauth, AccessRefused, ("SASL failed", "oauthbearer.config")),
        "SASL on plain": Failing("PLAINTEXT", sasl("PLAIN", ann), AccessRefused, NO_SASL),
        "SASL on TLS": Failing("TLS", over_tls, AccessRefused, NO_SASL),
        "foreign CA": Failing("TLS", tls(ca=files.foreign_ca), AccessRefused, NOT_TRUSTED),
        "no CA": Failing("TLS", tls(), AccessRefused, NOT_TRUSTED),
        "host name": Failing("TLS", tls(ca=files.ca), AccessRefused, NOT_TRUSTED, NAMELESS),
        "no client certificate": Failing("MTLS", tls(ca=files.ca), AccessRefused, CLIENT),
        "foreign client certificate": Failing("MTLS", foreign, AccessRefused, CLIENT),
        "TLS on plain": Failing(
            "PLAINTEXT", tls(ca=files.ca), AccessRefused, ("listener is not TLS", "another port")
        ),
        "TLS on SASL over TLS": Failing("SASLTLS", tls(ca=files.ca), Unreachable, CLOSED),
        "plain on TLS": Failing("TLS", {}, Unreachable, CLOSED),
        "plain on SASL": Failing("SASL", {}, Unreachable, CLOSED),
        "plain on SASL over TLS": Failing("SASLTLS", {}, Unreachable, CLOSED),
        "CA missing": Failing(
            "TLS", missing, BadSetting,
            ("ssl.ca.location", "'/nowhere/ca.crt': No such file or directory"),
        ),
    }  # fmt: skip


CASES = [
    "password PLAIN", "user PLAIN", "password 256", "user 256", "password 512", "user 512",
    "password over TLS", "mechanism", "no token", "SASL on plain", "SASL on TLS", "foreign CA",
    "no CA", "host name", "no client certificate", "foreign client certificate", "TLS on plain",
    "TLS on SASL over TLS", "plain on TLS", "plain on SASL", "plain on SASL over TLS", "CA missing",
]  # fmt: skip


def test_every_case_is_tried(broker: Broker) -> None:
    assert list(failing(broker)) == CASES


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("case", CASES)
def test_a_refused_client_gets_the_reason(broker: Broker, case: str) -> None:
    listener, settings, error, told, host = failing(broker)[case]
    url = f"kafka://{host}:{port(broker, listener)}"
    assert_told(broker, url, settings, error, told)


def test_a_client_refused_for_the_host_name_connects_with_the_right_one(broker: Broker) -> None:
    """Red if the host name were refused for another reason."""
    settings = {**let_in(broker, "TLS"), "ssl.endpoint.identification.algorithm": "none"}
    with headrace.open(f"kafka://{NAMELESS}:{port(broker, 'TLS')}", settings=settings) as hub:
        hub.streams()
    with headrace.open(
        f"kafka://localhost:{port(broker, 'TLS')}", settings=let_in(broker, "TLS")
    ) as hub:
        hub.streams()


def assert_told(
    broker: Broker,
    url: str,
    settings: Settings | None,
    error: type[HeadraceError],
    told: tuple[str, ...],
) -> None:
    began_s = time.monotonic()
    with pytest.raises(HeadraceError) as caught:
        headrace.open(url, settings=settings).close()
    took_s = time.monotonic() - began_s
    said = str(caught.value)
    assert type(caught.value) is error, said
    assert [part for part in told if part not in said] == [], said
    assert "\n" not in said
    assert caught.value.__cause__ is None
    assert took_s < SOON_S
    for secret in secrets(broker):
        assert secret not in repr(caught.value)


# Brokers that are down


@pytest.fixture
def free() -> Iterator[list[str]]:
    """Addresses that are taken, and where nobody listens."""
    held = [socket.socket() for _ in range(2)]
    for each in held:
        each.bind(("127.0.0.1", 0))
    yield [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()


@pytest.mark.parametrize("turn", [1, -1])
def test_a_second_broker_is_used_when_the_first_is_down(
    broker: Broker, free: list[str], turn: int
) -> None:
    round_trip("kafka://" + ",".join([free[0], broker.bootstrap][::turn]))


@pytest.mark.parametrize("turn", [1, -1])
def test_a_second_broker_is_used_when_the_first_has_no_such_name(broker: Broker, turn: int) -> None:
    round_trip("kafka://" + ",".join([f"{NO_NAME}:9092", broker.bootstrap][::turn]))


def test_a_second_broker_is_used_when_the_first_does_not_let_us_in(broker: Broker) -> None:
    settings = let_in(broker, "SASL")
    for turn in (1, -1):
        hosts = [broker.address("PLAINTEXT"), broker.address("SASL")][::turn]
        with headrace.open("kafka://" + ",".join(hosts), settings=settings) as hub:
            hub.streams()


def test_unreachable_is_raised_when_all_brokers_are_down(broker: Broker, free: list[str]) -> None:
    for hosts in (free[:1], free, [free[0], f"{NO_NAME}:9092"]):
        told = ("no broker answers", hosts[0], "Connection refused")
        assert_told(broker, "kafka://" + ",".join(hosts), None, Unreachable, told)


def test_a_name_that_does_not_resolve_is_named(broker: Broker) -> None:
    told = ("no broker answers", "Failed to resolve", NO_NAME)
    assert_told(broker, f"kafka://{NO_NAME}:9092", None, Unreachable, told)


def test_a_broker_that_never_answers_raises_in_time(broker: Broker) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"kafka://127.0.0.1:{silent.getsockname()[1]}"
        assert_told(broker, url, None, Unreachable, ("no answer in time",))


# Secrets


@pytest.mark.usefixtures("hidden")
def test_nothing_shown_of_an_open_hub_holds_a_secret(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even what the client says of itself when it is asked for everything."""
    settings = let_in(broker, "SASLTLS", "SCRAM-SHA-512")
    talkative = {**settings, "debug": "all", "log_level": 7}
    with headrace.open(f"kafka://{broker.address('SASLTLS')}", settings=talkative) as hub:
        shown = [repr(hub), str(hub), repr(hub.log), str(hub.log), repr(hub.describe())]
        shown += [repr(hub.streams()), repr(hub.capabilities)]
    assert "sasl.password = " in caplog.text
    for secret in secrets(broker):
        assert secret not in "".join(shown)
