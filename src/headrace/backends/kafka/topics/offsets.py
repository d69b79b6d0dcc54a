"""Asks brokers for offsets: where partitions begin and end, and the first offset at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.failures import UNKNOWN_TOPIC, error_of
from headrace.backends.kafka.client.patient import ASK_S, PAUSE_S, PatientClient
from headrace.core.model import Bounds

Partition = tuple[str, int]
"""A topic and the index of one of its partitions."""

GONE = -1
"""In place of an offset: there is no such partition."""

NOTHING = -2
"""In place of an offset: no record is that late."""

_LATEST = -1
_EARLIEST = -2
CLOSE_S = 3 * ASK_S
"""How long closing waits for calls of the client: longer than any takes."""


class Offsets:
    """Asks with a consumer that fetches nothing: a fetch that waits for records would delay the
    answer."""

    def __init__(self, clients: Clients, patience_s: float, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._turn = threading.Lock()
        turn, make = self._turn, clients.consumer

        def rest(asker: Consumer) -> None:  # holds no reference to this object: see KafkaBackend
            if turn.acquire(timeout=PAUSE_S):
                try:
                    check_open()
                    asker.poll(PAUSE_S)
                finally:
                    turn.release()

        self._asker = PatientClient(make(), make, rest, clients, patience_s, check_open)

    def ask_bounds(self, partition: Partition) -> Bounds | None:
        """The first kept offset and the last stable one; None if there is no such partition."""
        (start,) = self._ask([partition], _EARLIEST)
        (end,) = self._ask([partition], _LATEST)
        return None if GONE in (start, end) else Bounds(start, max(start, end))

    def ask_all_bounds(self, partitions: Sequence[Partition]) -> list[Bounds | None]:
        """The same for several partitions, in two requests."""
        if not partitions:
            return []
        starts, ends = self._ask(partitions, _EARLIEST), self._ask(partitions, _LATEST)
        return [
            None if GONE in (start, end) else Bounds(start, max(start, end))
            for start, end in zip(starts, ends, strict=True)
        ]

    def ask_ends(
        self, partitions: Sequence[Partition], patience_s: float | None = None
    ) -> list[int]:
        """The last stable offsets, `GONE` where there is no such partition."""
        return self._ask(partitions, _LATEST, patience_s) if partitions else []

    def ask_offset_at(self, partition: Partition, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not earlier; None if all are earlier."""
        (found,) = self._ask([partition], timestamp_ms)
        return None if found < 0 else found

    def close(self) -> None:
        """Close the client when no call uses it: closing it under a call may crash the process."""
        # With a time limit: a signal handler that raised may have left the lock taken.
        if self._turn.acquire(timeout=CLOSE_S):
            self._asker.client.close()

    @contextmanager
    def _turn_to_ask(self) -> Iterator[None]:
        """One call at a time: in the queue of the client, calls wait without a time limit."""
        if not self._turn.acquire(timeout=ASK_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        try:
            self._check_open()
            yield
        finally:
            self._turn.release()

    def _ask(
        self, partitions: Sequence[Partition], when: int, patience_s: float | None = None
    ) -> list[int]:
        def ask(asker: Consumer) -> list[int]:
            left, found = set(partitions), dict[Partition, int]()
            while left:
                try:
                    found |= self._ask_known(asker, left, when)
                    left -= found.keys()
                except KafkaException as why:
                    if error_of(why).code() not in UNKNOWN_TOPIC:
                        raise
                # The client does not know some partitions; of several it may not say which.
                left -= self._ask_missing(asker, left)
            return [found.get(partition, GONE) for partition in partitions]

        return self._asker.patiently(ask, "asking for offsets", patience_s)

    def _ask_known(
        self, asker: Consumer, partitions: Iterable[Partition], when: int
    ) -> dict[Partition, int]:
        """The offsets of the partitions that the client knows."""
        wanted = [TopicPartition(*partition, when) for partition in sorted(partitions)]
        with self._turn_to_ask():
            answers = asker.offsets_for_times(wanted, timeout=ASK_S)
        found = {}
        for at in answers:
            if at.error is None:
                # A time behind the last record has no offset: the partition is there all the same.
                found[at.topic, at.partition] = at.offset if at.offset >= 0 else NOTHING
            elif at.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(at.error)
        return found

    def _ask_missing(self, asker: Consumer, partitions: Set[Partition]) -> set[Partition]:
        """The partitions that do not exist, by the word of a broker: while no broker answers, the
        client reports existing partitions as missing too."""
        missing = set()
        for topic in {topic for topic, _ in partitions}:
            with self._turn_to_ask():
                found = asker.list_topics(topic, timeout=ASK_S).topics[topic]
            if found.error is not None and found.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(found.error)
            missing |= {p for p in partitions if p[0] == topic and p[1] not in found.partitions}
        if partitions and not missing:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return missing
