"""Records that a client has fetched of one partition, taken from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.backends.kafka.reading.columns import ColumnRecords
from headrace.backends.kafka.reading.listed import ListedRecords, headers_of, sorted_out

MESSAGES = 500
"""How many messages are taken in one call: measured, more or fewer are slower."""


class Trouble(NamedTuple):
    """An error that the client reports in place of a record; the end of a partition is one too."""

    offset: int
    error: KafkaError


class Taken(NamedTuple):
    """What one call of ``take`` got from the client."""

    records: ListedRecords | ColumnRecords | None
    troubles: Sequence[Trouble] = ()
    unreadable: int | None = None
    """The offset of a record behind ``records`` that cannot be decoded."""


class Fetched(Protocol):
    """A client that fetches one partition ahead. Used by one thread at a time."""

    def assign(self, topic: str, shard: int, start: int) -> None:
        """Fetch this partition, from that offset on."""

    def unassign(self) -> None:
        """Fetch nothing any more."""

    def take(self, count: int, nbytes: int, wait_s: float) -> Taken:
        """Take at most ``count`` records and about ``nbytes`` bytes of what was fetched. Up to
        ``wait_s`` it waits for the first record, and may wait for the others too."""

    def revive(self) -> None:
        """Give the client its brokers' addresses again: see `patient`."""

    def position(self) -> int:
        """The offset behind all that was taken, and behind the gap that follows."""

    def close(self) -> None: ...


class FetchedMessages:
    """Takes the client's own messages: a Python object for each record."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._at = TopicPartition("")

    def assign(self, topic: str, shard: int, start: int) -> None:
        self._at = TopicPartition(topic, shard)
        self._consumer.assign([TopicPartition(topic, shard, start)])

    def unassign(self) -> None:
        self._consumer.unassign()

    def take(self, count: int, nbytes: int, wait_s: float) -> Taken:
        messages = self._consumer.consume(min(count, MESSAGES), wait_s)
        if not messages:
            return Taken(None)
        messages, times, errors = sorted_out(messages)
        # Other errors are about the client's group, which reading by assignment does not need.
        troubles = [
            Trouble(message.offset(), message.error())
            for message in errors
            if self._is_here(message)
        ]
        headers = headers_of(messages)
        unreadable = None
        if len(headers) < len(messages):
            unreadable = messages[len(headers)].offset()
            messages = messages[: len(headers)]
        records = ListedRecords.of(messages, times[: len(messages)], headers) if messages else None
        return Taken(records, troubles, unreadable)

    def _is_here(self, message: Message) -> bool:
        here: bool = (message.topic(), message.partition()) == (self._at.topic, self._at.partition)
        return here

    def revive(self) -> None:
        """Nothing: that needs ``columns.c``. When patience is over, the client is replaced."""

    def position(self) -> int:
        (position,) = self._consumer.position([self._at])
        found: int = position.offset
        return found

    def close(self) -> None:
        self._consumer.close()
