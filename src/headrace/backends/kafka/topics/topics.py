"""Topics as streams: created, found by name, listed, deleted, and told apart by their ids."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headrace.backends.kafka.client.clients import MESSAGE_BYTES_MAX, Clients
from headrace.backends.kafka.client.failures import (
    UNKNOWN_TOPIC,
    error_of,
    translated,
    translated_exception,
)
from headrace.backends.kafka.client.patient import ASK_S, Admin
from headrace.backends.kafka.topics.offsets import Offsets
from headrace.backends.kafka.topics.stream_descriptions import Description, Descriptions
from headrace.core.errors import (
    AccessRefused,
    BadName,
    BadSetting,
    Retryable,
    StreamExists,
    UnknownOutcome,
    UnknownStream,
    Unreachable,
)
from headrace.core.model import StreamInfo, even_shards
from headrace.core.names import from_one_word, one_word
from headrace.core.ports import StreamSpec

log = logging.getLogger("headrace.kafka")

IDENTITY_S = 1.0
"""How long a topic counts as the one it was: another program may delete it and create it anew."""

HIDDEN_MESSAGE_BYTES_MAX = 1_048_588
"""The brokers' default, for a topic whose settings this user may not see."""

_TAG_SETTING = "message.timestamp.after.max.ms"
"""The setting of a topic that holds its creator tag: see `_config`."""
_FAR_MS = 2**63 - 1
_TAGS = 2**48
"""How many creator tags there are."""
_SETTLE_S = 0.02
_ID_MASK = (1 << 63) - 1


@dataclass(frozen=True)
class Topic:
    """A topic as it was last seen."""

    name: str
    info: StreamInfo
    message_bytes_max: int
    compacted: bool
    seen_s: float
    """When the brokers were asked: the topic was like this then, or a moment later."""


