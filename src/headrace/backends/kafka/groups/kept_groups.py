"""The checkpoints of all groups of the cluster in the topics of this hub, whichever program made
the groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.backends.kafka.appending.copying import PREFIX as COPYING
from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import error_of
from headrace.backends.kafka.client.patient import Admin
from headrace.backends.kafka.topics.offsets import Offsets, Partition
from headrace.backends.kafka.topics.topics import Topics
from headrace.core.errors import UnknownGroup
from headrace.core.model import Bounds, StreamInfo

ASK_S = 10.0
LOOK_S = 2.0
"""How long reading looks for a record behind checkpoints."""

_READER: dict[str, Any] = {"queued.min.messages": 1, "fetch.message.max.bytes": 64 * 1024}


class KafkaGroups:
    """Consumer groups that the brokers keep."""

    def __init__(
        self,
        clients: Clients,
        admin: Admin,
        offsets: Offsets,
        topics: Topics,
    ) -> None:
        self._clients = clients
        self._admin = admin
        self._offsets = offsets
        self._topics = topics

    def checkpoints(self, name: str | None = None) -> dict[str, dict[tuple[StreamInfo, int], int]]:
        names = self._ask_names()
        if name is not None:
            if name not in names:
                raise UnknownGroup(name, look="headrace lag", known=names)
            names = [name]
        streams = {self._topics.topic_of(info.name): info for info in self._topics.list_all()}
        found = {}
        for group, committed in self._ask_committed(names).items():
            ours = {part: at for part, at in committed.items() if _is_in(streams, part)}
            if ours or name is not None:
                found[group] = {
                    (streams[topic], index): at
                    for (topic, index), at in self._move_past_gaps(ours).items()
                }
        return found

    def _ask_names(self) -> list[str]:
        def ask(admin: AdminClient) -> list[str]:
            listed = admin.list_consumer_groups(request_timeout=ASK_S).result()
            for wrong in listed.errors:
                raise wrong
            return [group.group_id for group in listed.valid]

        names = self._admin.patiently(ask, "listing groups")
        return sorted(name for name in names if not name.startswith(COPYING))

    def _ask_committed(self, names: list[str]) -> dict[str, dict[Partition, int]]:
        """The committed offsets of each group; the requests run at once, as the client takes one
        group in each."""

        def ask(admin: AdminClient) -> dict[str, dict[Partition, int]]:
            futures: dict[str, Any] = {}
            for name in names:
                wanted = ConsumerGroupTopicPartitions(name)
                futures |= admin.list_consumer_group_offsets([wanted], request_timeout=ASK_S)
            return {name: _offsets(future) for name, future in futures.items()}

        return self._admin.patiently(ask, "asking how far groups have come")

    def _move_past_gaps(self, committed: Mapping[Partition, int]) -> dict[Partition, int]:
        """The same, with the end in place of a checkpoint behind which no record is left: a
        consumer commits the last offset plus one, and would lag by a transaction marker for
        ever."""
        partitions = list(committed)
        near: dict[Partition, Bounds] = {}
        for part, bounds in zip(partitions, self._offsets.ask_all_bounds(partitions), strict=True):
            if bounds is None:
                continue  # deleted meanwhile
            at = max(committed[part], bounds.start)
            if at < bounds.end:
                near[part] = Bounds(at, bounds.end)
        return {**committed, **{part: near[part].end for part in self._find_empty(near)}}

    def _find_empty(self, ranges: Mapping[Partition, Bounds]) -> set[Partition]:
        """The partitions without a record in their range; those that are not read in time are not
        among them."""
        empty: set[Partition] = set()
        if not ranges:
            return empty
        left = set(ranges)
        reader = self._clients.consumer(**_READER)
        try:
            reader.assign([TopicPartition(*part, at) for part, (at, _) in ranges.items()])
            until_s = time.monotonic() + LOOK_S
            while left and time.monotonic() < until_s:
                for message in reader.consume(len(left), 0.1):
                    part = message.topic(), message.partition()
                    at_end = _is_end(message)
                    if part not in left or (message.error() is not None and not at_end):
                        continue
                    if message.offset() >= ranges[part].end:
                        empty.add(part)
                    elif at_end:
                        continue  # outdated: there is more to come
                    left.discard(part)
        finally:
            reader.close()
        return empty


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF


def _is_in(streams: Mapping[str, StreamInfo], part: Partition) -> bool:
    topic, index = part
    return topic in streams and index < len(streams[topic].shards)


def _offsets(future: Any) -> dict[Partition, int]:
    try:
        found = future.result()
    except KafkaException as why:
        if error_of(why).code() == KafkaError.GROUP_ID_NOT_FOUND:
            return {}  # deleted meanwhile
        raise
    for part in found.topic_partitions:
        if part.error is not None:
            raise KafkaException(part.error)
    return {
        (part.topic, part.partition): part.offset
        for part in found.topic_partitions
        if part.offset >= 0
    }
