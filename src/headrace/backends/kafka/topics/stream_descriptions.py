"""What Kafka does not keep of a stream (codec, routing, when it was created): in a compacted topic.

Before a topic is created, a draft says what it shall be; when it is there, the draft is completed
by the topic's id. So a topic that others delete and create anew is not taken for the one described.
Whoever creates has a mark of its own, which is in the key and in a setting of the topic. So a
creator that dies in between leaves a topic that is described all the same; and of several who
create one name at once, nobody's draft is taken for another's, nor for that of a topic of others.
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
from headrace.backends.kafka.client.failures import UNKNOWN_TOPIC, error_of, raised, translated
from headrace.backends.kafka.client.patient import ASK_S, SILENT_S, Admin
from headrace.backends.kafka.client.unresponsive import close_within
from headrace.backends.kafka.topics.offsets import GONE, Offsets
from headrace.core.errors import AccessRefused, Unreachable
from headrace.core.records.row import Row

TOPIC = "__headrace_streams"
_MARK = "?"
"""Before the mark in a key: no topic is named so."""


class Description(msgspec.Struct, frozen=True):
    codec: str = "bytes"
    routing: str = "murmur2"
    """How Kafka's own clients choose, so of a topic that Headrace did not create."""
    created_ms: int = 0
    id: int = 0
    """Of the topic; 0 in a draft."""


class Descriptions:
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
        """By topic and key."""
        self._id = ""

    def of(self, topic: str, topic_id: int, mark: int | None) -> Description | None:
        """What is known of a topic, as of the last `refresh`; `mark` is that of its creator, 0 if
        it has none, None if that is not known. None if it cannot be told without."""
        described = dict(self._known.get(topic, {}))  # others may read on meanwhile
        for description in described.values():
            if description.id == topic_id:
                return description
        drafts = {key: found for key, found in described.items() if not found.id}
        if mark is None:
            return None if drafts else Description()
        return drafts.get(_key(topic, mark), Description())

    def put(self, topic: str, mark: int, description: Description) -> None:
        """A draft, or complete."""
        self._write({_key(topic, mark): description})

    def withdraw(self, topic: str, mark: int) -> None:
        """The topic of a draft was not created."""
        self._write({_key(topic, mark): None})

    def forget(self, topic: str, topic_id: int) -> None:
        """Of the topic with that id only: others may have created another one meanwhile."""
        described = dict(self._known.get(topic, {}))
        keys = [key for key, description in described.items() if description.id == topic_id]
        if keys:
            self._write(dict.fromkeys(keys))

    def refresh(self) -> None:
        """Read what was written since the last time, by anybody."""
        if not self._lock.acquire(timeout=self._patience_s):
            raise Unreachable(f"reading {TOPIC}: no answer in time; try again")
        try:
            self._refresh()
        except BaseException:
            self._start_over()  # what was taken from the client and not looked at is gone
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
        topic_id = self._id_of()
        bounds = None if topic_id is None else self._offsets.bounds((TOPIC, 0))
        if topic_id is None or bounds is None:
            return
        if topic_id != self._id or self._next > bounds.end:
            self._start_over()  # others made the topic anew
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
            elif now_s - moved_s > silent_s:  # see `asked`
                old, reader = reader, self._new_reader()
                close_within(old.close, 0.0)
                moved_s, silent_s = now_s, 2 * silent_s

    def _new_reader(self) -> Consumer:
        reader = self._reader = self._clients.consumer()
        reader.assign([TopicPartition(TOPIC, 0, self._next)])
        return reader

    def _id_of(self) -> str | None:
        """Of the topic of descriptions, None if there is none."""

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
                return  # of the group that the client has and does not need
            if error.code() == KafkaError._PARTITION_EOF:
                self._next = max(self._next, message.offset() or 0)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET and self._reader is not None:
                # An answer of a moment ago: where it stands was within the bounds.
                self._reader.assign([TopicPartition(TOPIC, 0, self._next)])
            elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise _unreadable()
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise translated(error, self._clients.settings, f"reading {TOPIC}")
            return
        key = (message.key() or b"").decode("utf-8", "replace")
        self._note(key, message.value())

    def _note(self, key: str, value: bytes | None) -> None:
        topic = key.partition(_MARK)[0]
        # Made anew, not changed: others look at it without the lock.
        described = {other: it for other, it in self._known.get(topic, {}).items() if other != key}
        try:
            if value is not None:
                described[key] = msgspec.json.decode(value, type=Description)
        except msgspec.DecodeError:
            pass  # of no use, as if nothing had been said
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
        (end,) = self._offsets.ends([(TOPIC, 0)])
        if end != GONE:
            return
        new = NewTopic(TOPIC, 1, -1, config={"cleanup.policy": "compact"})
        admin = self._admin.client
        try:
            admin.create_topics([new])[TOPIC].result()
        except KafkaException as why:
            if error_of(why).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise raised(why, self._clients.settings, f"creating {TOPIC}") from None


def _key(topic: str, mark: int) -> str:
    return f"{topic}{_MARK}{mark:x}"


def _unreadable() -> AccessRefused:
    # Kafka does not say whether a topic exists that a user may not see: so it may, and a stream
    # taken for what it is not would get its keys into the wrong shards.
    return AccessRefused(
        f"what streams hold and how keys are routed is not known to this user: the rights Describe "
        f"and Read on topic {TOPIC} are missing"
    )
