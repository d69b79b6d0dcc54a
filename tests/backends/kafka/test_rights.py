"""What a user may do with rights of one kind and not of another, at a broker that asks for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import headrace
from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.kafka.reading import fetched, listed
from headrace.backends.kafka.topics.stream_descriptions import TOPIC, Descriptions
from headrace.backends.kafka.topics.topics import Topics
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.hubs import KafkaPlace

READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
SETTINGS = AclOperation.DESCRIBE_CONFIGS
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ALL = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)


class Rights:
    """Of ann, who has none at first; whoever comes without a name may do everything."""

    def __init__(self, broker: Broker, place: KafkaPlace) -> None:
        self.place = place
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self._url = f"kafka://{broker.address('SASL')}/{place.prefix}"
        self._client = broker.client("SASL")
        del self._client["bootstrap.servers"]
        self._granted = 0

    def grant(self, name: str, *operations: Any, kind: Any = ResourceType.TOPIC) -> None:
        """On all that begin so if the name ends with a star."""
        pattern = ResourcePatternType.PREFIXED if name[-1] == "*" else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(
                kind,
                name.rstrip("*"),
                pattern,
                "User:ann",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for granted in self.admin.create_acls(bindings).values():
            granted.result(WAIT_S)
        self._granted += len(bindings)
        until(lambda: self._seen() == self._granted, "the broker knows of it", WAIT_S)

    def revoke_all(self) -> None:
        for revoked in self.admin.delete_acls([ALL]).values():
            revoked.result(WAIT_S)
        until(lambda: self._seen() == 0, "the broker knows of it", WAIT_S)

    def open(self, **settings: Any) -> headrace.Hub:
        return headrace.open(self._url, settings={**self._client, **settings})

    def forget_descriptions(self) -> None:
        self.admin.delete_topics([TOPIC])[TOPIC].result(WAIT_S)
        until(lambda: TOPIC not in self.admin.list_topics(timeout=10).topics, "it is gone", WAIT_S)

    def _seen(self) -> int:
        return len(self.admin.describe_acls(ALL).result(WAIT_S))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    directory = tmp_path_factory.mktemp("strict") / "broker"
    with Broker(directory, secure=True, settings=settings) as started:
        yield started


@pytest.fixture
def rights(strict: Broker) -> Iterator[Rights]:
    place = KafkaPlace(strict)
    rights = Rights(strict, place)
    yield rights
    rights.revoke_all()
    place.clear()


@pytest.fixture
def root(rights: Rights) -> Iterator[headrace.Hub]:
    with headrace.open(rights.place.url) as hub:
        yield hub


# What streams hold


@pytest.mark.parametrize("granted", [(), (DESCRIBE,)], ids=["nothing", "describe"])
def test_without_the_right_to_read_descriptions_a_stream_is_refused_with_that_right(
    rights: Rights, root: headrace.Hub, granted: tuple[Any, ...]
) -> None:
    root.create_stream("a", shards=4, codec="json", routing="md5-range")
    rights.grant(rights.place.topic("a"), READ, WRITE, SETTINGS)
    if granted:
        rights.grant(TOPIC, *granted)
    with rights.open() as hub:
        calls: list[Callable[[], object]] = [lambda: hub.stream("a"), hub.streams]
        for call in calls:
            with pytest.raises(headrace.AccessRefused) as why:
                call()
            assert "Describe and Read on topic __headrace_streams" in str(why.value)
            assert "\n" not in str(why.value)


def test_with_the_right_to_read_descriptions_keys_are_routed_as_ever(
    rights: Rights, root: headrace.Hub
) -> None:
    theirs = root.create_stream("a", shards=4, codec="json", routing="md5-range")
    rights.grant(rights.place.topic("a"), READ, WRITE, SETTINGS)
    rights.grant(TOPIC, READ)
    keys = [f"k{i}" for i in range(20)]
    with rights.open() as hub:
        own = [hub.stream("a").append({}, key).shard for key in keys]
    assert own == [theirs.append({}, key).shard for key in keys]


def test_without_descriptions_the_right_to_see_their_topic_is_enough(
    rights: Rights, root: headrace.Hub
) -> None:
    root.create_stream("a", shards=1)
    rights.forget_descriptions()
    rights.place.make_topic("theirs")
    rights.grant(rights.place.topic("theirs"), READ, SETTINGS)
    rights.grant(TOPIC, DESCRIBE)
    rights.place.write("theirs", [b"x"])
    with rights.open() as hub:
        assert [record.value for record in hub.stream("theirs").read(0)] == [b"x"]
        assert hub.stream("theirs").info.routing == "murmur2"


# Settings of topics


def test_a_topic_whose_settings_may_not_be_seen_is_a_stream_too(
    rights: Rights, root: headrace.Hub, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        root.create_stream(name, shards=1, codec="json", retention="7d")
        rights.grant(rights.place.topic(name), READ, WRITE)
    root.create_stream("seen", shards=1, retention="7d")
    rights.grant(rights.place.topic("seen"), READ, SETTINGS)
    rights.grant(TOPIC, READ)
    with caplog.at_level(logging.INFO), rights.open() as hub:
        kept = {info.name: info.retention_s for info in hub.streams()}
        assert kept == {"a": None, "b": None, "seen": 7 * 86_400.0}
        stream = hub.stream("a")
        stream.append({"x": 1}, "k")
        assert [record.value for record in stream.read(0)] == [{"x": 1}]
        with pytest.raises(headrace.BadRecord, match=r"at most 1\.0 MiB"):
            stream.append("x" * 2_000_000)
    assert sum("DescribeConfigs" in line for line in caplog.messages) == 1


def test_a_half_made_stream_is_hidden_from_users_who_may_not_see_its_settings(
    rights: Rights, root: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = RuntimeError("died half way")

    def die(*_: object) -> int:
        raise died

    with monkeypatch.context() as dying:
        dying.setattr(Topics, "_await_leaders", die)
        with pytest.raises(RuntimeError, match="died half way"):
            root.create_stream("a", shards=1, codec="json")
    until(root.streams, "it is there", WAIT_S)
    rights.grant(rights.place.topic("a"), READ)
    rights.grant(TOPIC, READ)
    with rights.open() as hub:
        assert hub.streams() == []
        with pytest.raises(headrace.Unreachable, match="right DescribeConfigs on topic"):
            hub.stream("a")
        rights.grant(rights.place.topic("a"), SETTINGS)
        assert hub.stream("a").info.codec == "json"


# Groups


@pytest.mark.parametrize("native", ["true", "false"])
def test_a_follower_needs_no_right_to_a_group(
    rights: Rights, root: headrace.Hub, monkeypatch: pytest.MonkeyPatch, native: str
) -> None:
    theirs = root.create_stream("a", shards=1)
    rights.grant(rights.place.topic("a"), READ, SETTINGS)
    rights.grant(TOPIC, READ)
    heard: set[int] = set()
    real = listed.sorted_out

    def listened(messages: list[Any]) -> Any:
        heard.update(_codes(messages))
        return real(messages)

    monkeypatch.setattr(fetched, "sorted_out", listened)
    with rights.open(native=native) as hub:
        following = hub.stream("a").read(0, follow=True)

        def refused_the_group() -> bool:
            theirs.append(b"x")
            assert next(following).value == b"x"
            return KafkaError.GROUP_AUTHORIZATION_FAILED in heard

        until(refused_the_group, "the client was refused its group", WAIT_S)
        theirs.append(b"after it")
        assert next(following).value == b"after it"


def test_descriptions_are_read_without_a_right_to_a_group(
    rights: Rights, root: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.create_stream("a", shards=1, codec="json")
    rights.grant(rights.place.topic("a"), READ, SETTINGS)
    rights.grant(TOPIC, READ)
    heard: set[int] = set()
    real = Descriptions._take

    def listened(self: Descriptions, message: Any) -> None:
        heard.update(_codes([message]))
        real(self, message)

    monkeypatch.setattr(Descriptions, "_take", listened)
    with rights.open() as hub:

        def refused_the_group() -> bool:
            root.create_stream("b", shards=1)
            root.delete_stream("b")
            assert hub.stream("a").info.codec == "json"
            return KafkaError.GROUP_AUTHORIZATION_FAILED in heard

        until(refused_the_group, "the client was refused its group", WAIT_S)


def _codes(messages: list[Any]) -> set[int]:
    errors = [message.error() for message in messages]
    return {error.code() for error in errors if error is not None}


# What docs/kafka.md asks for is enough


def test_rights_to_create_append_read_trim_and_delete(rights: Rights, root: headrace.Hub) -> None:
    root.create_stream("other", shards=1)
    rights.grant(rights.place.topic("a"), AclOperation.CREATE, READ, WRITE, AclOperation.DELETE)
    rights.grant(TOPIC, READ, WRITE)
    with rights.open() as hub:
        stream = hub.create_stream("a", shards=2, codec="json")
        stream.append_many([({"x": i}, None) for i in range(9)], shard=0)
        stream.trim(0, 5)
        assert [record.value["x"] for record in stream.read(0)] == [5, 6, 7, 8]
        hub.delete_stream("a")
        assert hub.streams() == []


def test_a_stream_is_deleted_though_its_description_may_not_be(
    rights: Rights, root: headrace.Hub
) -> None:
    root.create_stream("a", shards=1)
    rights.grant(rights.place.topic("a"), AclOperation.DELETE)
    rights.grant(TOPIC, READ)
    with rights.open() as hub:
        hub.delete_stream("a")
    assert root.streams() == []


def test_rights_to_see_lag(rights: Rights, root: headrace.Hub) -> None:
    root.create_stream("a", shards=1).append_many([(b"x", None)] * 5)
    group = rights.place.group("billing")
    rights.place.commit(group, "a", {0: 2})
    rights.grant(rights.place.topic("a"), READ)
    rights.grant(TOPIC, READ)
    rights.grant(group, DESCRIBE, kind=ResourceType.GROUP)
    with rights.open() as hub:
        assert isinstance(hub.log, KafkaBackend)
        ((_, at),) = hub.log.kept_groups.checkpoints()[group].items()
    assert at == 2


def test_rights_to_copy_into_a_stream(rights: Rights, root: headrace.Hub) -> None:
    theirs = root.create_stream("a", shards=1)
    rights.grant(rights.place.topic("a"), READ, WRITE)
    rights.grant(TOPIC, READ)
    rights.grant("headrace-copy.*", READ, kind=ResourceType.GROUP)
    rights.grant("headrace-copy.*", WRITE, kind=ResourceType.TRANSACTIONAL_ID)
    with rights.open() as hub:
        assert isinstance(hub.log, KafkaBackend)
        copying = hub.log.copying(hub.stream("a").info, 0, "elsewhere")
        copying.append(Batch.of_rows([Row(b"k", b"copied", 5)]), 1)
        copying.close()
    assert [record.value for record in theirs.read(0)] == [b"copied"]
