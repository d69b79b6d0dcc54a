"""Damaged files: flipped bits, zeroed, exchanged and missing pages, files cut short.

Every record of each damaged copy is read, and one is appended. A delivered record must be the one
that was appended, a `HeadraceError` must name a missing record, and the process must survive.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import headrace
from headrace.backends.lmdb import stored_batch as batches
from headrace.backends.lmdb import tree_pages
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.lmdb.maintenance import Maintenance
from headrace.backends.opening import in_one_place
from headrace.core.errors import BadBatch, Damaged, HeadraceError, Refused
from headrace.core.model import StreamInfo
from headrace.testing.children import dice, seed
from tests.harness.faults.images import ImagesOutcome, judge, run_workers, scratch

SINGLE, MANY = "faults/single", "faults/many"
SHARDS = 2
SINGLES = 120
BATCHES, BATCH_RECORDS = 12, 60
PAGE = 4096

Contents = dict[tuple[str, int, int], bytes]
Damage = tuple[str, bytes]

KINDS = {
    "bit": 8,
    "bit in an index page": 2,
    "bit in a page's head": 4,
    "bit in a node": 4,
    "byte": 2,
    "zeroed page": 2,
    "page over another": 2,
    "cut short": 4,
}
"""How often each kind of damage is drawn, relative to the others."""


def make(directory: Path) -> None:
    """Make a small hub with all kinds of pages: rows and Arrow, in one page and over several, free
    pages."""
    with headrace.open(directory) as hub:
        single = hub.create_stream(SINGLE, shards=SHARDS)
        for number in range(SINGLES):
            marked = number % 7 == 0
            single.append(
                b"single %d" % number,
                shard=number % SHARDS,
                producer="p" if marked else None,
                producer_seq=number if marked else None,
            )
        many = hub.create_stream(MANY, shards=SHARDS)
        for batch in range(BATCHES):
            pairs = [(b"many %d %d" % (batch, i), b"k%d" % i) for i in range(BATCH_RECORDS)]
            many.append_many([*pairs], shard=batch % SHARDS)
        hub.create_stream("faults/gone", shards=64)
        hub.delete_stream("faults/gone")


def expected() -> Contents:
    records: Contents = {}
    for number in range(SINGLES):
        records[SINGLE, number % SHARDS, number // SHARDS] = b"single %d" % number
    for batch in range(BATCHES):
        for i in range(BATCH_RECORDS):
            offset = batch // SHARDS * BATCH_RECORDS + i
            records[MANY, batch % SHARDS, offset] = b"many %d %d" % (batch, i)
    return records


def damaged(whole: bytes, wanted: int, chosen: str) -> Iterator[Damage]:
    random = dice("damage", chosen)
    kinds = random.choices([*KINDS], [*KINDS.values()], k=wanted)
    for kind in kinds:
        yield kind, _damaged(whole, kind, random)


def _damaged(whole: bytes, kind: str, random: random.Random) -> bytes:
    image = bytearray(whole)
    page = random.randrange(2, len(whole) // PAGE) * PAGE
    match kind:
        case "bit":
            _flip(image, random.randrange(len(image)), random)
        case "bit in an index page":
            _flip(image, random.choice((0, PAGE)) + random.randrange(152), random)
        case "bit in a page's head":
            _flip(image, page + random.randrange(48), random)
        case "bit in a node":
            _flip(image, page + random.randrange(PAGE - 1024, PAGE), random)
        case "byte":
            image[random.randrange(len(image))] = random.randrange(256)
        case "zeroed page":
            image[page : page + PAGE] = bytes(PAGE)
        case "page over another":
            other = random.randrange(2, len(whole) // PAGE) * PAGE
            image[page : page + PAGE] = whole[other : other + PAGE]
        case "cut short":
            del image[random.randrange(1, len(image)) :]
        case _:
            raise AssertionError(kind)
    return bytes(image)


def _flip(image: bytearray, at: int, random: random.Random) -> None:
    image[at] ^= 1 << random.randrange(8)


def outcome_of(hub: Path, right: Contents) -> tuple[str, str]:
    """``detected``, ``harmless``, or a kind of failure with a text."""
    try:
        backend = LmdbBackend(hub, create=False, map_bytes=2**26, maintain=False)
    except (Damaged, Refused):
        return "detected", ""
    except HeadraceError as why:
        return "misnamed", f"{type(why).__name__}: {why}"
    try:
        found, named = _read(backend)
        missing = right.keys() - found.keys() - named
        if any(right[place] != data for place, data in found.items()):
            return "wrong", "a record differs from what was appended"
        if missing:
            return "lost", f"{len(missing)} records are missing without an error"
        _go_on(backend)
    except (Damaged, Refused):
        return "detected", ""
    except HeadraceError as why:
        return "misnamed", f"{type(why).__name__}: {why}"
    except Exception as why:  # an error that is not ours is a finding
        return "raw", f"{type(why).__name__}: {why}"
    finally:
        backend.close()
    return ("detected", "") if named else ("harmless", "")


def _read(backend: LmdbBackend) -> tuple[Contents, set[tuple[str, int, int]]]:
    """The records that were delivered, and those that an error named."""
    found: Contents = {}
    named: set[tuple[str, int, int]] = set()
    for name in (SINGLE, MANY):
        info = backend.stream(name)
        for shard in range(SHARDS):
            bounds = backend.bounds(info, shard)
            at = bounds.start
            while at < bounds.end:
                try:
                    reading = backend.read(info, shard, at, max_records=50, max_bytes=2**16)
                except BadBatch as bad:
                    named |= {(name, shard, offset) for offset in range(at, bad.end)}
                    at = bad.end
                    continue
                for batch in reading.batches:
                    for offset, data in zip(batch.offsets, batch.data, strict=True):
                        found[name, shard, offset] = data or b""
                at = reading.next
    return found, named


def _go_on(backend: LmdbBackend) -> None:
    """Write and tidy: this uses what reading does not, for instance the list of free pages."""
    hub = headrace.Hub(in_one_place(backend))
    stream = hub.stream(SINGLE)
    for number in range(3):
        stream.append(b"again" * 1_000, shard=number % SHARDS)
    maintenance = Maintenance(backend._environment, backend._write)
    maintenance.round(0)
    maintenance.stop()
    hub.delete_stream(MANY)
    stream.append(b"and again", shard=0)


def survive(wanted: int, *, without: str = "") -> ImagesOutcome:
    """Judge ``wanted`` damaged copies; ``without`` switches off one defence, to show its use."""
    with scratch() as place:
        make(place / "hub")
        whole = place / "hub" / "data.mdb"
        return run_workers(__name__, [str(whole), str(wanted), seed(), without])


def _disarm(defence: str) -> None:
    match defence:
        case "checksum":
            batches.verified = _trusted
        case "structure":
            tree_pages.check = lambda data, transaction: True
        case _:
            assert not defence, defence


def _trusted(
    stream: StreamInfo, store: bytes, key: bytes, value: bytes | memoryview
) -> batches.Verified:
    payload = memoryview(value)[batches.HEADER.size :]
    return batches.Verified(batches.header(store, key, value), payload)


def _check() -> None:
    whole, wanted, chosen = Path(sys.argv[2]).read_bytes(), int(sys.argv[3]), sys.argv[4]
    _disarm(sys.argv[5])
    right = expected()
    kinds: dict[int, str] = {}

    def listed() -> Iterator[tuple[int, bytes]]:
        for number, (kind, image) in enumerate(damaged(whole, wanted, chosen)):
            kinds[number] = kind
            yield number, image

    def judged(number: int, hub: Path) -> tuple[str, str]:
        outcome, text = outcome_of(hub, right)
        return outcome, f"{kinds.pop(number)}: {text}" if text else ""

    judge(listed(), judged)


if __name__ == "__main__":
    _check()
