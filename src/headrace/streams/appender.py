"""Append in the background: records are gathered for a moment and committed together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from headrace.core.errors import Closed
from headrace.core.model import RecordId, StreamInfo
from headrace.core.ports import Append, Codec, Log, Place
from headrace.core.quantities import Duration, Instant, seconds
from headrace.core.records.batch import Batch
from headrace.core.records.row import ROW_OVERHEAD, Row
from headrace.streams.encoding import Headers, Key, row_of


class _OneCommit:
    """Records that are committed together."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.count = 0
        self.nbytes = 0
        self.finished = threading.Event()
        """Set once the records are durable, or `error` says why they are not."""
        self.places: dict[int, Place] = {}
        self.error: BaseException | None = None

    def add(self, shard: int, row: Row, nbytes: int) -> int:
        """Add a record; returns its position among those for its shard."""
        rows = self.rows.setdefault(shard, [])
        rows.append(row)
        self.count += 1
        self.nbytes += nbytes
        return len(rows) - 1


class Pending:
    """A record that an `Appender` has taken; `result` waits until it is durable."""

    __slots__ = ("_commit", "_row", "_shard", "_stream")

    def __init__(self, stream: str, commit: _OneCommit, shard: int, row: int) -> None:
        self._stream = stream
        self._commit = commit
        self._shard = shard
        self._row = row

    def done(self) -> bool:
        """Whether the record is durable, or cannot be written any more."""
        return self._commit.finished.is_set()

    def result(self, timeout: Duration | None = None) -> RecordId:
        """Wait until the record is durable; returns its id.

        Raises the error that kept the record from being written, or `TimeoutError` after
        ``timeout``."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        place = self._commit.places[self._shard]
        return RecordId(self._stream, self._shard, place.of(self._row))

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Wait as `result` does; returns the error that kept the record from being written, or None
        if the record is durable.

        Raises `TimeoutError` after ``timeout``.

        >>> import headrace
        >>> orders = headrace.open("memory:").create_stream("shop/orders", shards=1, codec="json")
        >>> with orders.appender() as out:
        ...     pending = out.append({"id": 2}, key="bob")
        >>> pending.exception() is None
        True
        """
        if not self._commit.finished.wait(None if timeout is None else seconds(timeout)):
            raise TimeoutError(f"a record for {self._stream}:{self._shard} is not written yet")
        return self._commit.error


class Appender:
    """Made by `Stream.appender`. After an error an appender takes no more records, because they
    would come out of order."""

    def __init__(
        self,
        records: Log,
        info: StreamInfo,
        codec: Codec,
        shard_for: Callable[[bytes | None, int | None], int],
        linger_s: float,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self._records = records
        self._info = info
        self._codec = codec
        self._shard_for = shard_for
        self._linger_s = linger_s
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._filling = _OneCommit()
        self._filling_since = 0.0
        self._keyless_shard = -1
        self._committing: _OneCommit | None = None
        self._flushing = False
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
        """Take one record. Waits while one commit is being written and the next one is full."""
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
            commit = self._filling
            if commit.count == 1 or self._full(0):
                self._changed.notify_all()
            return Pending(self._info.name, commit, target, at)

    def flush(self) -> None:
        """Wait until all records taken so far are durable; raises the error if one cannot be."""
        with self._lock:
            last = self._filling if self._filling.count else self._committing
            self._flushing = self._filling.count > 0
            self._changed.notify_all()
        if last is not None:
            last.finished.wait()
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """Flush and end; raises the error if a record cannot be written."""
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
        commit = self._filling
        if not commit.count:
            return False
        return commit.count >= self._max_records or commit.nbytes + more_bytes > self._max_bytes

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as why:  # else a caller would wait for ever for this thread
            self._break(self._filling, why)
            self._filling.finished.set()

    def _serve(self) -> None:
        while (commit := self._next()) is not None:
            try:
                self._store(commit)
            except BaseException as why:  # raised by `Pending.result` of each of its records
                self._break(commit, why)
            commit.finished.set()
            with self._lock:
                self._committing = None
                self._changed.notify_all()

    def _next(self) -> _OneCommit | None:
        """Wait for the next records to commit: until they are enough, have waited for the linger
        time, or the appender is closed. None after the last ones."""
        with self._lock:
            while True:
                commit = self._filling
                waited_s = time.monotonic() - self._filling_since
                now = self._full(1) or self._closed or self._flushing
                if commit.count and (now or waited_s >= self._linger_s):
                    self._filling, self._committing = _OneCommit(), commit
                    self._flushing = False
                    self._changed.notify_all()
                    return commit
                if self._closed:
                    return None
                self._changed.wait(self._linger_s - waited_s if commit.count else None)

    def _store(self, commit: _OneCommit) -> None:
        if self._broken is not None:
            raise self._broken
        parts = [
            Append(self._info, shard, Batch.of_rows(rows), each=True)
            for shard, rows in commit.rows.items()
        ]
        for place in self._records.append(parts):
            commit.places[place.shard] = place

    def _break(self, commit: _OneCommit, why: BaseException) -> None:
        """No record is taken from now on; ``why`` is raised instead."""
        commit.error = why
        with self._lock:
            self._broken = why
