"""Power loss: images of the disk as it can be after a power failure at any moment.

A writer runs under strace, which records every write and flush of the data file. At each moment the
disk holds all flushed writes and any part of the others: none, all, some of the writes, or some of
their 512-byte sectors. Each such image must open, hold every acknowledged record, and have no gap.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.opening import in_one_place
from headrace.core.errors import HeadraceError
from headrace.testing.children import dice, seed
from tests.harness.children import python_path
from tests.harness.faults.images import ImagesOutcome, judge, run_workers, scratch

STREAM = "faults/power"
SECTOR = 512
KEPT = 40
"""How many records are kept; older ones are trimmed, so that pages are reused."""

_CALLS = "openat,close,pwrite64,pwritev,writev,write,lseek,ftruncate,fdatasync,fsync,msync"
_LINE = re.compile(r"(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
_FILE = re.compile(r"(\d+)<([^>]*)>")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


class DiskWrite(NamedTuple):
    offset: int
    data: bytes
    synced: bool
    """Whether the call itself waits for the disk."""


class DiskFlush(NamedTuple):
    pass


class WriterNote(NamedTuple):
    """A note of the writer that it begins or has finished a step: ``begin 5``, ``done 5``, ``trim
    3``, ``trimmed 3``."""

    what: str
    number: int


TraceEvent = DiskWrite | DiskFlush | WriterNote


class Expected(NamedTuple):
    """What an image may hold: everything done, and perhaps what had begun."""

    done: int
    begun: int
    trimmed: int
    trim_begun: int


def data_of(number: int) -> bytes:
    return b"%d " % number + b"x" * (number * 977 % 5_000 if number % 3 == 0 else number % 120)


def trace(directory: Path, place: Path, appends: int, *, unsynced: bool = False) -> Path:
    """Record the system calls of a writer that appends ``appends`` records."""
    assert shutil.which("strace"), "strace is needed to record what reaches the disk: install it"
    recorded = place / "calls"
    command = ["strace", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={_CALLS}"]
    command += ["-o", str(recorded), sys.executable, "-m", __name__, "write", str(directory)]
    command += [str(appends), "unsynced" if unsynced else "synced"]
    env = {"PATH": os.environ["PATH"], **python_path()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return recorded


def events(recorded: Path) -> Iterator[TraceEvent]:
    """The effects of the recorded calls on the data file, in the order in which they ended."""
    synced_files: dict[str, bool] = {}
    position: dict[str, int] = {}
    unfinished: dict[str, str] = {}
    with recorded.open() as lines:
        for line in lines:
            thread, _, rest = line.partition(" ")
            rest = rest.strip()
            if rest.endswith("<unfinished ...>"):
                unfinished[thread] = rest.removesuffix("<unfinished ...>").rstrip()
                continue
            if rest.startswith("<... "):
                rest = unfinished.pop(thread) + rest.partition(" resumed>")[2].lstrip()
            found = _LINE.match(rest)
            if found is None:
                continue
            yield from _meant(found[1], found[2], int(found[3]), synced_files, position)


def _meant(
    call: str, given: str, result: int, synced: dict[str, bool], position: dict[str, int]
) -> Iterator[TraceEvent]:
    if call == "openat":
        synced[str(result)] = "O_DSYNC" in given or "O_SYNC" in given
        return
    file = _FILE.match(given)
    if file is None:
        return
    number, path = file[1], _plain(file[2])
    if call == "write" and number == "2":
        text = _bytes(given).decode()
        if text.startswith("note "):
            _, what, count = text.split()
            yield WriterNote(what, int(count))
        return
    if not path.endswith("data.mdb"):
        return
    if result < 0:
        raise AssertionError(f"{call} of the data file failed in the trace")
    data = _bytes(given)
    match call:
        case "lseek":
            position[number] = result
        case "pwrite64":
            yield DiskWrite(int(given.rpartition(", ")[2]), data[:result], synced[number])
        case "pwritev":
            yield DiskWrite(
                int(given.split("], ")[-1].split(", ")[1]), data[:result], synced[number]
            )
        case "write" | "writev":
            at = position.get(number, 0)
            position[number] = at + result
            yield DiskWrite(at, data[:result], synced[number])
        case "fdatasync" | "fsync" | "msync":
            yield DiskFlush()
        case "ftruncate":
            raise AssertionError("the data file was truncated: the images do not know that")
        case _:
            return


def _plain(path: str) -> str:
    """A path as text: some versions of strace write every character as ``\\x2f``, others do not."""
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


def _bytes(given: str) -> bytes:
    after = given.partition(">")[2]
    return bytes.fromhex("".join(_TEXT.findall(after)).replace("\\x", ""))


class _Disk:
    """What is on the disk for sure, and what may be on it."""

    def __init__(self) -> None:
        self._sure = bytearray()
        self._pending: list[DiskWrite] = []

    def take(self, event: TraceEvent) -> None:
        if isinstance(event, DiskFlush):
            self._flush()
        elif isinstance(event, DiskWrite):
            # A synced call makes only its own bytes durable.
            if event.synced:
                _put(self._sure, event.offset, event.data)
            self._pending.append(event)

    def _flush(self) -> None:
        for write in self._pending:
            _put(self._sure, write.offset, write.data)
        self._pending.clear()

    def found(self, in_flight: TraceEvent, way: int, random: random.Random) -> bytes:
        """One image of the disk if the power fails during an event."""
        image = bytearray(self._sure)
        pending = [*self._pending, *([in_flight] if isinstance(in_flight, DiskWrite) else [])]
        for write in pending:
            if way == 1 or (way == 2 and random.random() < 0.5):
                _put(image, write.offset, write.data)
            elif way >= 3:
                for at in range(0, len(write.data), SECTOR):
                    if random.random() < 0.5:
                        _put(image, write.offset + at, write.data[at : at + SECTOR])
        return bytes(image)


def _put(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def images(recorded: Path, wanted: int, chosen: str) -> Iterator[tuple[int, bytes, Expected]]:
    """``wanted`` images, spread evenly over the trace from the first note of the writer on."""
    listed = list(events(recorded))
    # Before the first note nothing is promised: a hub may have to be created again.
    first = next(i for i, event in enumerate(listed) if isinstance(event, WriterNote))
    moments = sum(1 for event in listed[first:] if not isinstance(event, WriterNote))
    random = dice("power", chosen)
    disk = _Disk()
    promised = Expected(0, 0, 0, 0)
    made = passed = 0
    for at, event in enumerate(listed):
        if at > first and not isinstance(event, WriterNote):
            passed += 1
            for way in range(wanted * passed // moments - made):
                yield made, disk.found(event, way, random), promised
                made += 1
        disk.take(event)
        if isinstance(event, WriterNote):
            promised = _promised(promised, event)


def _promised(now: Expected, note: WriterNote) -> Expected:
    match note.what:
        case "begin":
            return now._replace(begun=note.number)
        case "done":
            return now._replace(done=note.number)
        case "trim":
            return now._replace(trim_begun=note.number)
        case "trimmed":
            return now._replace(trimmed=note.number)
        case _:
            raise AssertionError(note)


def fault(hub: Path, expected: Expected, *, write_too: bool) -> str:
    """What is wrong with an image; empty if it is right."""
    try:
        backend = LmdbBackend(hub, create=False, map_bytes=2**26, maintain=False)
    except HeadraceError as why:
        return f"not opened: {why}"
    try:
        info = backend.stream(STREAM)
        bounds = backend.bounds(info, 0)
        if not expected.done <= bounds.end <= expected.begun:
            return f"ends at {bounds.end}, {expected}"
        if not expected.trimmed <= bounds.start <= expected.trim_begun:
            return f"starts at {bounds.start}, {expected}"
        at = bounds.start
        while at < bounds.end:
            reading = backend.read(info, 0, at, max_records=1_000, max_bytes=2**24)
            for batch in reading.batches:
                for offset, data in zip(batch.offsets, batch.data, strict=True):
                    if offset != at or data != data_of(offset):
                        return f"offset {offset} where {at} should be: {data!r:.60}"
                    at += 1
        if write_too:
            with headrace.open(hub) as opened:
                stream = opened.stream(STREAM)
                placed = stream.append(data_of(at))
                if placed.offset != at or [r.offset for r in stream.read(0, at)] != [at]:
                    return f"appended at {placed.offset}, not {at}"
    except HeadraceError as why:
        return f"{type(why).__name__}: {why}"
    finally:
        backend.close()
    return ""


def survive(appends: int, wanted: int, *, unsynced: bool = False) -> ImagesOutcome:
    """Trace a writer, and judge ``wanted`` images of its disk."""
    with scratch() as place:
        recorded = trace(place / "hub", place, appends, unsynced=unsynced)
        return run_workers(__name__, [str(recorded), str(wanted), seed()])


def _write() -> None:
    directory, appends, mode = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if mode == "unsynced":
        _never_sync()
    backend = LmdbBackend(directory, maintain=False, map_bytes=2**26)
    hub = headrace.Hub(in_one_place(backend))
    stream = hub.create_stream(STREAM, shards=1)
    for number in range(appends):
        _note("begin", number + 1)
        stream.append(data_of(number))
        _note("done", number + 1)
        if number % 10 == 9 and number > KEPT:
            _note("trim", number - KEPT)
            stream.trim(0, number - KEPT)
            _note("trimmed", number - KEPT)
    os._exit(0)


def _note(what: str, number: int) -> None:
    os.write(2, f"note {what} {number}".encode())


def _never_sync() -> None:
    """Never wait for the disk: the fault that the check must find."""
    import lmdb

    opened = lmdb.open
    setattr(lmdb, "open", lambda path, **given: opened(path, **{**given, "sync": False}))  # noqa: B010


def _check() -> None:
    recorded, wanted, chosen = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    promised: dict[int, Expected] = {}

    def listed() -> Iterator[tuple[int, bytes]]:
        for number, image, expected in images(recorded, wanted, chosen):
            promised[number] = expected
            yield number, image

    def judged(number: int, hub: Path) -> tuple[str, str]:
        text = fault(hub, promised.pop(number), write_too=number % 25 == 0)
        return ("bad", text) if text else ("whole", "")

    judge(listed(), judged)


if __name__ == "__main__":
    _check() if sys.argv[1] == "check" else _write()
