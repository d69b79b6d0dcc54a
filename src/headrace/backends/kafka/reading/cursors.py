"""The cursors of a hub: one that stands at the right place is used again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.backends.kafka.client.clients import READING, Clients
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.topics.offsets import Offsets
from headrace.core.model import StreamInfo

STANDING_MAX = 2
"""So many stand in one shard at different places."""
IDLE_MAX = 32
"""So many are kept: each has threads, a connection, and records fetched ahead."""
FETCH_S = 2 * READING["fetch.wait.max.ms"] / 1000
"""So long after it has left its place a client may still wait for an answer to its last fetch."""
IDLE_S = 5.0
"""Who has not been asked so long fetches nothing any more."""


class Cursors:
    def __init__(self, clients: Clients, offsets: Offsets, patience_s: float) -> None:
        self._clients = clients
        self._offsets = offsets
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._idle: list[Cursor] = []
        """Those used last at the end."""
        self._closed = False
        self._resting: threading.Timer | None = None
        self._forgettings = 0

    @contextmanager
    def at(self, stream: StreamInfo, topic: str, shard: int, start: int) -> Iterator[Cursor]:
        """A cursor that stands there."""
        forgettings = self._forgettings
        cursor = self._picked(stream, shard, start)
        try:
            if not cursor.stands_at(stream, shard, start):
                cursor.place(stream, topic, shard, start)
            yield cursor
        except BaseException:
            cursor.leave()  # what it had taken from the client was handed to nobody
            raise
        finally:
            self._put_back(cursor, forgettings)

    def forget(self) -> None:
        """Hand out nothing that was fetched before now: some of it may be gone."""
        with self._lock:
            self._forgettings += 1
            for cursor in self._idle:
                cursor.leave()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._resting is not None:
                self._resting.cancel()
        for cursor in idle:
            cursor.close()

    def _picked(self, stream: StreamInfo, shard: int, start: int) -> Cursor:
        with self._lock:
            there = [c for c in self._idle if c.stands_at(stream, shard, start)]
            rested_s = time.monotonic() - FETCH_S
            free = [c for c in self._idle if c.stream is None and c.left_s < rested_s]
            # Enough that stand elsewhere in this shard: the one left alone longest moves.
            same = [c for c in self._idle if c.stands_in(stream, shard)]
            moving = same[:1] if len(same) >= STANDING_MAX else []
            # Too many shards: whoever goes round through all of them would always find the one
            # gone that he needs next, were it the oldest.
            last = self._idle[-1:] if len(self._idle) >= IDLE_MAX else []
            for cursor in (*there, *free, *moving, *last):
                self._idle.remove(cursor)
                return cursor
        return Cursor(self._clients, self._offsets, self._patience_s)

    def _put_back(self, cursor: Cursor, forgettings: int) -> None:
        cursor.used_s = time.monotonic()
        with self._lock:
            if self._forgettings != forgettings:
                cursor.leave()
            kept = not self._closed and len(self._idle) < IDLE_MAX
            if kept:
                self._idle.append(cursor)
                if self._resting is None:
                    self._rest_later()
        if not kept:
            cursor.close()

    def _rest_later(self) -> None:
        self._resting = threading.Timer(IDLE_S, self._rest)
        self._resting.name = "headrace-kafka-rest"
        self._resting.daemon = True
        self._resting.start()

    def _rest(self) -> None:
        """A client that nobody asks would go on asking its broker."""
        now_s = time.monotonic()
        with self._lock:
            self._resting = None
            for cursor in self._idle:
                if now_s - cursor.used_s >= IDLE_S:
                    cursor.leave()
            if not self._closed and any(cursor.stream is not None for cursor in self._idle):
                self._rest_later()
