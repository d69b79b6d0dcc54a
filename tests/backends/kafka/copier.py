"""Copies numbers into a topic: in a test, or as a process of its own that ends or stops itself."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from headrace.backends.kafka.appending.copying import KafkaCopying
from headrace.backends.kafka.messages import outgoing
from headrace.core.errors import Fenced, HeadraceError, Refused
from headrace.core.model import StreamInfo, even_shards
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row

Wrapped = Callable[[Producer], Any]

STEP = 25


def copying(
    bootstrap: str,
    topic: str,
    shard: int = 0,
    *,
    shards: int = 1,
    origin: str = "somewhere/7:0",
    message_bytes_max: int = 1_048_588,
    wrapped: Wrapped = lambda producer: producer,
) -> KafkaCopying:
    common = {"bootstrap.servers": bootstrap, "log_level": 0, "allow.auto.create.topics": False}
    return KafkaCopying(
        described(topic, shards),
        shard,
        origin,
        topic=topic,
        message_bytes_max=message_bytes_max,
        make_producer=lambda more: (wrapped(Producer({**common, **more})), None),
        make_consumer=lambda more: Consumer({**common, **more}),
        outgoing=outgoing,
        translated=_translated,
    )


def described(topic: str, shards: int = 1) -> StreamInfo:
    return StreamInfo(
        name=topic,
        id=7,
        codec="bytes",
        routing="murmur2",
        retention_s=None,
        retention_bytes=None,
        created_ms=0,
        shards=even_shards(shards),
    )


def numbers(start: int, end: int) -> Batch:
    rows = [Row(b"key", b"%d" % i, 1_000 + i) for i in range(start, end)]
    return Batch.of_rows(rows, stream="source", shard=0, offsets=range(start, end))


def copy_numbers(into: KafkaCopying, end: int, step: int = STEP) -> None:
    while (at := into.at or 0) < end:
        behind = min(at + step, end)
        into.append(numbers(at, behind), behind)


def _translated(error: KafkaError, doing: str) -> HeadraceError:
    return Refused(f"{doing}: {error.name()}")


class Striking:
    """A producer whose process is struck before or behind a call of it."""

    def __init__(self, producer: Producer, when: str, call: str, turn: int, by: int) -> None:
        self._producer = producer
        self._when = when
        self._call = call
        self._turn = turn
        self._by = by

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._producer, name)
        return self._struck(called) if name == self._call else called

    def _struck(self, called: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._turn -= 1
            if self._turn == 0 and self._when == "before":
                os.kill(os.getpid(), self._by)
            found = called(*arguments, **named)
            if self._turn == 0 and self._when == "behind":
                os.kill(os.getpid(), self._by)
            return found

        return call


def main(bootstrap: str, topic: str, end: str, by: str, when: str, call: str, turn: str) -> None:
    def wrapped(producer: Producer) -> Any:
        return Striking(producer, when, call, int(turn), signal.Signals[by])

    into = copying(bootstrap, topic, wrapped=wrapped)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    try:
        copy_numbers(into, int(end))
    except Fenced as why:
        sys.stdout.write(f"fenced: {why}\n")
    else:
        sys.stdout.write("done\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
