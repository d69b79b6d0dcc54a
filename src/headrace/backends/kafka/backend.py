"""A hub's backend on Kafka: topics, partitions, and the clients that read and write them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.backends.kafka.appending.append import Appending
from headrace.backends.kafka.appending.copying import KafkaCopying
from headrace.backends.kafka.appending.producers import IdempotentProducers
from headrace.backends.kafka.appending.send_columns import make_producer
from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.connect import connect
from headrace.backends.kafka.client.failures import error_of, translated
from headrace.backends.kafka.client.patient import ASK_S, PAUSE_S, Admin, PatientClient
from headrace.backends.kafka.client.settings import KafkaSettings
from headrace.backends.kafka.client.usable import Usable
from headrace.backends.kafka.groups.kept_groups import KafkaGroups
from headrace.backends.kafka.messages import outgoing
from headrace.backends.kafka.reading.cursors import Cursors
from headrace.backends.kafka.topics.changes import ChangeWatch
from headrace.backends.kafka.topics.facts import ask_broker_facts, ask_topic_facts
from headrace.backends.kafka.topics.offsets import GONE, Offsets
from headrace.backends.kafka.topics.stream_descriptions import Descriptions
from headrace.backends.kafka.topics.topics import Topic, Topics
from headrace.core.capabilities import Capabilities
from headrace.core.errors import BadRecord, OffsetOutOfRange, UnknownStream, Unsupported
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import (
    Append,
    Copying,
    KeptGroups,
    Place,
    Producer,
    ReadResult,
    StreamSpec,
)
from headrace.core.records.limits import check_commit_bytes, check_shard, check_start

_GROUPS = "groups of Headrace do not live on Kafka yet; use a directory for what needs groups"

CAPABILITIES = Capabilities(
    "kafka",
    {
        "atomic_append": "Kafka shows records partition by partition, and request by request",
        "commit": _GROUPS,
        "dense_offsets": "transaction markers, aborted records and compaction leave gaps",
        "merge": "partitions of a topic cannot be merged",
        "producer_seq": "Kafka recognises a repeated append only as long as its producer lives",
        "split": "partitions of a topic cannot be split",
        "store": _GROUPS,
    },
)


class KafkaBackend:
    """Streams on a cluster of Kafka."""

    capabilities = CAPABILITIES

    def __init__(self, settings: KafkaSettings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._patience_s = patience_s = settings.write_timeout_s or patience_s
        self._usable = Usable()
        self._clients = clients = Clients(settings, self._usable)
        self._admin: Admin = PatientClient(
            connect(clients),
            clients.admin,
            lambda admin: admin.poll(PAUSE_S),
            *(clients, patience_s, self._usable.check),
        )
        self._offsets = Offsets(self._clients, patience_s, self._usable.check)
        # No part holds a reference to this object: a hub that is dropped ends all its clients.
        self._producers = IdempotentProducers(
            lambda size: make_producer(clients, {"batch.size": size})
        )
        self._appending = Appending(self._clients, self._producers, patience_s, self._usable.check)
        self._descriptions = Descriptions(
            self._clients, self._admin, self._offsets, self._appending.describe, patience_s
        )
        self._topics = Topics(
            self._clients,
            self._admin,
            self._offsets,
            self._descriptions,
            patience_s,
            self._usable.check,
        )
        self._cursors = Cursors(self._clients, self._offsets, patience_s)
        self._watch = ChangeWatch(self._clients, self._offsets, self._usable.check)
        self._groups = KafkaGroups(self._clients, self._admin, self._offsets, self._topics)

    def __repr__(self) -> str:
        return f"<KafkaBackend {self._settings}>"

    # Streams

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        self._usable.check()
        info = self._topics.create(spec)
        self._watch.watch(self._partitions(info))
        self._watch.note_change()
        return info

    def stream(self, name: str) -> StreamInfo:
        self._usable.check()
        return self._topics.find(name).info

    def streams(self) -> list[StreamInfo]:
        self._usable.check()
        return self._topics.list_all()

    def delete_stream(self, name: str) -> None:
        self._usable.check()
        self._topics.delete(name)
        self._cursors.forget()
        self._watch.note_change()

    # Records

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        self._usable.check()
        if producer is not None:
            self.capabilities.require("producer_seq")
        check_commit_bytes(sum(part.batch.nbytes for part in parts))
        appends = [(self._topic(part.stream, part.shard), part) for part in parts]
        if not appends:
            return []
        try:
            self._appending.check(appends)
        except BadRecord:
            # The settings of the topic may have changed: look at them before refusing.
            appends = [(self._topics.find(part.stream.name), part) for part in parts]
            self._appending.check(appends)
        self._watch.watch((topic.name, part.shard) for topic, part in appends)
        return self._appending.append(appends, self._check_same)

    def read(
        self,
        stream: StreamInfo,
        shard: int,
        start: int,
        end: int | None = None,
        *,
        max_records: int,
        max_bytes: int,
    ) -> ReadResult:
        until_s = time.monotonic() + self._patience_s
        topic = self._topic(stream, shard)
        if end is not None and start >= end:
            check_start(stream, shard, start, self.bounds(stream, shard))
            return ReadResult([], start)
        if start < 0:
            raise OffsetOutOfRange(stream.name, shard, start, *self.bounds(stream, shard))
        self._watch.watch([(topic.name, shard)])
        try:
            with self._cursors.at(stream, topic.name, shard, start) as cursor:
                found = cursor.read(end, max_records, max_bytes, self._usable.check)
                # The client knows topics by name only, and it may have waited for long.
                self._topics.confirm(stream, _left_s(until_s))
                return found
        except OffsetOutOfRange:
            # These may be the bounds of another stream of that name, where a reader would begin.
            self._topics.confirm_now(stream, _left_s(until_s))
            raise

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        topic = self._topic(stream, shard)
        bounds = self._offsets.ask_bounds((topic.name, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        return bounds

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        partitions = [(self._topic(stream, shard).name, shard) for stream, shard in shards]
        found = self._offsets.ask_all_bounds(partitions)
        for (stream, _), bounds in zip(shards, found, strict=True):
            if bounds is None:
                raise UnknownStream(stream.name)
        return [bounds for bounds in found if bounds is not None]

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        partitions = [(self._topic(stream, shard).name, shard) for stream, shard in shards]
        self._watch.watch(partitions)
        ends = self._offsets.ask_ends(partitions)
        for (stream, _), end in zip(shards, ends, strict=True):
            if end == GONE:
                raise UnknownStream(stream.name)
        return ends

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        topic = self._topic(stream, shard)
        found = self._offsets.ask_offset_at((topic.name, shard), timestamp_ms)
        return self.bounds(stream, shard).end if found is None else found

    def trim(self, stream: StreamInfo, shard: int, before: int) -> None:
        topic = self._topic_now(stream, shard)
        check_start(stream, shard, before, self.bounds(stream, shard))
        partition = TopicPartition(topic.name, shard, before)
        try:
            admin = self._admin.client
            for future in admin.delete_records([partition]).values():
                future.result()
        except KafkaException as why:
            error = error_of(why)
            if error.code() == KafkaError.POLICY_VIOLATION:
                raise Unsupported(
                    "kafka", f"trim {stream.name}", "its topic is compacted"
                ) from None
            raise translated(error, self._settings, f"trimming {stream.name}:{shard}") from None
        self._cursors.forget()
        self._watch.note_change()

    def changes(self) -> int:
        self._usable.check()
        return self._watch.ask_number()

    def wait(self, seen: int, timeout_s: float) -> int:
        self._usable.check()
        return self._watch.wait(seen, timeout_s)

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> Copying:
        topic = self._topic_now(stream, shard)
        return KafkaCopying(
            stream,
            shard,
            origin,
            topic=topic.name,
            message_bytes_max=min(topic.message_bytes_max, self._clients.message_bytes_max),
            make_producer=lambda properties: make_producer(self._clients, properties),
            make_consumer=lambda properties: self._clients.consumer(**properties),
            outgoing=outgoing,
            translated=lambda error, doing: translated(error, self._settings, doing),
        )

    # The rest

    @property
    def identity(self) -> str:
        return f"kafka:{self._ask_cluster_id()}"

    def describe(self) -> dict[str, Any]:
        self._usable.check()
        facts = ask_broker_facts(self._settings, self._admin)
        return {**facts, "native": self._clients.native is not None}

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        self._usable.check()
        topics = [self._topics.confirm(stream) for stream in streams]
        return ask_topic_facts(topics, self._admin, self._offsets)

    @property
    def address(self) -> str | None:
        return None  # the settings hold secrets: another process must be given them by other ways

    @property
    def kept_groups(self) -> KeptGroups:
        """The consumer groups of the cluster."""
        return self._groups

    def close(self) -> None:
        if not self._usable.close():
            return
        self._watch.close()
        self._producers.close()
        self._cursors.close()
        self._descriptions.close()
        self._offsets.close()

    def _ask_cluster_id(self) -> str:
        listed = self._admin.patiently(
            lambda admin: admin.list_topics(timeout=ASK_S), "asking for the cluster's id"
        )
        return str(listed.cluster_id)

    def _topic(self, stream: StreamInfo, shard: int) -> Topic:
        self._usable.check()
        check_shard(stream, shard)
        return self._topics.confirm(stream)

    def _topic_now(self, stream: StreamInfo, shard: int) -> Topic:
        """The topic of a stream, always confirmed by the brokers: for calls that would do harm to
        another stream of that name."""
        self._usable.check()
        check_shard(stream, shard)
        return self._topics.confirm_now(stream)

    def _check_same(self, topic: Topic) -> None:
        self._topics.confirm(topic.info, patience_s=0.0)

    def _partitions(self, info: StreamInfo) -> list[tuple[str, int]]:
        topic = self._topics.topic_of(info.name)
        return [(topic, shard.index) for shard in info.shards]


def _left_s(until_s: float) -> float:
    return max(until_s - time.monotonic(), 0.0)
