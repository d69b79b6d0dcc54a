"""Consumers under test: fixtures that open them, and functions that fill streams and read
results."""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pytest

from headrace.consumers.consumer import Consumer
from headrace.core.groups.allocators import Allocator
from headrace.core.groups.even_shares import Assignment, Members, Owners, Shards
from headrace.core.model import Record, ShardId
from headrace.hub.hub import Hub
from headrace.streams.stream import Stream
from headrace.testing.contracts.backend_under_test import WAIT_S, BackendUnderTest, lacks

STREAM = "shop/orders"
GROUP = "billing"

Consume = Callable[..., Consumer]
"""`Hub.consumer` with a short session. The consumers are closed after the test."""

Contract = TypeVar("Contract", bound=type)


def where_there_are_groups(contract: Contract) -> Contract:
    """A class decorator. On a backend without groups each test of the class checks instead that
    groups are refused with the reason."""
    for name, test in list(vars(contract).items()):
        if name.startswith("test_"):
            setattr(contract, name, _unless_lacking(test))
    return contract


def _unless_lacking(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def asked(self: BackendUnderTest, hub: Hub, **others: Any) -> None:
        if not lacks(hub, "store", lambda: hub.consumer(STREAM, group=GROUP)):
            test(self, hub=hub, **others)

    return asked


def last_by_name(members: Members, shards: Shards, _: Owners) -> Assignment:
    return {max(member.name for member in members): list(shards)}


LAST_BY_NAME = Allocator("last-by-name", deal=last_by_name)
"""Deals all shards to the last member by name: a member "b" takes all shards of "a"."""


class ConsumersUnderTest(BackendUnderTest):
    @pytest.fixture
    def consume(self, hub: Hub) -> Iterator[Consume]:
        opened: list[Consumer] = []

        def consume(streams: str | list[str] = STREAM, **settings: Any) -> Consumer:
            usual = {"group": GROUP, "session": "3s", "heartbeat": "200ms"}
            opened.append(hub.consumer(streams, **{**usual, **settings}))
            return opened[-1]

        yield consume
        for consumer in opened:
            consumer.close()


class ReadingThread:
    """A thread that iterates over a consumer."""

    def __init__(self, consumer: Consumer, handle: Callable[[Record], None]) -> None:
        self.consumer = consumer
        self.ended = False
        self._handle = handle
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for record in self.consumer:
                self._handle(record)
        except BaseException as error:
            self._error = error
        self.ended = True

    def join(self) -> None:
        """Wait for the end of the iteration, and raise its error if it had one."""
        self._thread.join(WAIT_S)
        assert self.ended
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.consumer.close()
        self.join()


def filled(hub: Hub, name: str = STREAM, *, shards: int, each: int) -> Stream:
    """A new stream with ``each`` records in every shard."""
    stream = hub.create_stream(name, shards=shards)
    for shard in range(shards):
        stream.append_many(((b"%d" % number, None) for number in range(each)), shard=shard)
    return stream


def taken(consumer: Consumer, count: int) -> list[Record]:
    """The next ``count`` records."""
    records: list[Record] = []
    while len(records) < count:
        record = consumer.read(timeout="10s")
        assert record is not None, f"only {len(records)} of {count} records came: {places(records)}"
        records.append(record)
    return records


def places(records: Iterable[Record]) -> dict[int, range | list[int]]:
    """The offsets of the records by shard, in the order of reading; consecutive ones as a range."""
    found: dict[int, list[int]] = defaultdict(list)
    for record in records:
        found[record.shard].append(record.offset)
    return {shard: _as_range(seen) for shard, seen in sorted(found.items())}


def _as_range(seen: list[int]) -> range | list[int]:
    whole = range(seen[0], seen[0] + len(seen))
    return whole if list(whole) == seen else seen


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def held(hub: Hub, group: str = GROUP) -> dict[str, list[int]]:
    """The shards that each member holds and that are not moving, by member."""
    found: dict[str, list[int]] = defaultdict(list)
    for shard, standing in sorted(hub.groups.load(group).shards.items()):
        if standing.state == "held" and standing.owner is not None:
            found[standing.owner].append(shard.index)
    return dict(found)


def checkpoints(hub: Hub, group: str = GROUP) -> dict[int, int | None]:
    """The stored checkpoints, by shard."""
    groups = hub.groups
    positions = groups.positions(groups.load(group))
    return {shard.index: position.checkpoint for shard, position in positions.items()}


def all_places(shards: int, each: int) -> Counter[tuple[int, int]]:
    return Counter((shard, offset) for shard in range(shards) for offset in range(each))


def place(record: Record) -> tuple[int, int]:
    return record.shard, record.offset


def the_others(shards: list[ShardId]) -> list[ShardId]:
    return [shard for index in range(2) if (shard := ShardId(STREAM, index)) not in shards]