class Topics:
    """The topics behind the prefix of one hub."""

    def __init__(
        self,
        clients: Clients,
        admin: Admin,
        offsets: Offsets,
        descriptions: Descriptions,
        patience_s: float,
        check_open: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._admin = admin
        self._offsets = offsets
        self._descriptions = descriptions
        self._patience_s = patience_s
        self._check_open = check_open
        self._prefix = clients.settings.prefix
        self._lock = threading.Lock()
        self._known: dict[str, Topic] = {}
        self._logged_hidden = False

    def topic_of(self, name: str) -> str:
        """The topic of a stream: ``shop/orders`` is ``shop--orders``, behind the hub's prefix."""
        topic = self._prefix + one_word(name)
        if _is_hidden(topic):
            raise BadName(name, "on Kafka names that begin with '__' are those of the brokers")
        if len(topic) > 249:
            raise BadName(name, "longer than 249 with the hub's prefix")
        return topic

    # Streams

    def create(self, spec: StreamSpec) -> StreamInfo:
        topic = self.topic_of(spec.name)
        shards = even_shards(spec.shards)
        if self._describe([topic]):
            raise StreamExists.named(spec.name)
        creator_tag = secrets.randbelow(_TAGS - 1) + 1
        description = Description(spec.codec, spec.routing, spec.created_ms)
        self._descriptions.put(topic, creator_tag, description)
        try:
            self._create(spec, NewTopic(topic, len(shards), -1, config=_config(spec, creator_tag)))
        except (StreamExists, BadName, BadSetting, AccessRefused):
            self._descriptions.withdraw(
                topic, creator_tag
            )  # after any other error it may have been created
            raise
        topic_id = self._await_leaders(topic, len(shards))
        complete = Description(spec.codec, spec.routing, spec.created_ms, topic_id)
        self._descriptions.put(topic, creator_tag, complete)
        return self.find(spec.name).info

    def find(self, name: str) -> Topic:
        """The topic of a stream, as it is now; `UnknownStream` if there is none."""
        try:
            topic = self.topic_of(name)
        except BadName:
            raise UnknownStream(name) from None
        found = self._look_up([topic])
        if not found:
            with self._lock:
                self._known.pop(name, None)
            raise UnknownStream(name)
        return found[0]

    def confirm(self, stream: StreamInfo, patience_s: float | None = None) -> Topic:
        """The topic of a stream that was found earlier; `UnknownStream` if it is another one now.
        The brokers are not asked if they were within `IDENTITY_S`."""
        known = self._known.get(stream.name)
        if known is None or time.monotonic() - known.seen_s > IDENTITY_S:
            return self.confirm_now(stream, patience_s)
        return _same(known, stream)

    def confirm_now(self, stream: StreamInfo, patience_s: float | None = None) -> Topic:
        """The same, and the brokers are always asked."""
        known = self._known.get(stream.name)
        return _same(self._look_again(stream.name, known, patience_s), stream)

    def list_all(self) -> list[StreamInfo]:
        listed = self._admin.patiently(
            lambda admin: admin.list_topics(timeout=ASK_S), "listing topics"
        )
        topics = [topic for topic in listed.topics if self._name(topic) is not None]
        seen = self._look_up(topics, skip_half_made=True)
        return sorted((found.info for found in seen), key=lambda info: info.name)

    def delete(self, name: str) -> None:
        found = self.find(name)
        topic = found.name
        admin, timeout_s = self._admin.client, self._patience_s
        deleted = admin.delete_topics([topic], request_timeout=timeout_s)
        self._await_result(deleted[topic], name)
        with self._lock:
            self._known.pop(name, None)
        self._wait_until(lambda: not self._exists(topic, found.info.id), f"deleting {name}")
        try:
            self._descriptions.forget(topic, found.info.id)
        except (AccessRefused, Retryable) as why:
            log.info("stream=%s: deleted; its description is left behind, unused: %s", name, why)

    # Steps of these

    def _exists(self, topic: str, topic_id: int) -> bool:
        """Whether the topic with that id exists; one of the same name may be another."""
        return topic_id in map(_id, self._describe([topic]))

    def _look_again(self, name: str, known: Topic | None, patience_s: float | None) -> Topic:
        """The topic with its id confirmed; what cannot change is not asked for again."""
        if known is None:
            return self.find(name)
        seen_s = time.monotonic()
        described = self._describe([known.name], patience_s)
        if not described or _id(described[0]) != known.info.id:
            return self.find(name)
        if len(described[0].partitions) > len(known.info.shards):
            # An open stream goes on with the shards that it had, so this is logged once.
            log.warning(
                "stream=%s: has %d shards now; open it again to see those above %d",
                name,
                len(described[0].partitions),
                len(known.info.shards) - 1,
            )
            return self.find(name)
        again = replace(known, seen_s=seen_s)
        with self._lock:
            self._known[name] = again
        return again

    def _look_up(self, topics: Sequence[str], *, skip_half_made: bool = False) -> list[Topic]:
        """The topics that exist, with their descriptions. The description of a topic that is still
        being created may not be known yet: such a topic is skipped, or else refused."""
        seen_s = time.monotonic()
        described = self._describe(topics)
        if not described:
            return []
        self._descriptions.refresh()
        configs = self._describe_configs([found.name for found in described])
        seen = []
        for found in described:
            config = configs.get(found.name)
            name = self._name(found.name)
            if config is None or name is None:
                continue  # deleted meanwhile
            description = self._descriptions.of(found.name, _id(found), _creator_tag(config))
            if description is not None:
                seen.append(_topic(name, found, description, config, seen_s))
            elif not skip_half_made:
                raise Unreachable(
                    f"stream {name!r} is still being created; try again, or get the right "
                    f"DescribeConfigs on topic {found.name}"
                )
        with self._lock:
            self._known.update({topic.info.name: topic for topic in seen})
        return seen

    def _create(self, spec: StreamSpec, new: NewTopic) -> None:
        try:
            admin, timeout_s = self._admin.client, self._patience_s
            admin.create_topics([new], request_timeout=timeout_s)[new.topic].result()
        except KafkaException as why:
            error = error_of(why)
            text = " ".join(error.str().split())
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                raise StreamExists.named(spec.name) from None
            if error.code() == KafkaError.TOPIC_EXCEPTION:
                raise BadName(spec.name, f"Kafka refuses it: {text}") from None
            if error.code() in (
                KafkaError.POLICY_VIOLATION,
                KafkaError.INVALID_CONFIG,
                KafkaError.INVALID_PARTITIONS,
                KafkaError.INVALID_REPLICATION_FACTOR,
            ):
                raise BadSetting(f"stream {spec.name!r}: Kafka refuses it: {text}") from None
            wrong = translated_exception(why, self._clients.settings, f"creating {spec.name}")
            if isinstance(wrong, Unreachable):
                raise UnknownOutcome(
                    f"{wrong}; look whether it is there", withdrawn=False
                ) from None
            raise wrong from None

    def _await_leaders(self, topic: str, partitions: int) -> int:
        """Wait until each partition has a leader that answers; the topic's id."""
        found: list[Any] = []

        def settled() -> bool:
            found[:] = self._describe([topic])
            led = found and all(p.leader is not None for p in found[0].partitions)
            if not led or len(found[0].partitions) != partitions:
                return False
            return min(self._offsets.ask_ends([(topic, i) for i in range(partitions)])) >= 0

        self._wait_until(settled, f"creating {topic}")
        return _id(found[0])

    def _describe(self, topics: Sequence[str], patience_s: float | None = None) -> list[Any]:
        """Descriptions of the topics that exist, by the brokers."""
        if not topics:
            return []

        def ask(admin: AdminClient) -> list[Any]:
            futures = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_S)
            return [found for found in map(_result, futures.values()) if found is not None]

        return self._admin.patiently(ask, "describing topics", patience_s)

    def _describe_configs(self, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
        """The settings of the topics that exist; an empty mapping where they may not be seen."""
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]

        def ask(admin: AdminClient) -> dict[str, dict[str, str | None]]:
            futures = admin.describe_configs(resources, request_timeout=ASK_S)
            found = {
                resource.name: self._config_or_hidden(resource.name, future)
                for resource, future in futures.items()
            }
            return {
                name: {entry.name: entry.value for entry in config.values()}
                for name, config in found.items()
                if config is not None
            }

        return self._admin.patiently(ask, "describing the settings of topics")

    def _config_or_hidden(self, topic: str, future: Any) -> Any:
        try:
            return _result(future)
        except KafkaException as why:
            if error_of(why).code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise
        if not self._logged_hidden:
            self._logged_hidden = True
            log.info(
                "topic=%s: this user may not see its settings (DescribeConfigs): retention is "
                "unknown, records of up to 1 MiB are taken",
                topic,
            )
        return {}

    def _await_result(self, future: Any, name: str) -> None:
        try:
            future.result()
        except KafkaException as why:
            error = error_of(why)
            if error.code() in UNKNOWN_TOPIC:
                raise UnknownStream(name) from None
            raise translated(error, self._clients.settings, f"stream {name}") from None

    def _wait_until(self, condition: Callable[[], bool], doing: str) -> None:
        """Wait until the brokers have learned what the controller has decided."""
        until_s = time.monotonic() + self._patience_s
        waiting = threading.Event()
        while not condition():
            self._check_open()
            if time.monotonic() > until_s:
                raise Unreachable(f"{doing}: the brokers did not settle in time; look again")
            waiting.wait(_SETTLE_S)

    def _name(self, topic: str) -> str | None:
        """The name of the stream that a topic is; None if it is no stream of this hub."""
        if not topic.startswith(self._prefix) or _is_hidden(topic):
            return None
        try:
            return from_one_word(topic.removeprefix(self._prefix))
        except BadName:
            return None


