"""Descriptions of streams: codec, routing and time of creation, which Kafka does not keep, in a
compacted topic.

Before a topic is created, a draft of its description is written; when the topic is there, the draft
is completed with its id. So a topic that another program deletes and creates anew does not get the
description of the old one.

Each creation has a random number, the creator tag. It is in the key of the draft and in a setting
of the topic. So a creator that dies in between leaves a topic that is described all the same. When
several create one name at once, the draft of a loser is not taken for the winner's, nor for that of
a topic that another program created.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import (
    UNKNOWN_TOPIC,
    error_of,
    translated,
    translated_exception,
)
from headrace.backends.kafka.client.patient import ASK_S, SILENT_S, Admin
from headrace.backends.kafka.client.unresponsive import close_within
from headrace.backends.kafka.topics.offsets import GONE, Offsets
from headrace.core.errors import AccessRefused, Unreachable
from headrace.core.records.row import Row

TOPIC = "__headrace_streams"
_TAG_SEPARATOR = "?"
"""Stands between topic and creator tag in a key; the name of a topic cannot hold it."""


class Description(msgspec.Struct, frozen=True):
    """The defaults describe a topic that Headrace did not create."""

    codec: str = "bytes"
    routing: str = "murmur2"
    """By default that of Kafka's own clients."""
    created_ms: int = 0
    id: int = 0
    """The id of the topic; 0 in a draft."""


