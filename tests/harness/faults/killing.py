"""Writers that are killed with SIGKILL, and the check of the hub afterwards.

A writer appends records that carry its name and a number. After each append it writes an
acknowledgement, unbuffered, to a file outside the hub. A writer that *retries* sends the number at
which it was killed again, under the same producer_seq; a writer that *skips* goes on with the next
number.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.testing.children import Child, dice, until
from tests.harness.children import harness_child

STREAM = "faults/numbers"
SHARDS = 2

_PAYLOADS = (0, 10, 90, 400, 1_500, 6_000)


class Ack(NamedTuple):
    number: int
    shard: int
    offset: int


@dataclass
class KillVerdict:
    """What the check of the hub found, compared with the acknowledgements of the writers."""

    acknowledged: int = 0
    present: int = 0
    unknown: int = 0
    """Records that are present without an acknowledgement: at most one per kill."""
    wrong: list[str] = field(default_factory=list)


def data_of(writer: str, number: int) -> bytes:
    filler = b"." * _PAYLOADS[number % len(_PAYLOADS)]
    return b"%s %d %s" % (writer.encode(), number, filler)


def acks_of(path: Path) -> list[Ack]:
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [Ack(*map(int, line.split())) for line in whole.splitlines()]


class Writers:
    """Some writers of one hub: started, killed at random moments and started again."""

    def __init__(self, directory: Path, acks: Path, names: list[str], *, early: bool = False):
        self._directory = directory
        self._acks_directory = acks
        self._early = early
        self.names = names
        self.kills = 0
        self._running: dict[str, Child] = {}

    def start(self, name: str, fail: str = "") -> Child:
        acks = acks_of(self._acks(name))
        arguments = [str(self._directory), name, str(self._acks(name))]
        # A writer skips the number at which it was killed, or sends it again.
        skips = name.startswith("skip")
        arguments.append(str(acks[-1].number + (2 if skips else 1) if acks else 0))
        arguments += ["--early"] * self._early + ["--producer"] * (not skips)
        self._running[name] = harness_child(__name__, *arguments, fail=fail)
        return self._running[name]

    def kill_at_random(self, kills: int) -> None:
        random = dice("killing")
        for name in self.names:
            self.start(name)
        for _ in range(kills):
            name = random.choice(self.names)
            before = len(acks_of(self._acks(name)))
            wanted = before + random.randrange(1, 12)
            until(
                lambda name=name, wanted=wanted: len(acks_of(self._acks(name))) >= wanted,  # type: ignore[misc]
                f"{name} has acknowledged {wanted} records",
                60,
                lambda: {one: len(acks_of(self._acks(one))) for one in self.names},
            )
            self.kill(name)
            self.start(name)
        for name in self.names:
            self.kill(name)

    def kill(self, name: str) -> None:
        child = self._running.pop(name)
        with child:
            child.kill()
        self.kills += 1

    def died(self, name: str) -> int:
        """Wait for a writer that a fail point kills."""
        with self._running.pop(name) as child:
            code = child.ended()
        self.kills += 1
        return code

    def stop(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def verdict(self) -> KillVerdict:
        acks = {name: acks_of(self._acks(name)) for name in self.names}
        return check(self._directory, acks)

    def _acks(self, name: str) -> Path:
        return self._acks_directory / f"{name}.acks"


def check(directory: Path, acks: dict[str, list[Ack]]) -> KillVerdict:
    """Check that every acknowledged record is at its offset, without gaps, in order, and once."""
    verdict = KillVerdict(acknowledged=sum(map(len, acks.values())))
    wrong = verdict.wrong
    found: dict[tuple[str, int], tuple[int, int]] = {}
    last: dict[tuple[str, int], int] = defaultdict(lambda: -1)
    with headrace.open(directory, create=False) as hub:
        stream = hub.stream(STREAM)
        for shard in range(stream.shards):
            expected = 0
            for record in stream.read(shard):
                if record.offset != expected:
                    wrong.append(f"gap: {shard}+{record.offset} follows {expected - 1}")
                expected = record.offset + 1
                writer, number_text, _ = (record.data or b"").split(b" ", 2)
                name, number = writer.decode(), int(number_text)
                if record.data != data_of(name, number):
                    wrong.append(f"altered: {shard}+{record.offset}")
                if (name, number) in found:
                    wrong.append(f"twice: {name} {number}")
                if number <= last[name, shard]:
                    wrong.append(f"order: {name} {number} after {last[name, shard]}")
                found[name, number] = (shard, record.offset)
                last[name, shard] = number
            if stream.bounds(shard).end != expected:
                wrong.append(f"end of {shard}: {stream.bounds(shard).end}, read up to {expected}")
    for name, own in acks.items():
        for ack in own:
            if found.get((name, ack.number)) != (ack.shard, ack.offset):
                wrong.append(f"lost: {name} {ack}, found at {found.get((name, ack.number))}")
    verdict.present = len(found)
    known = {(name, ack.number) for name, own in acks.items() for ack in own}
    verdict.unknown = len(found.keys() - known)
    return verdict


def _write() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("name")
    parser.add_argument("acks")
    parser.add_argument("first", type=int)
    parser.add_argument("--early", action="store_true")
    parser.add_argument("--producer", action="store_true")
    given = parser.parse_args()
    acks = os.open(given.acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    hub = headrace.open(given.directory)
    stream = hub.create_stream(STREAM, shards=SHARDS, exist_ok=True)
    number = given.first
    while True:
        shard = number % SHARDS
        if given.early:  # the fault that the check must find
            os.write(acks, b"%d %d %d\n" % (number, shard, stream.bounds(shard).end))
        placed = stream.append(
            data_of(given.name, number),
            shard=shard,
            producer=given.name if given.producer else None,
            producer_seq=number if given.producer else None,
        )
        if not given.early:
            os.write(acks, b"%d %d %d\n" % (number, placed.shard, placed.offset))
        number += 1


if __name__ == "__main__":
    _write()
