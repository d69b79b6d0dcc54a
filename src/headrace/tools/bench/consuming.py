"""Measures a consumer at full speed against plain reading, and a consumer that waits."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import headrace
from headrace.hub.hub import Hub
from headrace.streams.stream import Stream
from headrace.tools.bench.measure import Say, alternating, timed
from headrace.tools.bench.processes import STREAM, ready_members

RECORD_BYTES = 100
BATCH_RECORDS = 1_000
SHARDS = 4
RECORDS = 400_000
ROUNDS = 11
WAITING_S = 10.0
WAITING_SHARDS = 12
WAITING_MEMBERS = 3


def consumed(place: Path, say: Say, records: int = RECORDS, rounds: int = ROUNDS) -> dict[str, Any]:
    """``for record in consumer`` against ``for record in stream.read(shard)``; both look at each
    value. The time includes commits, not joining and leaving."""
    with headrace.open(place / "consuming") as hub:
        stream = hub.create_stream(STREAM, shards=SHARDS)
        say(f"appending {records} records")
        _fill(stream, records)
        say("consuming and reading in turns")
        groups = iter(range(10**6))
        read_s, consumed_s, ratio = alternating(
            lambda: timed(lambda: _read(stream, records)),
            lambda: _consume_s(hub, f"consuming{next(groups)}", records),
            rounds,
        )
    return {
        "consumer_ratio": round(ratio, 3),
        "consumer_records_per_s": round(records / consumed_s),
        "consumer_read_records_per_s": round(records / read_s),
    }


def _fill(stream: Stream, records: int) -> None:
    dice = random.Random(7)
    for at in range(0, records, BATCH_RECORDS):
        values = [dice.randbytes(RECORD_BYTES) for _ in range(min(BATCH_RECORDS, records - at))]
        stream.append_many([(value, None) for value in values], shard=at // BATCH_RECORDS % SHARDS)


def _read(stream: Stream, records: int) -> None:
    nbytes = 0
    for shard in range(SHARDS):
        for record in stream.read(shard):
            nbytes += len(record.value)
    assert nbytes == records * RECORD_BYTES, nbytes


def _consume_s(hub: Hub, group: str, records: int) -> float:
    nbytes, wanted = 0, records * RECORD_BYTES
    with hub.consumer(STREAM, group=group) as consumer:
        start_s = time.perf_counter()
        for record in consumer:
            nbytes += len(record.value)
            if nbytes >= wanted:
                break
        took_s = time.perf_counter() - start_s
    assert nbytes == wanted, nbytes
    return took_s


def waited(place: Path, say: Say, waiting_s: float = WAITING_S) -> dict[str, Any]:
    """The CPU time of a process in which a consumer waits for records, as a share of one core: the
    worst of a group of three members, from right after they joined."""
    directory = place / "waiting"
    with headrace.open(directory) as hub, ExitStack() as stack:
        hub.create_stream(STREAM, shards=WAITING_SHARDS)
        team = ready_members(stack, directory, WAITING_MEMBERS)
        for number, member in enumerate(team):
            member.tell(f"work waiting member{number} {place / 'none.handled'}")
            member.line()
        say(f"waiting for {waiting_s:g} s")

        def cpu_s() -> list[float]:
            for member in team:
                member.tell("cpu")
            return [float(member.line()) for member in team]

        before, start_s = cpu_s(), time.monotonic()
        time.sleep(waiting_s)
        after, took_s = cpu_s(), time.monotonic() - start_s
    shares = [(b - a) / took_s for a, b in zip(before, after, strict=True)]
    return {"idle_cpu": round(max(shares), 4)}
