"""The one thread of a process that writes: the writes of several callers become one synced
transaction.

Callers wait outside of LMDB. So a signal reaches them, although LMDB's write lock knows no time
limit. A caller that gives up takes its write back, if no transaction has begun it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import lmdb

from headrace.backends.lmdb.environment import Environment
from headrace.backends.lmdb.failures import store_error
from headrace.backends.lmdb.lock_holder import HolderFile, holder_of
from headrace.core.errors import Closed, HeadraceError, UnknownOutcome
from headrace.core.records.row import COMMIT_BYTES_MAX
from headrace.process.failpoints import FailPoint, failpoint
from headrace.process.queues import taken_within

log = logging.getLogger("headrace")

STUCK_WARN_S = 5.0
WRITE_TIMEOUT_S = 30.0
CLOSE_S = 5.0
END_S = 1.0
GATHER_S = 0.0005

T = TypeVar("T")
Work = Callable[[Any], T]
"""A function that gets the LMDB transaction. It looks first and writes last, so that its own
refusal leaves nothing behind."""


class _Request(Generic[T]):
    """One caller's work, and what became of it."""

    __slots__ = ("_answered", "error", "nbytes", "result", "taken", "work")

    def __init__(self, work: Work[T], nbytes: int) -> None:
        self.work = work
        self.nbytes = nbytes
        self.taken = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._answered = threading.Lock()
        self._answered.acquire()

    def answer(self) -> None:
        self._answered.release()

    def answered(self, timeout_s: float) -> bool:
        return self._answered.acquire(timeout=timeout_s)


