"""What the client has fetched of one partition, taken from it as chunks of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.backends.kafka.reading.columns import ColumnRecords
from headrace.backends.kafka.reading.listed import ListedRecords, headers_of, sorted_out

MESSAGES = 500
"""So many at once are quickest: specs of the client, measured."""


class Trouble(NamedTuple):
    """What the client says instead of handing out a record; also that there are no more."""

    offset: int
    error: KafkaError


class Arrived(NamedTuple):
    chunk: ListedRecords | ColumnRecords | None
    troubles: Sequence[Trouble] = ()
    unreadable: int | None = None
    """The offset of a record behind the chunk that cannot be handed out."""


class Fetched(Protocol):
    """Used by one thread at a time."""

    def stand(self, topic: str, shard: int, start: int) -> None:
        """Fetch from there on."""

    def leave(self) -> None:
        """Fetch nothing any more."""

    def take(self, count: int, nbytes: int, wait_s: float) -> Arrived:
        """What is there, at most so many records, and about so many bytes; waits for the first
        record, and for more if more are asked for."""

    def revive(self) -> None:
        """In case that the client has no broker to ask any more."""

    def position(self) -> int:
        """Behind what was taken, and behind the gaps that follow."""

    def close(self) -> None: ...


class FetchedMessages:
    """By the messages that the client makes, a Python object for each."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._at = TopicPartition("")

    def stand(self, topic: str, shard: int, start: int) -> None:
        self._at = TopicPartition(topic, shard)
        self._consumer.assign([TopicPartition(topic, shard, start)])

    def leave(self) -> None:
        self._consumer.unassign()

    def take(self, count: int, nbytes: int, wait_s: float) -> Arrived:
        messages = self._consumer.consume(min(count, MESSAGES), wait_s)
        if not messages:
            return Arrived(None)
        records, times, told = sorted_out(messages)
        # Others are of the group that the client has, and that reading by assignment does not need.
        troubles = [
            Trouble(message.offset(), message.error()) for message in told if self._is_here(message)
        ]
        headers = headers_of(records)
        unreadable = None
        if len(headers) < len(records):
            unreadable = records[len(headers)].offset()
            records = records[: len(headers)]
        chunk = ListedRecords.of(records, times[: len(records)], headers) if records else None
        return Arrived(chunk, troubles, unreadable)

    def _is_here(self, message: Message) -> bool:
        here: bool = (message.topic(), message.partition()) == (self._at.topic, self._at.partition)
        return here

    def revive(self) -> None:
        """Out of reach: another client takes its place once patience is over."""

    def position(self) -> int:
        (position,) = self._consumer.position([self._at])
        found: int = position.offset
        return found

    def close(self) -> None:
        self._consumer.close()
