"""Notices that records were written, by any process: a long poll at the ends of partitions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.unresponsive import close_within
from headrace.backends.kafka.topics.offsets import GONE, Offsets, Partition
from headrace.core.errors import Unreachable

SLICE_S = 0.1
"""How long one call of the client waits: Python handles no signal meanwhile."""
WATCHED_MAX = 10_000
"""How many partitions are watched."""
WATCHED_S = 600.0
"""How long a partition is watched after the last call about it."""
MISSED_MAX = 3
"""How many changes in a row a client may miss before it is replaced: see `patient`."""
_WATCHING: dict[str, Any] = {
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.queue.backoff.ms": 100,
}


class ChangeWatch:
    """Watches the partitions that calls of this process were about."""

    def __init__(self, clients: Clients, offsets: Offsets, check_open: Callable[[], None]) -> None:
        self._clients = clients
        self._offsets = offsets
        self._check_open = check_open
        self._changed = threading.Condition()
        self._asked_s: dict[Partition, float] = {}
        self._done_here = 0
        self._watcher: Consumer | None = None
        self._watching = False
        self._has_reported = False
        """Whether the client has reported anything yet."""
        self._missed = 0

    def watch(self, partitions: Iterable[Partition]) -> None:
        """Watch these partitions from now on."""
        now_s = time.monotonic()
        with self._changed:
            self._asked_s.update(dict.fromkeys(partitions, now_s))
            if len(self._asked_s) > WATCHED_MAX:
                for partition in sorted(self._asked_s, key=self._asked_s.__getitem__)[:1000]:
                    del self._asked_s[partition]

    def note_change(self) -> None:
        """A stream was created, deleted or trimmed by this process."""
        with self._changed:
            self._done_here += 1
            self._changed.notify_all()

    def ask_number(self, patience_s: float | None = None) -> int:
        """A number that is another one after each change."""
        return self._number(self._ask_ends(patience_s))

    def wait(self, seen: int, timeout_s: float) -> int:
        """The number, as soon as it differs from ``seen``, or after the time."""
        until_s = time.monotonic() + timeout_s
        reported: bool | None = None
        while True:
            self._check_open()
            try:
                ends = self._ask_ends(0.0)
            except Unreachable:
                ends = None  # try again until the time is over
            if ends is not None and self._number(ends) != seen:
                self._count_missed(reported)
                return self._number(ends)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return seen
            reported = self._sleep(ends, left_s)

    def close(self) -> None:
        with self._changed:
            self._changed.notify_all()
            watcher, self._watcher = self._watcher, None
            watching = self._watching
        if watcher is not None and not watching:
            watcher.close()

    def _count_missed(self, reported: bool | None) -> None:
        """Replace a client that misses changes; ``reported`` says whether it has reported this
        one, None that it was not asked."""
        if reported is None:
            return
        with self._changed:
            self._missed = 0 if reported or not self._has_reported else self._missed + 1
            if self._missed < MISSED_MAX or self._watching:
                return
            watcher, self._watcher, self._missed = self._watcher, None, 0
        if watcher is not None:
            close_within(watcher.close, 0.0)

    def _number(self, ends: dict[Partition, int]) -> int:
        return hash((self._done_here, tuple(sorted(ends.items()))))

    def _ask_ends(self, patience_s: float | None) -> dict[Partition, int]:
        oldest_s = time.monotonic() - WATCHED_S
        with self._changed:
            partitions = [p for p, asked_s in self._asked_s.items() if asked_s > oldest_s]
        ends = dict(zip(partitions, self._offsets.ask_ends(partitions, patience_s), strict=True))
        gone = [partition for partition, end in ends.items() if end == GONE]
        with self._changed:
            for partition in gone:
                self._asked_s.pop(partition, None)  # the next call about it raises
        return {partition: end for partition, end in ends.items() if end != GONE}

    def _sleep(self, ends: dict[Partition, int] | None, left_s: float) -> bool | None:
        """Sleep until there may be a change; one thread watches for all. Whether the client has
        reported one; None if it was not asked."""
        with self._changed:
            self._check_open()
            if ends is None or not ends or self._watching:
                self._changed.wait(min(left_s, SLICE_S))
                return None
            self._watching = True
        try:
            return self._poll(ends, left_s)
        finally:
            with self._changed:
                self._watching = False
                self._changed.notify_all()

    def _poll(self, ends: dict[Partition, int], left_s: float) -> bool | None:
        watcher = self._watcher
        if watcher is None:
            watcher = self._watcher = self._clients.consumer(**_WATCHING)
            self._has_reported = False
        watcher.assign([TopicPartition(*partition, end) for partition, end in ends.items()])
        until_s = time.monotonic() + left_s
        done_here, asked = self._done_here, len(self._asked_s)
        try:
            while True:
                self._check_open()
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                if (self._done_here, len(self._asked_s)) != (done_here, asked):
                    return None
                for message in watcher.consume(1, min(left_s, SLICE_S)):
                    self._has_reported = True
                    error = message.error()
                    partition = message.topic(), message.partition()
                    if (
                        error is None
                        or error.code() != KafkaError._PARTITION_EOF
                        or message.offset() > ends.get(partition, 0)
                    ):
                        return True
        finally:
            watcher.unassign()
            if self._watcher is None:
                watcher.close()  # the hub was closed meanwhile