class Descriptions:
    """The descriptions of all streams of a cluster, as they were read last."""

    def __init__(
        self,
        clients: Clients,
        admin: Admin,
        offsets: Offsets,
        append: Callable[[Sequence[Row]], object],
        patience_s: float,
    ) -> None:
        self._clients = clients
        self._admin = admin
        self._offsets = offsets
        self._append = append
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._reader: Consumer | None = None
        self._next = 0
        self._known: dict[str, dict[str, Description]] = {}
        """Descriptions by topic, then by key."""
        self._id = ""

    def of(self, topic: str, topic_id: int, creator_tag: int | None) -> Description | None:
        """The description of a topic, as of the last `refresh`. Without its creator tag (0: it has
        none, None: it is not known) a draft cannot be told from others: then None."""
        described = dict(self._known.get(topic, {}))  # another thread may refresh meanwhile
        for description in described.values():
            if description.id == topic_id:
                return description
        drafts = {key: found for key, found in described.items() if not found.id}
        if creator_tag is None:
            return None if drafts else Description()
        return drafts.get(_key(topic, creator_tag), Description())

    def put(self, topic: str, creator_tag: int, description: Description) -> None:
        """Write a draft, or complete it."""
        self._write({_key(topic, creator_tag): description})

    def withdraw(self, topic: str, creator_tag: int) -> None:
        """Delete a draft whose topic was not created."""
        self._write({_key(topic, creator_tag): None})

    def forget(self, topic: str, topic_id: int) -> None:
        """Delete the description of the topic with that id: another topic of that name may have
        been created meanwhile."""
        described = dict(self._known.get(topic, {}))
        keys = [key for key, description in described.items() if description.id == topic_id]
        if keys:
            self._write(dict.fromkeys(keys))

    def refresh(self) -> None:
        """Read all that was written since the last time, by any process."""
        if not self._lock.acquire(timeout=self._patience_s):
            raise Unreachable(f"reading {TOPIC}: no answer in time; try again")
        try:
            self._refresh()
        except BaseException:
            self._start_over()  # messages that were taken and not noted are lost
            raise
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            self._start_over()

    def _start_over(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._known = {}
        self._next = 0

    def _refresh(self) -> None:
        topic_id = self._ask_topic_id()
        bounds = None if topic_id is None else self._offsets.ask_bounds((TOPIC, 0))
        if topic_id is None or bounds is None:
            return
        if topic_id != self._id or self._next > bounds.end:
            self._start_over()  # the topic was deleted and created anew
            self._id = topic_id
        reader = self._reader
        if reader is None:
            self._next = bounds.start
            reader = self._new_reader()
        moved_s, silent_s = time.monotonic(), SILENT_S
        until_s = moved_s + self._patience_s
        while self._next < bounds.end:
            before = self._next
            messages = reader.consume(500, 0.005) or reader.consume(1, 0.1)
            for message in messages:
                self._take(message)
            (position,) = reader.position([TopicPartition(TOPIC, 0)])
            self._next = max(self._next, position.offset)
            now_s = time.monotonic()
            if now_s > until_s:
                raise Unreachable(f"reading {TOPIC}: no answer in time; try again")
            if self._next > before:
                moved_s = now_s
            elif now_s - moved_s > silent_s:  # see `patient`
                old, reader = reader, self._new_reader()
                close_within(old.close, 0.0)
                moved_s, silent_s = now_s, 2 * silent_s

    def _new_reader(self) -> Consumer:
        reader = self._reader = self._clients.consumer()
        reader.assign([TopicPartition(TOPIC, 0, self._next)])
        return reader

    def _ask_topic_id(self) -> str | None:
        """The id of the topic of descriptions; None if it does not exist."""

        def ask(admin: AdminClient) -> str | None:
            asked = admin.describe_topics(TopicCollection([TOPIC]), request_timeout=ASK_S)
            try:
                return str(asked[TOPIC].result().topic_id)
            except KafkaException as why:
                code = error_of(why).code()
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise _unreadable() from None
                if code in UNKNOWN_TOPIC:
                    return None
                raise

        return self._admin.patiently(ask, f"reading {TOPIC}")

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if (message.topic(), message.partition()) != (TOPIC, 0):
                return  # about the client's group, which reading by assignment does not need
            if error.code() == KafkaError._PARTITION_EOF:
                self._next = max(self._next, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and self._reader is not None:
                # The answer is outdated: the position was within the bounds a moment ago.
                self._reader.assign([TopicPartition(TOPIC, 0, self._next)])
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise _unreadable()
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise translated(error, self._clients.settings, f"reading {TOPIC}")
            return
        key = (message.key() or b"").decode("utf-8", "replace")
        self._note(key, message.value())

    def _note(self, key: str, value: bytes | None) -> None:
        topic = key.partition(_TAG_SEPARATOR)[0]
        # A new dict each time: other threads read the old one without the lock.
        described = {other: it for other, it in self._known.get(topic, {}).items() if other != key}
        try:
            if value is not None:
                described[key] = msgspec.json.decode(value, type=Description)
        except msgspec.DecodeError:
            pass  # counts as no description
        if described:
            self._known[topic] = described
        else:
            self._known.pop(topic, None)

    def _write(self, entries: Mapping[str, Description | None]) -> None:
        self._make_topic()
        now_ms = time.time_ns() // 1_000_000
        self._append(
            [
                Row(
                    key.encode(),
                    None if description is None else msgspec.json.encode(description),
                    now_ms,
                )
                for key, description in entries.items()
            ]
        )

    def _make_topic(self) -> None:
        (end,) = self._offsets.ask_ends([(TOPIC, 0)])
        if end != GONE:
            return
        new = NewTopic(TOPIC, 1, -1, config={"cleanup.policy": "compact"})
        admin = self._admin.client
        try:
            admin.create_topics([new])[TOPIC].result()
        except KafkaException as why:
            if error_of(why).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise translated_exception(
                    why, self._clients.settings, f"creating {TOPIC}"
                ) from None


def _key(topic: str, creator_tag: int) -> str:
    return f"{topic}{_TAG_SEPARATOR}{creator_tag:x}"


def _unreadable() -> AccessRefused:
    # Kafka does not say whether a topic exists that a user may not see. Without the description a
    # stream could be taken for another kind, and its keys would go to the wrong shards.
    return AccessRefused(
        f"this user cannot see what streams hold and how keys are routed: the rights Describe and "
        f"Read on topic {TOPIC} are missing"
    )
