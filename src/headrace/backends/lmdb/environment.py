"""One LMDB environment.

Each rule here comes from a measured failure. docs/architecture.md lists them with the tests that
show what they prevent. Commits are always synced; an environment never crosses a fork; a deleted or
replaced directory stops writes; a full map grows; a map that another process grew is adopted.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lmdb
import msgspec

from headrace.backends.lmdb import files, stored_value, tree_pages
from headrace.backends.lmdb.failures import opening_advice, store_error
from headrace.backends.lmdb.map_lock import MapLock, SharedHold
from headrace.core.errors import (
    BadStored,
    Closed,
    DiskFull,
    ForeignStore,
    ForkedHandle,
    HubBusy,
    NewerFormat,
    StoreGone,
)
from headrace.core.quantities import shown_size
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

STORE_FORMAT = 1
MAP_BYTES = 64 * 2**30
MAP_BYTES_MAX = 16 * 2**40
READERS_MAX = 512
READER_CHECK_S = 10.0
GONE_CHECK_S = 1.0
VALUES_CHECKED_MAX = 20_000
"""How many stored streams, and how many stored shards, are checked at open."""

_IDENTITY_KEY = b"headrace"

_LOOKS = 20
_ADOPT_AGAIN_S = 0.001

T = TypeVar("T")


class Identity(msgspec.Struct, frozen=True):
    """The identity of a hub. It is written once, when the hub is made."""

    format: int
    store: bytes
    created_ms: int


class Environment:
    """Opened once per process and directory, by `headrace.backends.lmdb.handles`."""

    def __init__(
        self, directory: Path, map_bytes: int, *, create: bool, any_filesystem: bool
    ) -> None:
        self.directory = directory
        self._pid = os.getpid()
        self._closed = False
        self._lost = False
        self._map_lock = MapLock()
        self._write_hold = SharedHold()
        self._stale_cleared = 0
        self._next_reader_check = 0.0
        self._next_gone_check = 0.0
        files.prepare(directory, create=create, any_filesystem=any_filesystem)
        self._map_bytes = map_bytes
        # Made once, because every commit looks at these files.
        self._paths = [str(directory / name) for name in (files.DATA_FILE, files.LOCK_FILE)]
        self._open_files()

    # Opening and closing

    def close(self) -> None:
        """Close the environment. In a forked child this only frees what the child inherited."""
        if self.inherited():
            self._env.close()
            return
        with self._map_lock.exclusive():
            self._closed = True
            self._env.close()

    def usable(self) -> bool:
        return not (self._closed or self.inherited() or self._replaced())

    def _open_files(self) -> None:
        try:
            self._env = lmdb.open(
                str(self.directory),
                map_size=self._map_bytes,
                max_dbs=0,
                max_readers=READERS_MAX,
                mode=0o600,
                sync=True,
                metasync=True,
                writemap=False,
                max_spare_txns=0,
            )
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as why:
            raise ForeignStore(f"{self.directory} cannot be opened as a hub: {why}") from None
        except lmdb.DiskError as why:
            raise DiskFull(f"no room to create a hub at {self.directory}: {why}") from None
        except lmdb.ReadersFullError:
            raise self._no_slot() from None
        except lmdb.Error as why:
            raise HubBusy(
                f"{self.directory} cannot be opened: {why}; {opening_advice(why)}"
            ) from None
        try:
            self._stale_cleared += self._env.reader_check()
            self._check_trees()
            self.identity = self._stored_identity() or self._new_store()
            if self.identity.format > STORE_FORMAT:
                raise NewerFormat(
                    f"{self.directory} has format {self.identity.format}, this Headrace knows "
                    f"{STORE_FORMAT}: upgrade it"
                )
            self._check_values()
            self._seen_files = self._files_now()
        except lmdb.Error as why:
            self._env.close()
            raise store_error(why, self.directory) from None
        except BaseException:
            self._env.close()
            raise

    def _check_trees(self) -> None:
        data = self.directory / files.DATA_FILE
        try:
            for _ in range(_LOOKS):
                with self._begun(self._env.begin) as txn:
                    if tree_pages.check(data, txn.id()):
                        return
        except tree_pages.Unsound as why:
            raise BadStored(
                f"the index of {self.directory} is damaged ({why}): restore the hub from a copy"
            ) from None
        raise HubBusy(f"{self.directory} changes too fast to be checked: try again")

    def _check_values(self) -> None:
        """Check streams and shards: a damaged key would make a stream, or a part of it,
        disappear."""
        with self._begun(self._env.begin) as txn:
            for prefix in (stored_value.ALL_STREAMS, stored_value.ALL_SHARDS):
                stored = stored_value.ranged(txn.cursor(), prefix)
                for key, value in itertools.islice(stored, VALUES_CHECKED_MAX):
                    stored_value.opened(key, value)

    def _stored_identity(self) -> Identity | None:
        """The identity of the hub; None if nothing has been written yet."""
        with self._begun(self._env.begin) as txn:
            found = txn.get(_IDENTITY_KEY)
            if found is None:
                if txn.stat()["entries"]:
                    raise ForeignStore(f"{self.directory} holds an LMDB store that is not a hub's")
                return None
            try:
                stored = stored_value.opened(_IDENTITY_KEY, found)
                identity = msgspec.msgpack.decode(stored.value, type=Identity)
            except (msgspec.DecodeError, UnicodeDecodeError, BadStored) as why:
                raise BadStored(f"{self.directory}: the hub's identity is damaged: {why}") from None
            return identity

    def _new_store(self) -> Identity:
        failpoint("open.before-create")
        with self._begun(lambda: self._env.begin(write=True)) as txn:
            # If another process was quicker, its identity counts.
            if txn.get(_IDENTITY_KEY) is None:
                now_ms = time.time_ns() // 1_000_000
                identity = Identity(STORE_FORMAT, secrets.token_bytes(16), now_ms)
                packed = stored_value.packed(identity)
                txn.put(_IDENTITY_KEY, stored_value.sealed(_IDENTITY_KEY, packed, txn.id()))
        identity_now = self._stored_identity()
        assert identity_now is not None, "a hub was created and cannot be found"
        return identity_now

    # Using

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction, which sees one moment. Keep it short: while it lives, LMDB reuses no
        page."""
        self.check_usable()
        with self._map_lock.shared() as hold, self._own_errors():
            txn = self._begun(lambda: self._env.begin(buffers=True), hold)
            try:
                yield txn
            finally:
                txn.abort()

    def begin_write(self) -> Any:
        """Begin a write transaction. This waits for the write transactions of all other processes,
        without a time limit. Only the writer thread calls it."""
        if self._lost:
            self.reopen()
        self.check_usable()
        txn = self._begun(lambda: self._env.begin(write=True, buffers=True))
        if self._write_hold.thread != threading.get_ident():
            self._write_hold = SharedHold()
        self._map_lock.enter(self._write_hold)
        return txn

    def end_write(self) -> None:
        self._map_lock.leave(self._write_hold)

    def in_use_here(self) -> bool:
        """Whether this thread is inside a transaction. Then a signal handler asks."""
        return self._map_lock.held_here()

    def last_transaction(self) -> int:
        """The number of the last transaction. It grows with every commit of any process.

        It comes from a read transaction, not from `info()`: there a commit shows while it is still
        being synced, and a reader that then finds no record would wait for the next commit."""
        self.check_usable()
        with self._map_lock.shared() as hold, self._own_errors():
            txn = self._begun(self._env.begin, hold)
            last: int = txn.id()
            txn.abort()
            return last

    def check_usable(self) -> None:
        if self.inherited():
            raise ForkedHandle(
                f"the hub {self.directory} was opened in process {self._pid} before a fork: "
                f"open it again in this process ({os.getpid()})"
            )
        if self._closed:
            raise Closed(f"the hub {self.directory} was closed")
        now = time.monotonic()
        if now >= self._next_gone_check:
            self._next_gone_check = now + GONE_CHECK_S
            self.check_present()
        if now >= self._next_reader_check:
            self._next_reader_check = now + READER_CHECK_S
            with self._map_lock.shared(), self._own_errors():
                if not (self._lost or self._closed):
                    self._stale_cleared += self._env.reader_check()

    def inherited(self) -> bool:
        return os.getpid() != self._pid

    def check_present(self) -> None:
        """Raise `StoreGone` if the files are no longer those that were opened: a write would be
        lost."""
        if self._replaced():
            raise StoreGone(
                f"the hub {self.directory} was deleted or replaced while it was open: close it "
                "and open it again"
            )

    def grow(self) -> None:
        """Double the map, which was full. This waits for the open transactions of this process,
        so the caller must not be inside one."""
        with self._map_lock.exclusive():
            now = self._env.info()["map_size"]
            if now >= MAP_BYTES_MAX:
                raise DiskFull(f"the hub {self.directory} has reached {shown_size(now)}")
            self._set_map(min(max(now, 2**20) * 2, MAP_BYTES_MAX))
            log.info(
                "hub=%s: map grown to %s", self.directory, shown_size(self._env.info()["map_size"])
            )

    def panicked(self) -> bool:
        """Whether LMDB has given up on the environment in this process."""
        try:
            self._env.begin().abort()
        except lmdb.PanicError:
            return True
        except lmdb.Error:
            return False
        return False

    def reopen(self) -> None:
        """Open a fresh environment on the same files, after LMDB has given up on the old one. Only
        the writer thread may do this, because it could be waiting inside LMDB."""
        with self._map_lock.exclusive():
            self._lost = True
            self._env.close()
            files.check_data_file(self.directory / files.DATA_FILE)
            self._open_files()
            self._lost = False

    def facts(self) -> dict[str, Any]:
        self.check_usable()
        with self._map_lock.shared(), self._own_errors():
            info, page_bytes = self._env.info(), self._env.stat()["psize"]
            self._stale_cleared += self._env.reader_check()
            readers = self._env.readers()
            data = os.stat(self.directory / files.DATA_FILE)
        disk = os.statvfs(self.directory)
        return {
            "backend": "lmdb",
            "directory": str(self.directory),
            "format": self.identity.format,
            "store": self.identity.store.hex(),
            "bytes_used": (info["last_pgno"] + 1) * page_bytes,
            "bytes_file": data.st_size,
            "bytes_map": info["map_size"],
            "bytes_free_disk": disk.f_bavail * disk.f_frsize,
            "readers": max(len(readers.splitlines()) - 1, 0),
            "readers_max": info["max_readers"],
            "stale_readers_cleared": self._stale_cleared,
            "transactions": info["last_txnid"],
        }

    def _begun(self, begin: Callable[[], T], hold: SharedHold | None = None) -> T:
        """Begin a transaction. If another process grew the map, it is adopted first; if all reader
        slots are taken, those of dead readers are cleared first."""
        for tries in range(100):
            try:
                return begin()
            except lmdb.MapResizedError:
                self._adopt_map(hold)
                time.sleep(_ADOPT_AGAIN_S * tries)
            except lmdb.ReadersFullError:
                if not self._env.reader_check():
                    raise self._no_slot() from None
        raise HubBusy(f"the map of {self.directory} keeps changing its size")

    def _no_slot(self) -> HubBusy:
        return HubBusy(
            f"all reader slots of {self.directory} are in use: close idle processes, or try again "
            f"in {READER_CHECK_S:.0f} s if some were killed"
        )

    def _adopt_map(self, hold: SharedHold | None) -> None:
        # Leave the lock, wait for the others to leave, and enter again.
        if hold is not None:
            self._map_lock.leave(hold)
        try:
            with self._map_lock.exclusive():
                self._set_map(0)
        finally:
            if hold is not None:
                self._map_lock.enter(hold)

    def _set_map(self, nbytes: int) -> None:
        """Give the map another size; 0 adopts the size that another process chose. The caller holds
        the map lock exclusively."""
        try:
            self._env.set_mapsize(nbytes)
        except (lmdb.Error, MemoryError) as why:
            if "write transaction is active" in str(why):
                return  # the writer thread has begun one and does not hold the lock yet: try later
            # LMDB has unmapped the old map as well.
            self._lost = True
            self._env.close()
            self._open_files()
            self._lost = False
            raise HubBusy(
                f"the map of {self.directory} cannot grow ({why}): lift the limit on address "
                "space (ulimit -v)"
            ) from None

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as why:
            if self._closed:
                raise Closed(f"the hub {self.directory} was closed") from None
            raise store_error(why, self.directory) from None

    def _replaced(self) -> bool:
        return self._files_now() != self._seen_files

    def _files_now(self) -> tuple[int, int, int, int] | None:
        try:
            data, lock = os.stat(self._paths[0]), os.stat(self._paths[1])
        except OSError:
            return None
        return data.st_dev, data.st_ino, lock.st_dev, lock.st_ino
