"""Asking brokers for offsets: where partitions begin and end, and what lies at a time."""

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
"""A topic and an index."""

GONE = -1
"""Instead of an offset: there is no such partition."""

NOTHING = -2
"""Instead of an offset: no record is that late."""

_LATEST = -1
_EARLIEST = -2
CLOSE_S = 3 * ASK_S
"""Longer than any call of the client takes."""


class Offsets:
    """Asks by a consumer that fetches nothing: a fetch that waits for records would hold up the
    answer."""

    def __init__(self, clients: Clients, patience_s: float, check_open: Callable[[], None]) -> None:
        self._check_open = check_open
        self._turn = threading.Lock()
        turn, make = self._turn, clients.consumer

        def rest(asker: Consumer) -> None:  # it does not know this one: see KafkaBackend
            if turn.acquire(timeout=PAUSE_S):
                try:
                    check_open()
                    asker.poll(PAUSE_S)
                finally:
                    turn.release()

        self._asker = PatientClient(make(), make, rest, clients, patience_s, check_open)

    def bounds(self, partition: Partition) -> Bounds | None:
        """From the first kept offset to the last stable one; None if there is no such partition."""
        (start,) = self._at([partition], _EARLIEST)
        (end,) = self._at([partition], _LATEST)
        return None if GONE in (start, end) else Bounds(start, max(start, end))

    def bounds_of(self, partitions: Sequence[Partition]) -> list[Bounds | None]:
        """The same for several."""
        if not partitions:
            return []
        starts, ends = self._at(partitions, _EARLIEST), self._at(partitions, _LATEST)
        return [
            None if GONE in (start, end) else Bounds(start, max(start, end))
            for start, end in zip(starts, ends, strict=True)
        ]

    def ends(self, partitions: Sequence[Partition], patience_s: float | None = None) -> list[int]:
        """The last stable offsets, `GONE` where there is no such partition."""
        return self._at(partitions, _LATEST, patience_s) if partitions else []

    def at_time(self, partition: Partition, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not earlier, None if all are."""
        (found,) = self._at([partition], timestamp_ms)
        return None if found < 0 else found

    def close(self) -> None:
        """Once nobody asks: a client that is closed under a call may take the process with it."""
        # A handler that raised at the wrong moment may have left it locked.
        if self._turn.acquire(timeout=CLOSE_S):
            self._asker.client.close()

    @contextmanager
    def _turn_to_ask(self) -> Iterator[None]:
        """One at a time: the client would let others wait in a queue that nobody can leave."""
        if not self._turn.acquire(timeout=ASK_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        try:
            self._check_open()
            yield
        finally:
            self._turn.release()

    def _at(
        self, partitions: Sequence[Partition], when: int, patience_s: float | None = None
    ) -> list[int]:
        def ask(asker: Consumer) -> list[int]:
            left, found = set(partitions), dict[Partition, int]()
            while left:
                try:
                    found |= self._asked(asker, left, when)
                    left -= found.keys()
                except KafkaException as why:
                    if error_of(why).code() not in UNKNOWN_TOPIC:
                        raise
                # What the client does not know: some of it, or, of several, not even which.
                left -= self._missing(asker, left)
            return [found.get(partition, GONE) for partition in partitions]

        return self._asker.patiently(ask, "asking for offsets", patience_s)

    def _asked(
        self, asker: Consumer, partitions: Iterable[Partition], when: int
    ) -> dict[Partition, int]:
        """Of those that the client knows."""
        wanted = [TopicPartition(*partition, when) for partition in sorted(partitions)]
        with self._turn_to_ask():
            answers = asker.offsets_for_times(wanted, timeout=ASK_S)
        found = {}
        for at in answers:
            if at.error is None:
                # A time behind the last record has no offset: that is not a missing partition.
                found[at.topic, at.partition] = at.offset if at.offset >= 0 else NOTHING
            elif at.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(at.error)
        return found

    def _missing(self, asker: Consumer, partitions: Set[Partition]) -> set[Partition]:
        """Have it from a broker which are not there: while none answers, the client says so of what
        is there too."""
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
