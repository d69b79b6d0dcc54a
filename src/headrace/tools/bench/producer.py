"""A process that appends records at a steady rate, each with the time of its append."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import headrace
from headrace.streams.sharding import Sharding
from headrace.streams.stream import Stream
from headrace.tools.bench.evidence import stamp

EVERY_S = 0.005


def main(directory: str, stream: str, per_second: str) -> None:
    with headrace.open(directory, create=False) as hub:
        ending = threading.Event()
        threading.Thread(
            target=_append, args=(hub.stream(stream), float(per_second), ending)
        ).start()
        sys.stdin.readline()  # a line, or the end of the parent process
        ending.set()


def _append(stream: Stream, per_second: float, ending: threading.Event) -> None:
    keys = itertools.cycle(_keys(stream))
    began_s, appended = time.monotonic(), 0
    while not ending.wait(EVERY_S):
        due = int((time.monotonic() - began_s) * per_second) - appended
        if due:
            now = stamp(time.monotonic_ns())
            stream.append_many([(now, next(keys)) for _ in range(due)])
            appended += due


def _keys(stream: Stream) -> list[str]:
    """One key for each shard."""
    sharding = Sharding(stream.info)
    keys: dict[int, str] = {}
    for number in itertools.count():
        key = f"key-{number}"
        keys.setdefault(sharding.shard_for(key.encode(), None), key)
        if len(keys) == stream.shards:
            return list(keys.values())
    raise AssertionError("unreachable")


if __name__ == "__main__":
    main(*sys.argv[1:])
