"""A hub's backend on Kafka: topics, partitions, and the clients that read and write them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.backends.kafka.appending.append import Appending
from headrace.backends.kafka.appending.copying import KafkaCopying
from headrace.backends.kafka.appending.producers import Senders
from headrace.backends.kafka.appending.send_columns import sending
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
from headrace.backends.kafka.topics.facts import broker_facts, topic_facts
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
        "dense_offsets": "marks of transactions, aborted records and compaction leave gaps",
        "merge": "partitions of a topic cannot be merged",
        "producer_seq": "Kafka recognises a repeated append only as long as its producer lives",
        "split": "partitions of a topic cannot be split",
        "store": _GROUPS,
    },
)


class KafkaBackend:
    capabilities = CAPABILITIES

    def __init__(self, settings: KafkaSettings, *, patience_s: float = 30.0) -> None:
        self._settings = settings
        self._patience_s = patience_s = settings.write_timeout_s or patience_s
        self._gate = Usable()
        self._clients = clients = Clients(settings, self._gate)
        self._admin: Admin = PatientClient(
            connect(clients),
            clients.admin,
            lambda admin: admin.poll(PAUSE_S),
            *(clients, patience_s, self._gate.check),
        )
        self._offsets = Offsets(self._clients, patience_s, self._gate.check)
        # No part knows this one: so all clients end with the last who uses it.
        self._senders = Senders(lambda size: sending(clients, {"batch.size": size}))
        self._appending = Appending(self._clients, self._senders, patience_s, self._gate.check)
        self._descriptions = Descriptions(
            self._clients, self._admin, self._offsets, self._appending.describe, patience_s
        )
        self._topics = Topics(
            self._clients,
            self._admin,
            self._offsets,
            self._descriptions,
            patience_s,
            self._gate.check,
        )
        self._cursors = Cursors(self._clients, self._offsets, patience_s)
        self._watch = ChangeWatch(self._clients, self._offsets, self._gate.check)
        self._groups = KafkaGroups(self._clients, self._admin, self._offsets, self._topics)

    def __repr__(self) -> str:
        return f"<KafkaBackend {self._settings}>"

    # Streams

    def create_stream(self, spec: StreamSpec) -> StreamInfo:
        self._gate.check()
        info = self._topics.create(spec)
        self._watch.ask_about(self._partitions(info))
        self._watch.told()
        return info

    def stream(self, name: str) -> StreamInfo:
        self._gate.check()
        return self._topics.find(name).info

    def streams(self) -> list[StreamInfo]:
        self._gate.check()
        return self._topics.every()

    def delete_stream(self, name: str) -> None:
        self._gate.check()
        self._topics.delete(name)
        self._cursors.forget()
        self._watch.told()

    # Records

    def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
        self._gate.check()
        if producer is not None:
            self.capabilities.require("producer_seq")
        check_commit_bytes(sum(part.batch.nbytes for part in parts))
        appends = [(self._topic(part.stream, part.shard), part) for part in parts]
        if not appends:
            return []
        try:
            self._appending.check(appends)
        except BadRecord:
            # Others may have changed the topic's settings: what is refused is refused as they are.
            appends = [(self._topics.find(part.stream.name), part) for part in parts]
            self._appending.check(appends)
        self._watch.ask_about((topic.name, part.shard) for topic, part in appends)
        return self._appending.append(appends, self._still_there)

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
        self._watch.ask_about([(topic.name, shard)])
        try:
            with self._cursors.at(stream, topic.name, shard, start) as cursor:
                found = cursor.read(end, max_records, max_bytes, self._gate.check)
                # The client knows topics by name, and it may have waited.
                self._topics.current(stream, _left_s(until_s))
                return found
        except OffsetOutOfRange:
            # Of another stream of that name, perhaps: whoever hears it would begin anew there.
            self._topics.current_now(stream, _left_s(until_s))
            raise

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        topic = self._topic(stream, shard)
        bounds = self._offsets.bounds((topic.name, shard))
        if bounds is None:
            raise UnknownStream(stream.name)
        return bounds

    def bounds_of(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[Bounds]:
        partitions = [(self._topic(stream, shard).name, shard) for stream, shard in shards]
        found = self._offsets.bounds_of(partitions)
        for (stream, _), bounds in zip(shards, found, strict=True):
            if bounds is None:
                raise UnknownStream(stream.name)
        return [bounds for bounds in found if bounds is not None]

    def ends(self, shards: Sequence[tuple[StreamInfo, int]]) -> list[int]:
        partitions = [(self._topic(stream, shard).name, shard) for stream, shard in shards]
        self._watch.ask_about(partitions)
        ends = self._offsets.ends(partitions)
        for (stream, _), end in zip(shards, ends, strict=True):
            if end == GONE:
                raise UnknownStream(stream.name)
        return ends

    def offset_at(self, stream: StreamInfo, shard: int, timestamp_ms: int) -> int:
        topic = self._topic(stream, shard)
        found = self._offsets.at_time((topic.name, shard), timestamp_ms)
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
        self._watch.told()

    def changes(self) -> int:
        self._gate.check()
        return self._watch.number()

    def wait(self, seen: int, timeout_s: float) -> int:
        self._gate.check()
        return self._watch.wait(seen, timeout_s)

    def copying(self, stream: StreamInfo, shard: int, origin: str) -> Copying:
        topic = self._topic_now(stream, shard)
        return KafkaCopying(
            stream,
            shard,
            origin,
            topic=topic.name,
            message_bytes_max=min(topic.message_bytes_max, self._clients.message_bytes_max),
            make_producer=lambda properties: sending(self._clients, properties),
            make_consumer=lambda properties: self._clients.consumer(**properties),
            outgoing=outgoing,
            translated=lambda error, doing: translated(error, self._settings, doing),
        )

    # The rest

    @property
    def identity(self) -> str:
        return f"kafka:{self._cluster_id()}"

    def describe(self) -> dict[str, Any]:
        self._gate.check()
        facts = broker_facts(self._settings, self._admin)
        return {**facts, "native": self._clients.native is not None}

    def describe_streams(self, streams: Sequence[StreamInfo]) -> list[dict[str, Any]]:
        self._gate.check()
        topics = [self._topics.current(stream) for stream in streams]
        return topic_facts(topics, self._admin, self._offsets)

    @property
    def address(self) -> str | None:
        return None  # its settings hold secrets, and come by other ways than one line

    @property
    def kept_groups(self) -> KeptGroups:
        """The consumer groups of the cluster."""
        return self._groups

    def close(self) -> None:
        if not self._gate.close():
            return
        self._watch.close()
        self._senders.close()
        self._cursors.close()
        self._descriptions.close()
        self._offsets.close()

    def _cluster_id(self) -> str:
        listed = self._admin.patiently(
            lambda admin: admin.list_topics(timeout=ASK_S), "asking for the cluster's id"
        )
        return str(listed.cluster_id)

    def _topic(self, stream: StreamInfo, shard: int) -> Topic:
        self._gate.check()
        check_shard(stream, shard)
        return self._topics.current(stream)

    def _topic_now(self, stream: StreamInfo, shard: int) -> Topic:
        """For what would do harm to another stream of that name."""
        self._gate.check()
        check_shard(stream, shard)
        return self._topics.current_now(stream)

    def _still_there(self, topic: Topic) -> None:
        self._topics.current(topic.info, patience_s=0.0)

    def _partitions(self, info: StreamInfo) -> list[tuple[str, int]]:
        topic = self._topics.topic_of(info.name)
        return [(topic, shard.index) for shard in info.shards]


def _left_s(until_s: float) -> float:
    return max(until_s - time.monotonic(), 0.0)
