"""The cursors of a hub: a read takes one that is at its offset already, if there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.backends.kafka.client.clients import READING, Clients
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.topics.offsets import Offsets
from headrace.core.model import StreamInfo

PER_SHARD_MAX = 2
"""How many cursors are kept in one shard, at different offsets."""
IDLE_MAX = 32
"""How many cursors are kept: each has threads, a connection, and records fetched ahead."""
FETCH_S = 2 * READING["fetch.wait.max.ms"] / 1000
"""How long after it was unassigned a client may still wait for the answer to its last fetch."""
IDLE_S = 5.0
"""How long a cursor may be idle before it stops fetching."""


class Cursors:
    def __init__(self, clients: Clients, offsets: Offsets, patience_s: float) -> None:
        self._clients = clients
        self._offsets = offsets
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._idle: list[Cursor] = []
        """Cursors that no read uses now, the last used at the end."""
        self._closed = False
        self._resting: threading.Timer | None = None
        self._forgettings = 0

    @contextmanager
    def at(self, stream: StreamInfo, topic: str, shard: int, start: int) -> Iterator[Cursor]:
        """A cursor at that offset, for one read."""
        forgettings = self._forgettings
        cursor = self._take_idle(stream, shard, start)
        try:
            if not cursor.is_at(stream, shard, start):
                cursor.begin_at(stream, topic, shard, start)
            yield cursor
        except BaseException:
            cursor.unassign()  # records that it had taken were returned to no caller
            raise
        finally:
            self._put_back(cursor, forgettings)

    def forget(self) -> None:
        """Return no record that was fetched before now: some may be trimmed or deleted."""
        with self._lock:
            self._forgettings += 1
            for cursor in self._idle:
                cursor.unassign()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._resting is not None:
                self._resting.cancel()
        for cursor in idle:
            cursor.close()

    def _take_idle(self, stream: StreamInfo, shard: int, start: int) -> Cursor:
        with self._lock:
            there = [c for c in self._idle if c.is_at(stream, shard, start)]
            rested_s = time.monotonic() - FETCH_S
            free = [c for c in self._idle if c.stream is None and c.unassigned_s < rested_s]
            # Enough cursors are elsewhere in this shard: the one that was idle longest moves.
            same = [c for c in self._idle if c.is_in(stream, shard)]
            moving = same[:1] if len(same) >= PER_SHARD_MAX else []
            # Too many shards: take the newest cursor. Were it the oldest, a reader that goes round
            # through all shards would always lose the one that it needs next.
            last = self._idle[-1:] if len(self._idle) >= IDLE_MAX else []
            for cursor in (*there, *free, *moving, *last):
                self._idle.remove(cursor)
                return cursor
        return Cursor(self._clients, self._offsets, self._patience_s)

    def _put_back(self, cursor: Cursor, forgettings: int) -> None:
        cursor.used_s = time.monotonic()
        with self._lock:
            if self._forgettings != forgettings:
                cursor.unassign()
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
        """Unassign idle cursors: their clients would go on fetching."""
        now_s = time.monotonic()
        with self._lock:
            self._resting = None
            for cursor in self._idle:
                if now_s - cursor.used_s >= IDLE_S:
                    cursor.unassign()
            if not self._closed and any(cursor.stream is not None for cursor in self._idle):
                self._rest_later()
