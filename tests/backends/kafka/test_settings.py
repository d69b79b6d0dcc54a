"""What a hub on Kafka is opened with: read, refused, and shown without its secrets."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from confluent_kafka import KafkaError

import headrace
from headrace.backends.kafka.client.clients import COMMON, READING, WRITING, Clients
from headrace.backends.kafka.client.failures import connect_failure, translated
from headrace.backends.kafka.client.settings import OURS, KafkaSettings
from headrace.backends.kafka.client.usable import Usable
from headrace.core.errors import BadHub, BadQuantity, BadSetting

NOWHERE = "kafka://127.0.0.1:9"
"""Nobody listens there, and nobody is asked: what is refused, is refused before."""
SECRET = 'hunter"2'

of = KafkaSettings.of


def refused(url: str, settings: Mapping[str, object] | None = None) -> str:
    """Why it is not even tried."""
    with pytest.raises((BadHub, BadSetting)) as caught:
        headrace.open(url, settings=settings)
    told = str(caught.value)
    assert "\n" not in told
    return told


# Where


@pytest.mark.parametrize(
    ("url", "brokers"),
    [
        ("kafka://one", ["one:9092"]),
        ("kafka://one:1", ["one:1"]),
        ("kafka://one:65535,two,3.x.org:94", ["one:65535", "two:9092", "3.x.org:94"]),
        ("kafka://10.0.0.1:9093/team", ["10.0.0.1:9093"]),
        ("kafka://[::1]:9093", ["[::1]:9093"]),
        ("kafka://[2001:db8::7],[::ffff:1.2.3.4]:1", ["[2001:db8::7]:9092", "[::ffff:1.2.3.4]:1"]),
    ],
)  # fmt: skip
def test_brokers_get_the_default_port(url: str, brokers: list[str]) -> None:
    settings = of(url)
    assert list(settings.brokers) == brokers
    assert settings.bootstrap == ",".join(brokers)


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka:///prefix",
        "kafka://?client.id=x",
        "kafka://one,",
        "kafka://,one",
        "kafka://one,,two",
        "kafka://one:",
        "kafka://one:0",
        "kafka://one:65536",
        "kafka://one:123456",
        "kafka://one:port",
        "kafka://one:1:2",
        "kafka://one two",
        "kafka://::1",
        "kafka://[::1",
        "kafka://[zz]:1",
        "kafka://PLAINTEXT://one:1",
        "kafka:one:9092",
        "kafka:/one",
    ],
)
def test_text_that_is_no_broker_is_refused(url: str) -> None:
    assert "kafka://host:9092" in refused(url)


@pytest.mark.parametrize(
    "url",
    [
        "kafka://ann:hunter2@one:9092",
        "kafka://ann:hunter2@one",
        "kafka://one,ann:hunter2@two",
        "kafka://ann:hunter2/9@one:9092",
        "kafka://ann:1/hunter2@one:9092",
        "kafka://ann:hunter2,9@one:9092",
    ],
)
def test_a_user_before_a_host_is_refused_and_its_password_not_shown(url: str) -> None:
    told = refused(url)
    assert "sasl.username" in told
    assert "hunter2" not in told


def test_text_in_place_of_a_port_is_not_shown() -> None:
    """It may be the password of somebody whose @ went into the query."""
    assert "hunter2" not in refused("kafka://ann:hunter2?client.id=x@one")


@pytest.mark.parametrize(
    ("path", "prefix"),
    [("", ""), ("/", ""), ("/team", "team."), ("/team/", "team."), ("/team.", "team."),
     ("/a.b-c_d", "a.b-c_d."), ("/%74eam", "team.")],
)  # fmt: skip
def test_a_prefix_of_topics(path: str, prefix: str) -> None:
    assert of(f"kafka://one{path}").prefix == prefix


@pytest.mark.parametrize("path", ["/.a", "/a/b", "/a b", "/a--b", "/ä", "/a%2fb", "/" + "a" * 101])
def test_text_that_is_no_prefix_is_refused(path: str) -> None:
    assert "bad prefix" in refused(f"kafka://one{path}")


# Properties


def test_properties_by_url_and_by_mapping_and_both_together() -> None:
    url = "kafka://one/team?client.id=shop&fetch.min.bytes=7"
    more = {"sasl.username": "ann", "linger.ms": 3, "enable.metrics.push": False, "x": 0.5}
    assert of(url).properties == {"client.id": "shop", "fetch.min.bytes": "7"}
    assert of("kafka://one", more).properties == more
    assert of(url, more).properties == {"client.id": "shop", "fetch.min.bytes": "7", **more}
    assert of(url, {}) == of(url) == of(url, None)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a+b", "a+b"),
        ("a%2Bb", "a+b"),
        ("a%26b%3dc%25%20", "a&b=c% "),
        ("a=b", "a=b"),
        ("a%3Fb", "a?b"),
        ("a?b/c@d", "a?b/c@d"),
        ("%C3%A4", "ä"),
        ("100%", "100%"),
        ("", ""),
    ],
)
def test_values_in_a_url_are_decoded_and_a_plus_stays_a_plus(written: str, value: str) -> None:
    found = of(f"kafka://one?sasl.password={written}&client.id=x").properties
    assert found == {"sasl.password": value, "client.id": "x"}


def test_bytes_that_are_no_text_are_refused_and_not_replaced() -> None:
    told = refused("kafka://one?sasl.password=hunter2%ff")
    assert "sasl.password" in told
    assert "UTF-8" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "query", ["hunter2", "=hunter2", "a=b&hunter2", "a=b&", "&a=b", "sasl.password=x&hunter2=1"]
)
def test_text_that_is_no_pair_is_refused_and_not_shown(query: str) -> None:
    told = refused(f"kafka://one?{query}")
    assert "name=value" in told
    assert "hunter2" not in told


def test_settings_behind_a_password_are_settings() -> None:
    query = "sasl.password=x&client%2eid=y&ssl.key.password=z&debug=all"
    found = KafkaSettings.of(f"kafka://one?{query}").properties
    assert found["client.id"] == "y"
    assert found["debug"] == "all"


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("kafka://one?client.id=x&client.id=x", None),
        ("kafka://one?client.id=x&client%2eid=y", None),
        ("kafka://one?client.id=x", {"client.id": "x"}),
    ],
)
def test_a_setting_given_twice_is_refused(url: str, more: Mapping[str, object] | None) -> None:
    assert "'client.id' is given twice" in refused(url, more)


@pytest.mark.parametrize("name", sorted(OURS))
def test_properties_that_headrace_sets_are_refused_with_the_reason(name: str) -> None:
    for told in (refused(f"kafka://one?{name}=1"), refused("kafka://one", {name: 1})):
        assert repr(name) in told
        assert told.endswith(OURS[name])


def test_properties_that_the_guarantees_need_cannot_be_set() -> None:
    """But for names that say how much and how long, all that we set ourselves is refused."""
    tuned = {
        "log_level", "allow.auto.create.topics", "socket.timeout.ms", "check.crcs",
        "fetch.queue.backoff.ms", "fetch.wait.max.ms", "queued.max.messages.kbytes",
        "message.max.bytes", "linger.ms", "queue.buffering.max.messages",
        "queue.buffering.max.kbytes",
    }  # fmt: skip
    assert {*COMMON, *READING, *WRITING} - tuned <= set(OURS)


@pytest.mark.parametrize("value", [None, b"x", ["x"], {"a": 1}, object(), print])
def test_a_value_that_is_no_scalar_is_refused(value: object) -> None:
    told = refused("kafka://one", {"client.id": value})
    assert "'client.id'" in told
    assert type(value).__name__ in told


@pytest.mark.parametrize("name", ["sasl.pasword", "fetch.size", "", "Client.Id", "nonsense"])
def test_an_unknown_property_is_refused_by_its_name(name: str) -> None:
    assert repr(name) in refused(NOWHERE, {name: "hunter2"})
    assert "hunter2" not in refused(NOWHERE, {name: "hunter2"})
    if name:
        assert repr(name) in refused(f"{NOWHERE}?{name}=hunter2")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lingr.ms", "linger.ms"),
        ("sasl.pasword", "sasl.password"),
        ("Client.Id", "client.id"),
        ("fetchmax", "fetch_max"),
        ("write_timeot", "write_timeout"),
        ("nativ", "native"),
    ],
)
def test_an_unknown_property_is_refused_with_the_nearest_known_one(name: str, meant: str) -> None:
    for told in (refused(NOWHERE, {name: "1"}), refused(f"{NOWHERE}?{name}=1")):
        assert told.endswith(f"{name!r}; did you mean {meant!r}?")


def test_no_property_that_headrace_sets_itself_is_suggested() -> None:
    assert "did you mean" not in refused(NOWHERE, {"group.idd": "x"})


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("linger.ms", "x", "'linger.ms'; it takes a number, 0 to 900000"),
        ("retries", "many", "'retries'; it takes a whole number, 0 to 2147483647"),
        ("compression.type", "zip", "'compression.type'; it takes one of none, gzip, snappy, lz4"),
        ("security.protocol", "SASL", "it takes one of plaintext, ssl, sasl_plaintext, sasl_ssl"),
        ("socket.keepalive.enable", "maybe", "true or false"),
        ("debug", "foo", "it takes some of generic, broker,"),
    ],
)
def test_a_bad_value_is_refused_with_the_values_that_its_property_takes(
    name: str, value: str, takes: str
) -> None:
    assert takes in refused(NOWHERE, {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fetch.wait.max.ms", "soon"),
        ("fetch.wait.max.ms", -1),
        ("queue.buffering.max.ms", "x"),
        ("message.max.bytes", 1),
        ("message.max.bytes", "1e6"),
        ("security.protocol", "PLAIN"),
        ("compression.codec", "rar"),
        ("enable.ssl.certificate.verification", "maybe"),
        ("client.id", "a\0b"),
    ],
)
def test_a_bad_value_is_refused_by_the_name_of_its_property(name: str, value: object) -> None:
    told = refused(NOWHERE, {name: value})
    assert repr(name) in told


@pytest.mark.parametrize(
    "name", ["ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location"]
)
def test_a_file_that_is_missing_is_named(name: str) -> None:
    told = refused(NOWHERE, {"security.protocol": "SSL", name: "/nowhere/at-all.pem"})
    assert f"{name} '/nowhere/at-all.pem': No such file or directory" in told


def test_a_mechanism_that_the_client_lacks_is_refused_with_those_it_has() -> None:
    told = refused(NOWHERE, {"security.protocol": "SASL_SSL"})
    assert "set sasl.mechanism" in told
    assert "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in told
    assert "SASL_SCRAM" not in told
    assert "recompile" not in told


@pytest.mark.parametrize(
    ("given", "nbytes"), [(0, 0), ("0", 0), (10**6, 10**6), ("1MiB", 2**20), ("64k", 2**16)]
)
def test_fetch_max_is_a_size_by_mapping_and_by_url(given: object, nbytes: int) -> None:
    assert of("kafka://one", {"fetch_max": given}).fetch_max == nbytes
    assert of(f"kafka://one?fetch_max={given}").fetch_max == nbytes
    assert "fetch_max" not in of("kafka://one", {"fetch_max": given}).properties


@pytest.mark.parametrize("given", ["much", "", -1, 1.5, True, None, 2**63])
def test_a_bad_fetch_max_is_refused(given: object) -> None:
    with pytest.raises(BadQuantity, match="fetch_max"):
        of("kafka://one", {"fetch_max": given})


def test_no_limit_unless_one_is_set() -> None:
    assert of("kafka://one").fetch_max == 0


@pytest.mark.parametrize("where", ["memory:", "memory:x"])
def test_settings_are_those_of_kafka(where: str) -> None:
    with pytest.raises(BadSetting, match="Kafka client"):
        headrace.open(where, settings={"client.id": "x"})


# Secrets

SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.private.key.pem",
)


@pytest.mark.parametrize("name", SECRETS)
def test_no_text_of_ours_holds_a_secret(name: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = of("kafka://one/team", {name: SECRET})
    for shown in (repr(settings), str(settings), f"{settings}", repr(Clients(settings, Usable()))):
        assert SECRET not in shown
    said = KafkaError(KafkaError._AUTHENTICATION, f"it said {SECRET} to me")
    other = KafkaError(KafkaError.UNKNOWN, f"it said {SECRET} to me")
    assert SECRET not in settings.without_secrets(f"<{SECRET}>")
    assert SECRET not in str(connect_failure([said], settings))
    assert SECRET not in str(connect_failure([other], settings))
    assert SECRET not in str(translated(other, settings, "doing"))
    with caplog.at_level(logging.DEBUG):
        Clients(settings, Usable())._log_error(other)
        Clients(settings, Usable()).note_silence(other, 1.0)
    assert "it said" in caplog.text
    assert SECRET not in caplog.text


def test_a_secret_inside_another_is_hidden_whole() -> None:
    settings = of("kafka://one", {"sasl.password": "ab", "ssl.key.password": "abcd"})
    assert "cd" not in settings.without_secrets("<abcd>")


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonsense": "1"},
        {"linger.ms": "x"},
        {"ssl.ca.location": "/nowhere", "security.protocol": "SSL"},
        {"ssl.key.pem": SECRET, "security.protocol": "SSL"},
        {"sasl.mechanism": "NOPE", "security.protocol": "SASL_SSL"},
        {"sasl.oauthbearer.method": SECRET},
    ],
)
def test_no_refusal_shows_a_secret(
    wrong: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    given = {"sasl.password": SECRET, "ssl.key.password": SECRET, **wrong}
    with caplog.at_level(logging.DEBUG):
        told = refused(NOWHERE, given)
    for shown in (SECRET, SECRET.replace('"', "'")):
        assert shown not in told
        assert shown not in caplog.text


def test_a_hash_sign_is_refused_with_how_to_write_it() -> None:
    with pytest.raises(BadHub, match="a # is written %23"):
        of("kafka://one:9092#part")