class Writer:
    def __init__(self, environment: Environment, on_commit: Callable[[], None]) -> None:
        self._environment = environment
        self._on_commit = on_commit
        self._holder_file = HolderFile(environment.directory)
        self._queue: queue.SimpleQueue[_Request[Any] | None] = queue.SimpleQueue()
        self._ahead: deque[_Request[Any]] = deque()
        """The requests that are out of the queue and in no transaction yet."""
        self._last_count = 1
        self._ending = False
        self._drained = threading.Event()
        self._taking = threading.RLock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="headrace-writer", daemon=True)
        self._thread.start()

    def write(self, work: Work[T], *, nbytes: int = 0, timeout_s: float = WRITE_TIMEOUT_S) -> T:
        """Run ``work`` in a transaction; returns its result once that is durable."""
        self._environment.check_usable()
        request = _Request(work, nbytes)
        with self._taking:
            if self._closed:
                raise Closed(f"the hub {self._environment.directory} was closed")
            self._queue.put(request)
        if not request.answered(min(STUCK_WARN_S, timeout_s)):
            self._wait_longer(request, timeout_s)
        if request.error is not None:
            raise request.error
        result: T = request.result
        return result

    def close(self) -> None:
        """End the thread, which closes the environment. If the thread waits for a lock that a
        stopped process holds, it does so when it gets the lock."""
        with self._taking:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if self._environment.in_use_here():
            return  # a signal handler asks during a read; the thread waits for that read
        if self._drained.wait(CLOSE_S):
            # It takes longer only if a signal handler asks whose thread was at the map lock.
            self._thread.join(END_S)
        if self._thread.is_alive():
            directory = self._environment.directory
            log.warning(
                "hub=%s: not closed yet, it will be closed when that is possible; %s",
                directory,
                self._held(),
            )

    def _wait_longer(self, request: _Request[Any], timeout_s: float) -> None:
        directory = self._environment.directory
        waited_s = min(STUCK_WARN_S, timeout_s)
        log.warning("hub=%s: waiting to write since %g s, %s", directory, waited_s, self._held())
        if request.answered(max(timeout_s - STUCK_WARN_S, 0)):
            return
        withdrawn = self._take(request)
        if not withdrawn and request.answered(0):
            return
        fate = "was taken back and will not happen" if withdrawn else "may still happen"
        raise UnknownOutcome(
            f"no answer from {directory} within {timeout_s:g} s, {self._held()}: the write {fate}; "
            "a retry with the same producer and producer_seq is safe",
            withdrawn=withdrawn,
        )

    def _held(self) -> str:
        holder = holder_of(self._environment.directory)
        return (
            f"the write lock is held by {holder}"
            if holder
            else "no process says that it holds the write lock"
        )

    def _run(self) -> None:
        while self._gathered():
            self._write_together()
        self._drained.set()
        self._holder_file.close()
        self._environment.close()

    def _gathered(self) -> bool:
        """Wait for requests. Returns True once there is one, False at the end.

        The callers of the last commit mostly come back at once. So a moment's wait makes one commit
        of all of them, instead of one for the quickest and another for the rest."""
        if not self._ahead and not self._ending:
            self._take_in(self._queue.get())
        until = time.monotonic() + GATHER_S
        while len(self._ahead) < self._last_count and not self._ending:
            try:
                self._take_in(taken_within(self._queue, max(until - time.monotonic(), 0)))
            except queue.Empty:
                break
        return bool(self._ahead)

    def _take_in(self, request: _Request[Any] | None) -> None:
        if request is None:
            self._ending = True
        else:
            self._ahead.append(request)

    def _write_together(self) -> None:
        group: list[_Request[Any]] = []
        try:
            failpoint("write.waiting")
            while not self._committed(group):
                self._environment.grow()
        except lmdb.PanicError:
            self._reopen(self._concerned(group))
        except (lmdb.Error, OSError) as why:
            for request in self._concerned(group):
                request.error = store_error(why, self._environment.directory)
            # A failed write of the index page looks like any other error, but then LMDB panics.
            if self._environment.panicked():
                self._reopen(group)
        except Exception as why:
            for request in self._concerned(group):
                request.error = why
        self._last_count = max(len(group), 1)
        for request in group:
            request.answer()
        try:
            failpoint("write.acknowledged")
        except (FailPoint, OSError) as why:
            log.error("hub=%s: %s", self._environment.directory, why)

    def _concerned(self, group: list[_Request[Any]]) -> list[_Request[Any]]:
        """The requests that get an error: the first one in line, if none was in the transaction
        yet."""
        if not group:
            group.append(self._ahead.popleft())
        return group

    def _committed(self, group: list[_Request[Any]]) -> bool:
        """Commit one transaction for the waiting requests. Returns False if the map was too
        small."""
        txn = self._environment.begin_write()
        try:
            self._holder_file.lock_taken()
            failpoint("write.locked")
            if not group:
                self._gather(group)
            for request in group:
                _apply(request, txn)
            self._environment.check_present()
            failpoint("write.before-commit")
            txn.commit()
        except lmdb.MapFullError:
            txn.abort()
            return False
        except BaseException:
            txn.abort()
            raise
        finally:
            self._holder_file.lock_released()
            self._environment.end_write()
        failpoint("write.after-commit")
        self._on_commit()
        return True

    def _gather(self, group: list[_Request[Any]]) -> None:
        """Take the waiting requests into the group, up to what one commit may hold."""
        while not self._queue.empty():
            self._take_in(self._queue.get())
        nbytes = 0
        while self._ahead and (not group or nbytes + self._ahead[0].nbytes <= COMMIT_BYTES_MAX):
            request = self._ahead.popleft()
            if self._take(request):
                group.append(request)
                nbytes += request.nbytes

    def _take(self, request: _Request[Any]) -> bool:
        """Claim a request. True for the first that claims it: the writer, or the caller that gives
        up."""
        with self._taking:
            taken, request.taken = request.taken, True
            return not taken

    def _reopen(self, group: list[_Request[Any]]) -> None:
        directory = self._environment.directory
        log.error(
            "hub=%s: the disk failed while the index was written; opening the hub again", directory
        )
        for request in group:
            request.error = UnknownOutcome(
                f"the disk of {directory} failed while the index was written: the write may "
                "have happened; a retry with the same producer and producer_seq is safe",
                withdrawn=False,
            )
        try:
            self._environment.reopen()
        except (HeadraceError, lmdb.Error, OSError) as why:
            log.error("hub=%s: the next write tries again: %s", directory, why)


def _apply(request: _Request[Any], txn: Any) -> None:
    try:
        request.result = request.work(txn)
        request.error = None
    except HeadraceError as why:
        request.error = why
