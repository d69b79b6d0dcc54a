"""Seeing that something was written by anybody: a long poll at the ends of what was asked for."""

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
"""So long the client is asked at once: it does not answer signals meanwhile."""
WATCHED_MAX = 10_000
WATCHED_S = 600.0
"""Who has not been asked about so long is not watched any more."""
MISSED_MAX = 3
"""A client that has missed so many changes in a row hears of none: see `asked`."""
_WATCHING: dict[str, Any] = {
    "queued.min.messages": 1,
    "fetch.message.max.bytes": 1,
    "fetch.wait.max.ms": 500,
    "fetch.queue.backoff.ms": 100,
}


class ChangeWatch:
    """Watches the partitions that this process has asked about."""

    def __init__(self, clients: Clients, offsets: Offsets, check_open: Callable[[], None]) -> None:
        self._clients = clients
        self._offsets = offsets
        self._check_open = check_open
        self._changed = threading.Condition()
        self._asked_s: dict[Partition, float] = {}
        self._done_here = 0
        self._watcher: Consumer | None = None
        self._watching = False
        self._has_told = False
        """Whether the client has told of anything yet."""
        self._missed = 0

    def ask_about(self, partitions: Iterable[Partition]) -> None:
        now_s = time.monotonic()
        with self._changed:
            self._asked_s.update(dict.fromkeys(partitions, now_s))
            if len(self._asked_s) > WATCHED_MAX:
                for partition in sorted(self._asked_s, key=self._asked_s.__getitem__)[:1000]:
                    del self._asked_s[partition]

    def told(self) -> None:
        """Something was created or deleted here."""
        with self._changed:
            self._done_here += 1
            self._changed.notify_all()

    def number(self, patience_s: float | None = None) -> int:
        return self._number(self._ends(patience_s))

    def wait(self, seen: int, timeout_s: float) -> int:
        """`number` as soon as it is another one, or after the time."""
        until_s = time.monotonic() + timeout_s
        heard: bool | None = None
        while True:
            self._check_open()
            try:
                ends = self._ends(0.0)
            except Unreachable:
                ends = None  # it will be told again: the time goes on
            if ends is not None and self._number(ends) != seen:
                self._note_change(heard)
                return self._number(ends)
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return seen
            heard = self._sleep(ends, left_s)

    def close(self) -> None:
        with self._changed:
            self._changed.notify_all()
            watcher, self._watcher = self._watcher, None
            watching = self._watching
        if watcher is not None and not watching:
            watcher.close()

    def _note_change(self, heard: bool | None) -> None:
        """Whether the client has told of it, None if it was not asked."""
        if heard is None:
            return
        with self._changed:
            self._missed = 0 if heard or not self._has_told else self._missed + 1
            if self._missed < MISSED_MAX or self._watching:
                return
            watcher, self._watcher, self._missed = self._watcher, None, 0
        if watcher is not None:
            close_within(watcher.close, 0.0)

    def _number(self, ends: dict[Partition, int]) -> int:
        return hash((self._done_here, tuple(sorted(ends.items()))))

    def _ends(self, patience_s: float | None) -> dict[Partition, int]:
        oldest_s = time.monotonic() - WATCHED_S
        with self._changed:
            partitions = [p for p, asked_s in self._asked_s.items() if asked_s > oldest_s]
        ends = dict(zip(partitions, self._offsets.ends(partitions, patience_s), strict=True))
        gone = [partition for partition, end in ends.items() if end == GONE]
        with self._changed:
            for partition in gone:
                self._asked_s.pop(partition, None)  # whoever asks about it again will be told
        return {partition: end for partition, end in ends.items() if end != GONE}

    def _sleep(self, ends: dict[Partition, int] | None, left_s: float) -> bool | None:
        """Until something may have changed; one thread watches for all. Whether the client has told
        of something, None if it was not asked."""
        with self._changed:
            self._check_open()
            if ends is None or not ends or self._watching:
                self._changed.wait(min(left_s, SLICE_S))
                return None
            self._watching = True
        try:
            return self._watched(ends, left_s)
        finally:
            with self._changed:
                self._watching = False
                self._changed.notify_all()

    def _watched(self, ends: dict[Partition, int], left_s: float) -> bool | None:
        watcher = self._watcher
        if watcher is None:
            watcher = self._watcher = self._clients.consumer(**_WATCHING)
            self._has_told = False
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
                    self._has_told = True
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