def _same(topic: Topic, stream: StreamInfo) -> Topic:
    if topic.info.id != stream.id:
        raise UnknownStream(stream.name, anew=True)
    return topic


def _is_hidden(topic: str) -> bool:
    return topic.startswith("__")


def _topic(
    name: str,
    found: Any,
    description: Description,
    config: Mapping[str, str | None],
    seen_s: float,
) -> Topic:
    kept_ms = int(config.get("retention.ms") or -1)
    kept_bytes = int(config.get("retention.bytes") or -1)
    policy = config.get("cleanup.policy") or "delete"
    compacted, deletes = "compact" in policy, "delete" in policy
    info = StreamInfo(
        name=name,
        id=_id(found),
        codec=description.codec,
        routing=description.routing,
        retention_s=kept_ms / 1000 if deletes and kept_ms >= 0 else None,
        retention_bytes=kept_bytes if deletes and kept_bytes >= 0 else None,
        created_ms=description.created_ms,
        shards=even_shards(len(found.partitions)),
    )
    most = int(config.get("max.message.bytes") or HIDDEN_MESSAGE_BYTES_MAX)
    return Topic(found.name, info, most, compacted, seen_s)


def _creator_tag(config: Mapping[str, str | None]) -> int | None:
    """The creator tag of a topic; 0 if it has none, None if its settings may not be seen."""
    if not config:
        return None
    found = _FAR_MS - int(config.get(_TAG_SETTING) or 0)
    return found if 0 < found < _TAGS else 0


def _id(described: Any) -> int:
    found = described.topic_id.get_most_significant_bits()
    return int(found) & _ID_MASK


def _result(future: Any) -> Any:
    """What a future was made for; None if the topic does not exist."""
    try:
        return future.result()
    except KafkaException as why:
        if error_of(why).code() in UNKNOWN_TOPIC:
            return None
        raise


def _config(spec: StreamSpec, creator_tag: int) -> dict[str, str]:
    return {
        "retention.ms": "-1" if spec.retention_s is None else str(round(spec.retention_s * 1000)),
        "retention.bytes": "-1" if spec.retention_bytes is None else str(spec.retention_bytes),
        "max.message.bytes": str(MESSAGE_BYTES_MAX),
        # A writer may give any timestamp, so this limit lies in the far future. Subtracting the
        # creator tag changes nothing that matters, and no other setting has room for it.
        _TAG_SETTING: str(_FAR_MS - creator_tag),
        "message.timestamp.type": "CreateTime",
        "cleanup.policy": "delete",
    }
