"""Appending in the background: records are gathered for a moment and committed together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from headrace.core.errors import Closed
from headrace.core.model import RecordId, StreamInfo
from headrace.core.ports import Append, Backend, Codec, Place
from headrace.core.quantities import Duration, Instant, seconds
from headrace.core.records.batch import Batch
from headrace.core.records.row import ROW_OVERHEAD, Row
from headrace.streams.encoding import Headers, Key, row_of


class _Flight:
    """Records that are committed together."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.count = 0
        self.nbytes = 0
        self.landed = threading.Event()
        self.places: dict[int, Place] = {}
        self.error: BaseException | None = None

    def add(self, shard: int, row: Row, nbytes: int) -> int:
        rows = self.rows.setdefault(shard, [])
        rows.append(row)
        self.count += 1
        self.nbytes += nbytes
        return len(rows) - 1


class Pending:
    """A record on its way; `result` waits until it is durable."""

    __slots__ = ("_flight", "_row", "_shard", "_stream")

    def __init__(self, stream: str, flight: _Flight, shard: int, row: int) -> None:
        self._stream = stream
        self._flight = flight
        self._shard = shard
        self._row = row

    def done(self) -> bool:
        return self._flight.landed.is_set()

    def result(self, timeout: Duration | None = None) -> RecordId:
        """The record's id, or the error that kept it from being written; `TimeoutError` after the
        time."""
        if not self._flight.landed.wait(None if timeout is None else seconds(timeout)):
            raise TimeoutError(f"a record for {self._stream}:{self._shard} is not written yet")
        if self._flight.error is not None:
            raise self._flight.error
        place = self._flight.places[self._shard]
        return RecordId(self._stream, self._shard, place.of(self._row))


class Appender:
    """Made by `Stream.appender`. After an error it takes no more records: order would be lost."""

    def __init__(
        self,
        backend: Backend,
        info: StreamInfo,
        codec: Codec,
        shard_for: Callable[[bytes | None, int | None], int],
        linger_s: float,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self._backend = backend
        self._info = info
        self._codec = codec
        self._shard_for = shard_for
        self._linger_s = linger_s
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._filling = _Flight()
        self._filling_since = 0.0
        self._keyless_shard = -1
        self._flying: _Flight | None = None
        self._hurry = False
        self._closed = False
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-appender", daemon=True)
        self._thread.start()

    def append(
        self,
        value: Any,
        key: Key = None,
        *,
        headers: Headers = (),
        timestamp: Instant | None = None,
        sequence: int = 0,
        flags: int = 0,
        trace: bytes | str | None = None,
        shard: int | None = None,
    ) -> Pending:
        """Take one record; waits while two commits' worth of records are on their way."""
        row = row_of(self._codec, value, key, headers, timestamp, sequence, flags, trace)
        nbytes = row.nbytes + ROW_OVERHEAD
        with self._lock:
            self._changed.wait_for(lambda: self._closed or self._broken or not self._full(nbytes))
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise Closed(f"the appender of {self._info.name} was closed")
            target = self._target(row, shard)
            if not self._filling.count:
                self._filling_since = time.monotonic()
            at = self._filling.add(target, row, nbytes)
            flight = self._filling
            if flight.count == 1 or self._full(0):
                self._changed.notify_all()
            return Pending(self._info.name, flight, target, at)

    def flush(self) -> None:
        """Return once everything taken so far is durable, or raise what kept it from being so."""
        with self._lock:
            last = self._filling if self._filling.count else self._flying
            self._hurry = self._filling.count > 0
            self._changed.notify_all()
        if last is not None:
            last.landed.wait()
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Flush and stop; raises what kept a record from being written."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self._broken is not None:
            raise self._broken

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _target(self, row: Row, shard: int | None) -> int:
        if shard is not None or row.key is not None:
            return self._shard_for(row.key, shard)
        if not self._filling.count or self._keyless_shard < 0:
            self._keyless_shard = self._shard_for(None, None)
        return self._keyless_shard

    def _full(self, more_bytes: int) -> bool:
        flight = self._filling
        if not flight.count:
            return False
        return flight.count >= self._max_records or flight.nbytes + more_bytes > self._max_bytes

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as why:  # nobody must wait for a thread that is gone
            self._break(self._filling, why)
            self._filling.landed.set()

    def _serve(self) -> None:
        while (flight := self._next()) is not None:
            try:
                self._commit(flight)
            except BaseException as why:  # whoever waits for a record of it gets it raised
                self._break(flight, why)
            flight.landed.set()
            with self._lock:
                self._flying = None
                self._changed.notify_all()

    def _next(self) -> _Flight | None:
        """The next records to commit: when there are enough, when they have waited enough, or at
        the end."""
        with self._lock:
            while True:
                flight = self._filling
                waited_s = time.monotonic() - self._filling_since
                ready = self._full(1) or self._closed or self._hurry or waited_s >= self._linger_s
                if flight.count and ready:
                    self._filling, self._flying = _Flight(), flight
                    self._hurry = False
                    self._changed.notify_all()
                    return flight
                if self._closed:
                    return None
                self._changed.wait(self._linger_s - waited_s if flight.count else None)

    def _commit(self, flight: _Flight) -> None:
        if self._broken is not None:
            raise self._broken
        parts = [
            Append(self._info, shard, Batch.of_rows(rows), each=True)
            for shard, rows in flight.rows.items()
        ]
        for place in self._backend.append(parts):
            flight.places[place.shard] = place

    def _break(self, flight: _Flight, why: BaseException) -> None:
        flight.error = why
        with self._lock:
            self._broken = why
