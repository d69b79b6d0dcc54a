"""Asking brokers for offsets: where partitions begin and end, and what lies at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.backends.kafka.clients import Clients
from penstock.backends.kafka.failures import (
    AWAY,
    SILENT,
    UNKNOWN_TOPIC,
    error_of,
    raised,
    translated,
)
from penstock.core.errors import Unreachable
from penstock.core.model import Bounds

T = TypeVar("T")

Partition = tuple[str, int]
"""A topic and an index."""

GONE = -1
"""Instead of an offset: there is no such partition."""

NOTHING = -2
"""Instead of an offset: no record is that late."""

_LATEST = -1
_EARLIEST = -2
ASK_S = 2.0
CLOSE_S = 3 * ASK_S
"""Longer than any call of the client takes."""
PAUSE_S = 0.05


class Offsets:
    """Asks by a consumer that fetches nothing: a fetch that waits for records would hold up the
    answer."""

    def __init__(self, clients: Clients, patience_s: float, check_open: Callable[[], None]) -> None:
        self._clients = clients
        self._patience_s = patience_s
        self._check_open = check_open
        self._asker: Consumer = clients.consumer()
        self._turn = threading.Lock()

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
            self._asker.close()

    @contextmanager
    def _asking(self) -> Iterator[Consumer]:
        """One at a time: the client would let others wait in a queue that nobody can leave."""
        if not self._turn.acquire(timeout=ASK_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        try:
            self._check_open()
            yield self._asker
        finally:
            self._turn.release()

    def _pause(self) -> None:
        """The client tries again by itself meanwhile, and tells what troubles it."""
        if self._turn.acquire(timeout=PAUSE_S):
            try:
                self._check_open()
                self._asker.poll(PAUSE_S)
            finally:
                self._turn.release()

    def _at(
        self, partitions: Sequence[Partition], when: int, patience_s: float | None = None
    ) -> list[int]:
        def ask() -> list[int]:
            left, found = set(partitions), dict[Partition, int]()
            while left:
                try:
                    found |= self._asked(left, when)
                    left -= found.keys()
                except KafkaException as why:
                    if error_of(why).code() not in UNKNOWN_TOPIC:
                        raise
                # What the client does not know: some of it, or, of several, not even which.
                left -= self._missing(left)
            return [found.get(partition, GONE) for partition in partitions]

        return self.patiently(ask, "asking for offsets", patience_s)

    def _asked(self, partitions: Iterable[Partition], when: int) -> dict[Partition, int]:
        """Of those that the client knows."""
        wanted = [TopicPartition(*partition, when) for partition in sorted(partitions)]
        with self._asking() as asker:
            answers = asker.offsets_for_times(wanted, timeout=ASK_S)
        found = {}
        for at in answers:
            if at.error is None:
                # A time behind the last record has no offset: that is not a missing partition.
                found[at.topic, at.partition] = at.offset if at.offset >= 0 else NOTHING
            elif at.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(at.error)
        return found

    def _missing(self, partitions: Set[Partition]) -> set[Partition]:
        """Have it from a broker which are not there: while none answers, the client says so of what
        is there too."""
        missing = set()
        for topic in {topic for topic, _ in partitions}:
            with self._asking() as asker:
                found = asker.list_topics(topic, timeout=ASK_S).topics[topic]
            if found.error is not None and found.error.code() not in UNKNOWN_TOPIC:
                raise KafkaException(found.error)
            missing |= {p for p in partitions if p[0] == topic and p[1] not in found.partitions}
        if partitions and not missing:
            raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        return missing

    def patiently(self, ask: Callable[[], T], doing: str, patience_s: float | None = None) -> T:
        """What is asked for, as soon as a broker answers; `Unreachable` when patience is over."""
        patience_s = self._patience_s if patience_s is None else patience_s
        until_s = time.monotonic() + patience_s
        while True:
            self._check_open()
            asked_s = time.monotonic()
            try:
                answer = ask()
            except KafkaException as why:
                error = error_of(why)
                if error.code() not in AWAY:
                    raise translated(error, self._clients.settings, doing) from None
                if error.code() in SILENT:
                    self._clients.down(error, asked_s)
                if time.monotonic() >= until_s:
                    self._check_open()
                    wrong = raised(why, self._clients.settings, doing)
                    assert isinstance(wrong, Unreachable)
                    raise wrong from None
                self._pause()
            else:
                self._clients.up()
                return answer
