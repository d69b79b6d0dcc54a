"""Promises of a consumer: which records it hands out, when they count as done, and to whom its
shards go."""

from __future__ import annotations

import asyncio
import codecs
import functools
import itertools
import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest

from penstock.core import keys
from penstock.core.assign import Allocator, capped
from penstock.core.errors import (
    BadSetting,
    Closed,
    Fenced,
    OffsetOutOfRange,
    Refused,
    Replaced,
    UnknownGroup,
    UnknownShard,
    UnknownStream,
)
from penstock.core.events import Fence, Join, ShardFacts, StreamFacts
from penstock.core.model import Record, ShardId
from penstock.core.ports import Backend, Reading
from penstock.core.shares import Assignment, Members, Owners, Shards
from penstock.run.consumer import Consumer, Where
from penstock.run.coordinator import Coordinator
from penstock.run.hub import Hub
from penstock.run.stream import Stream
from penstock.testing.contracts.subject import WAIT_S, Subject, lacks
from penstock.testing.faults.children import until

STREAM = "shop/orders"
GROUP = "billing"

Consume = Callable[..., Consumer]
"""`Hub.consumer` with a short session; what it made is closed after the test."""

Contract = TypeVar("Contract", bound=type)


def _where_there_are_groups(contract: Contract) -> Contract:
    """On a backend without groups every test of the class asks for the refusal instead."""
    for name, test in list(vars(contract).items()):
        if name.startswith("test_"):
            setattr(contract, name, _unless_lacking(test))
    return contract


def _unless_lacking(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def asked(self: Subject, hub: Hub, **others: Any) -> None:
        if not lacks(hub._backend, "store", lambda: hub.consumer(STREAM, group=GROUP)):
            test(self, hub=hub, **others)

    return asked


def _last_by_name(members: Members, shards: Shards, _: Owners) -> Assignment:
    return {max(member.name for member in members): list(shards)}


LAST_BY_NAME = Allocator("last-by-name", deal=_last_by_name)
"""Everything goes to the last name: whoever joins as "b" takes all of "a"'s shards."""


class Consuming(Subject):
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


class FixedShardsContract(Consuming):
    def test_chosen_shards_are_read_without_a_group(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=3, each=10)
        consumer = consume(group=None, shards=[0, 2])
        assert consumer.granted == [ShardId(STREAM, 0), ShardId(STREAM, 2)]
        assert places(taken(consumer, 20)) == {0: range(10), 2: range(10)}
        for shard in range(3):
            stream.append(b"later", shard=shard)
        assert {record.shard for record in taken(consumer, 2)} == {0, 2}
        assert consumer.read(timeout="20ms") is None
        with pytest.raises(BadSetting, match="group"):
            consumer.commit()
        # Nothing is remembered: another one begins anew.
        assert places(taken(consume(group=None, shards=[2]), 11)) == {2: range(11)}

    def test_chosen_shards_are_let_go_at_once(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume(group=None, shards=[0])
        taken(consumer, 10)
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2

    def test_chosen_shards_start_where_they_are_told_to(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=1, each=10)
        consumer = consume(group=None, shards=[0], start="latest")
        stream.append(b"later", shard=0)
        assert offsets(taken(consumer, 1)) == [10]
        consumer.seek(0, 4)
        assert offsets(taken(consumer, 2)) == [4, 5]
        consumer.seek(0, "earliest")
        assert offsets(taken(consumer, 11)) == list(range(11))

    def test_shards_that_are_not_there_are_refused(self, hub: Hub) -> None:
        filled(hub, shards=2, each=0)
        for shards in ([2], [-1], [0, 7]):
            with pytest.raises(UnknownShard):
                hub.consumer(STREAM, shards=shards)
        with pytest.raises(UnknownStream, match="nowhere"):
            hub.consumer("nowhere", shards=[0])


@_where_there_are_groups
class ReadingAsAGroupContract(Consuming):
    """What is handed out, and from where on."""

    def test_every_record_is_handed_out_once_and_in_order_inside_its_shard(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = hub.create_stream(STREAM, shards=4, codec="json")
        ids = stream.append_many((number, f"key{number % 50}") for number in range(1_000))
        records = taken(consumer := consume(), 1_000)
        assert Counter(record.id for record in records) == Counter(ids)
        assert sorted(record.value for record in records) == list(range(1_000))
        for shard, seen in places(records).items():
            assert seen == range(stream.bounds(shard).end)
        assert consumer.read(timeout="20ms") is None

    def test_records_that_come_later_are_handed_out_soon(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=4, each=0)
        consumer = consume()
        for number in range(20):
            record_id = stream.append(b"%d" % number)
            record = consumer.read(timeout="10s")
            assert record is not None
            assert record.id == record_id

    def test_who_stopped_midway_goes_on_at_the_checkpoint(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=250)
        done: list[Record] = []
        with consume(name="first") as consumer:
            for record in consumer:
                if len(done) == 500:
                    break  # this one is not done
                done.append(record)
        stored = checkpoints(hub)
        assert sum(filter(None, stored.values())) == 500
        rest = taken(consume(name="second"), 500)
        first: dict[int, int] = {}
        for record in rest:
            first.setdefault(record.shard, record.offset)
        assert first == {shard: at or 0 for shard, at in stored.items() if (at or 0) < 250}
        assert Counter(map(_id, done + rest)) == Counter(
            (s, o) for s in range(4) for o in range(250)
        )

    def test_a_new_group_reads_everything_unless_told_otherwise(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        assert places(taken(consume(), 10)) == {0: range(5), 1: range(5)}
        assert places(taken(consume(group="other", start="earliest"), 10)) == {
            0: range(5),
            1: range(5),
        }

    def test_a_group_that_starts_at_the_latest_reads_what_comes_after_it_has_joined(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = filled(hub, shards=2, each=5)
        with consume(start="latest") as consumer:
            assert checkpoints(hub) == {0: 5, 1: 5}, "where it starts is stored at once"
            assert consumer.read(timeout="20ms") is None
        stream.append(b"between", shard=0)
        again = consume(start="latest")
        stream.append(b"after", shard=1)
        assert places(taken(again, 2)) == {0: range(5, 6), 1: range(5, 6)}

    def test_a_group_may_start_at_a_time(self, hub: Hub, consume: Consume) -> None:
        stream = hub.create_stream(STREAM, shards=2)
        for minute in range(10):
            at = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
            stream.append(b"x", timestamp=at, shard=minute % 2)
        consumer = consume(start=datetime(2026, 1, 1, 12, 4, 30, tzinfo=UTC))
        assert sorted(r.timestamp.minute for r in taken(consumer, 5)) == [5, 6, 7, 8, 9]
        assert consumer.read(timeout="20ms") is None

    def test_a_start_that_may_not_be_chosen_is_an_error(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=5)
        with pytest.raises(BadSetting, match="'earliest'"):
            consume(start="error")
        assert hub.groups.load(GROUP).members == {}
        with consume() as consumer:
            taken(consumer, 3)
            consumer.commit()
        assert offsets(taken(consume(start="error"), 2)) == [3, 4]

    def test_a_second_group_replays_everything_while_the_first_goes_on(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = filled(hub, shards=2, each=20)
        first = consume()
        assert len(taken(first, 40)) == 40
        second = consume(group="audit")
        stream.append(b"later", shard=1)
        assert places(taken(second, 41)) == {0: range(20), 1: range(21)}
        assert offsets(taken(first, 1)) == [20]

    def test_several_streams_are_read_by_one(self, hub: Hub, consume: Consume) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=2, each=3)
        records = taken(consume(["a", "b"]), 12)
        assert Counter(record.stream for record in records) == {"a": 6, "b": 6}

    def test_a_stream_that_matches_later_is_picked_up_from_its_beginning(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, "shop/orders", shards=1, each=3)
        filled(hub, "else", shards=1, each=3)
        consumer = consume("shop/*", start="latest")
        assert consumer.read(timeout="20ms") is None
        time.sleep(0.002)  # times are whole milliseconds: the stream is younger than its reader
        later = hub.create_stream("shop/later", shards=2)
        later.append_many([(b"x", None)] * 4, shard=1)
        began_s = time.monotonic()
        assert places(taken(consumer, 4)) == {1: range(4)}
        assert time.monotonic() - began_s < 2
        assert {shard.stream for shard in consumer.granted} == {"shop/orders", "shop/later"}

    def test_a_stream_of_a_pattern_may_go(self, hub: Hub, consume: Consume) -> None:
        for name in ("shop/a", "shop/b"):
            filled(hub, name, shards=1, each=1)
        consumer = consume("shop/*")
        taken(consumer, 2)
        hub.delete_stream("shop/a")
        hub.stream("shop/b").append(b"x")
        assert taken(consumer, 1)[0].stream == "shop/b"
        until(lambda: consumer.granted == [ShardId("shop/b", 0)], "the shard is gone too", 10)
        hub.stream("shop/b").append(b"x")
        assert taken(consumer, 1)[0].offset == 2
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2, "what is gone is not waited for"

    def test_reading_waits_as_long_as_told_and_no_longer(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=0)
        consumer = consume()
        began_s = time.monotonic()
        assert consumer.read(timeout="300ms") is None
        assert 0.3 <= time.monotonic() - began_s < 0.8
        began_s = time.monotonic()
        assert consumer.read_batch(timeout=0.2) == []
        assert 0.2 <= time.monotonic() - began_s < 0.7

    def test_lists_of_records(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=50)
        consumer = consume(max_records=20)
        first = consumer.read_batch(timeout="10s")
        assert isinstance(first, list)
        assert 0 < len(first) <= 20
        lists = [first, *consumer.batches(timeout="100ms")]
        assert all(0 < len(one) <= 20 for one in lists)
        assert {len({record.shard for record in one}) for one in lists} == {1}
        assert places([r for one in lists for r in one]) == {0: range(50), 1: range(50)}
        assert consumer.read_batch(timeout="20ms") == []
        consumer.commit()
        assert checkpoints(hub) == {0: 50, 1: 50}

    def test_arrow_batches(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=40)
        found: dict[int, list[int]] = defaultdict(list)
        for batch in consume().arrow_batches(timeout="100ms"):
            place = batch.schema.metadata
            assert place[b"penstock.stream"].decode() == STREAM
            found[int(place[b"penstock.shard"])] += batch.column("offset").to_pylist()
        assert found == {0: list(range(40)), 1: list(range(40))}

    def test_data_may_be_decoded_by_a_function(self, hub: Hub, consume: Consume) -> None:
        hub.create_stream(STREAM, shards=1).append(b"Uryyb")
        consumer = consume(decode=lambda data: codecs.decode(data.decode(), "rot13"))
        (record,) = taken(consumer, 1)
        assert (record.value, record.data) == ("Hello", b"Uryyb")

    def test_an_event_loop_is_not_blocked(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=2, each=5)
        consumer = consume()
        ticks = []

        async def tick() -> None:
            while True:
                ticks.append(time.monotonic())
                await asyncio.sleep(0.01)

        async def main() -> list[Record]:
            ticking = asyncio.create_task(tick())
            found = []
            async for record in consumer:
                found.append(record)
                if len(found) == 10:
                    asyncio.get_running_loop().call_later(0.3, stream.append, b"later")
                if len(found) == 11:
                    break
            ticking.cancel()
            return found

        found = asyncio.run(main())
        assert len(found) == 11
        assert len(ticks) > 10, "the loop went on while the consumer waited"
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2
        assert sum(filter(None, checkpoints(hub).values())) == 10, "the last one was not done"

    def test_log_reads_are_as_large_as_they_may_be(
        self, hub: Hub, consume: Consume, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=1, each=1_000)
        reads: list[int] = []
        read = backend.read

        def counted(*place: Any, **limits: Any) -> Reading:
            reading = read(*place, **limits)
            reads.append(sum(map(len, reading.batches)))
            return reading

        monkeypatch.setattr(backend, "read", counted)
        taken(consume(max_records=100), 1_000)
        assert max(reads) == 100
        assert len(reads) <= math.ceil(1_000 / 100) + 1

    def test_unmarked_records_of_a_shard_are_bounded_and_others_flow(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=100)
        consumer = consume(prefetch=16, auto_mark=False, max_wait_handler="50ms")
        unmarked = 0
        flowing: list[int] = []
        while len(flowing) < 100:
            (record,) = taken(consumer, 1)
            if record.shard == 0:
                unmarked += 1
            else:
                flowing.append(record.offset)
                consumer.mark(record)
        assert flowing == list(range(100))
        while consumer.read(timeout="50ms") is not None:
            unmarked += 1
        assert unmarked == 16

    def test_at_most_the_prefetch_is_fetched_and_not_done(
        self, hub: Hub, consume: Consume, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=1, each=100)
        fetched = 0
        read = backend.read

        def counted(*place: Any, **limits: Any) -> Reading:
            nonlocal fetched
            reading = read(*place, **limits)
            fetched += sum(map(len, reading.batches))
            return reading

        monkeypatch.setattr(backend, "read", counted)
        consumer = consume(prefetch=16)
        for done in range(100):
            taken(consumer, 1)
            assert fetched - done <= 16

    def test_bytes_in_flight_are_shared_out_to_the_shards(
        self, hub: Hub, consume: Consume, backend: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = hub.create_stream(STREAM, shards=4)
        for shard in range(4):
            for _ in range(60):
                stream.append(b"x" * 1_000, shard=shard)
        flying: Counter[int] = Counter()
        read = backend.read

        def counted(info: Any, shard: int, *place: Any, **limits: Any) -> Reading:
            reading = read(info, shard, *place, **limits)
            flying[shard] += sum(batch.nbytes for batch in reading.batches)
            return reading

        monkeypatch.setattr(backend, "read", counted)
        consumer = consume(auto_mark=False, max_bytes=80_000, max_wait_handler="50ms")
        while consumer.read(timeout="50ms") is not None:
            pass
        one_record = 1_100
        assert set(flying) == {0, 1, 2, 3}
        assert 10_000 < max(flying.values()) <= 80_000 / 4 + one_record
        assert sum(flying.values()) <= 80_000 + 4 * one_record

    def test_few_bytes_are_waited_with_for_more(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=1, each=0)
        consumer = consume(min_bytes=1_000, max_wait="500ms")
        stream.append(b"small")
        began_s = time.monotonic()
        taken(consumer, 1)
        assert 0.45 < time.monotonic() - began_s < 2
        stream.append(b"x" * 2_000)
        began_s = time.monotonic()
        taken(consumer, 1)
        assert time.monotonic() - began_s < 0.4, "enough is not waited with"

    def test_records_dropped_before_they_were_read_are_told_and_gone_on_behind(
        self, hub: Hub, consume: Consume, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = filled(hub, shards=1, each=10)
        with consume() as consumer:
            taken(consumer, 2)
            consumer.commit()
        if lacks(backend, "trim", lambda: backend.trim(stream.info, 0, 6)):
            return
        backend.trim(stream.info, 0, 6)
        with pytest.raises(OffsetOutOfRange, match="before the first kept offset 6"):
            consume(start="error")
        with caplog.at_level(logging.WARNING, "penstock"):
            consumer = consume(start="earliest")
        assert f"{STREAM}:0: records 2 to 5 were dropped before they were read" in caplog.text
        assert offsets(taken(consumer, 4)) == [6, 7, 8, 9]
        consumer.commit()
        assert checkpoints(hub) == {0: 10}

    def test_records_dropped_while_a_group_starts_at_the_latest_are_not_read_from_the_first(
        self, hub: Hub, consume: Consume, backend: Backend
    ) -> None:
        stream = filled(hub, shards=1, each=10)
        with consume() as consumer:
            taken(consumer, 2)
            consumer.commit()
        if lacks(backend, "trim", lambda: backend.trim(stream.info, 0, 6)):
            return
        backend.trim(stream.info, 0, 6)
        consumer = consume(start="latest")
        stream.append(b"later", shard=0)
        assert offsets(taken(consumer, 1)) == [10]

    def test_records_may_be_dropped_under_a_reader(
        self, hub: Hub, consume: Consume, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = filled(hub, shards=1, each=100)
        consumer, strict = consume(prefetch=4), consume(group="strict", prefetch=4)
        taken(consumer, 1)
        taken(strict, 1)
        strict.commit()
        strict.close()
        if lacks(backend, "trim", lambda: backend.trim(stream.info, 0, 50)):
            return
        backend.trim(stream.info, 0, 50)
        with caplog.at_level(logging.WARNING, "penstock"):
            rest = offsets(taken(consumer, 3 + 50))
        assert rest == [1, 2, 3, *range(50, 100)]
        assert "were dropped before they were read" in caplog.text


@_where_there_are_groups
class MarksContract(Consuming):
    """When a record counts as done, and when that is stored."""

    def test_marks_stay_in_memory_until_they_are_committed(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume(commit_every="1h", auto_mark=False, max_wait_handler="50ms")
        records = taken(consumer, 10)
        consumer.mark(records[:4])
        consumer.mark(records[6])
        assert checkpoints(hub) == {0: None}
        consumer.commit()
        assert checkpoints(hub) == {0: 4}, "what is not done is not skipped"
        consumer.mark(records[4])
        consumer.mark(records[5])
        consumer.commit()
        assert checkpoints(hub) == {0: 7}

    def test_nothing_is_done_unless_it_is_marked(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        with consume(auto_mark=False, max_wait_handler="50ms") as consumer:
            records = taken(consumer, 10)
            consumer.commit()
            assert checkpoints(hub) == {0: None}
            consumer.mark(records[0])
            consumer.mark(records[0])
        assert checkpoints(hub) == {0: 1}, "what is marked is committed by closing"
        assert offsets(taken(consume(), 1)) == [1]

    def test_a_record_in_hand_is_not_done_before_the_next_is_asked_for(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        with consume(commit_every="50ms") as consumer:
            taken(consumer, 3)
            until(lambda: checkpoints(hub) == {0: 2}, "those before it are stored", 10)
            until(lambda: consumer.granted, "it is still held", 10)
            time.sleep(0.2)  # several times as long as commits take
            assert checkpoints(hub) == {0: 2}
        assert checkpoints(hub) == {0: 2}
        assert offsets(taken(consume(), 2)) == [2, 3]

    def test_a_handler_that_fails_gets_its_record_again(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)

        class Broken(Exception):
            pass

        def broken() -> None:
            with consume() as consumer:
                for record in consumer:
                    if record.offset == 5:
                        raise Broken

        with pytest.raises(Broken):
            broken()
        assert checkpoints(hub) == {0: 5}
        assert offsets(taken(consume(), 1)) == [5]

    def test_commit_returns_when_the_checkpoint_can_be_read(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        consumer = consume(commit_every="1h")
        for count in range(1, 11):
            taken(consumer, 1)
            consumer.commit()
            assert sum(filter(None, checkpoints(hub).values())) == count

    def test_marks_are_committed_in_time_and_not_more_often(
        self, hub: Hub, consume: Consume, backend: Backend
    ) -> None:
        stream = filled(hub, shards=2, each=400)
        consumer = consume(commit_every="150ms")
        watched = [keys.checkpoint_key(GROUP, stream.info.id, shard) for shard in range(2)]
        versions: dict[bytes, set[int]] = defaultdict(set)
        began_s = time.monotonic()
        first_s = math.inf
        while (passed_s := time.monotonic() - began_s) < 0.8:
            taken(consumer, 1)
            for key in watched:
                version = backend.version(key)
                if version:
                    first_s = min(first_s, passed_s)
                    versions[key].add(version)
            time.sleep(0.002)
        assert 0.15 <= first_s < 0.65
        assert set(versions) == set(watched)
        assert max(map(len, versions.values())) <= passed_s / 0.15
        until(
            lambda: sum(filter(None, checkpoints(hub).values())) > 10,
            "they are stored although nothing more is asked for",
            10,
        )

    def test_a_later_consumer_picks_up_behind_the_last_mark(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=3, each=30)
        seen: list[Record] = []
        while len(seen) < 90:
            with consume() as consumer:
                seen += taken(consumer, 10)
                consumer.mark(seen[-1])
        assert Counter(map(_id, seen)) == _all(3, 30)

    def test_a_commit_under_a_grant_that_is_over_is_refused(
        self, hub: Hub, consume: Consume, backend: Backend
    ) -> None:
        filled(hub, shards=2, each=5)
        consumer = consume(commit_every="1h")
        (record,) = taken(consumer, 1)
        shard = ShardId(STREAM, record.shard)
        epoch = hub.groups.load(GROUP).shards[shard].epoch
        Coordinator(backend).apply(GROUP, Fence(shard, epoch))
        with pytest.raises(Fenced, match=str(shard)):
            consumer.commit()
        assert checkpoints(hub) == {0: None, 1: None}
        again = taken(consumer, 10)
        assert places(again) == {0: range(5), 1: range(5)}, "its owner has it again, from there"

    def test_a_checkpoint_moved_by_hand_is_followed(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume()
        taken(consumer, 6)
        hub.groups.seek(GROUP, 3, force=True)
        with pytest.raises(Fenced):
            consumer.commit()
        assert offsets(taken(consumer, 2)) == [3, 4]


@_where_there_are_groups
class SharingContract(Consuming):
    """Who holds what."""

    def test_a_consumer_is_a_member_until_it_is_closed(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=0)
        with consume(name="ann"):
            assert list(hub.groups.load(GROUP).members) == ["ann"]
            assert held(hub) == {"ann": [0, 1]}
        assert hub.groups.load(GROUP).members == {}
        assert held(hub) == {}

    def test_shards_are_shared_out_fairly_and_soon(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=12, each=0)
        began_s = time.monotonic()
        three = [consume(name=name, session="4s", heartbeat="1s") for name in ("a", "b", "c")]
        until(lambda: [len(one.granted) for one in three] == [4, 4, 4], "4 each", 10)
        assert time.monotonic() - began_s < 2
        everything = [shard for one in three for shard in one.granted]
        assert sorted(everything) == [ShardId(STREAM, index) for index in range(12)]

    def test_two_groups_do_not_know_each_other(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=0)
        a, b = consume(name="a", group="1"), consume(name="b", group="1")
        c = consume(name="c", group="2")
        until(lambda: len(a.granted) == len(b.granted) == 2, "A: 2, B: 2", 10)
        assert len(c.granted) == 4

    def test_shards_of_several_streams_are_shared_out_together(
        self, hub: Hub, consume: Consume
    ) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=3, each=0)
        one, other = consume(["a", "b"]), consume(["a", "b"])
        until(lambda: len(one.granted) == len(other.granted) == 3, "3 + 3", 10)

    def test_a_capped_share_is_never_exceeded(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=12, each=0)
        first = consume(name="a", allocator=capped(3))
        assert len(first.granted) == 4
        second = consume(name="b", allocator="capped(3)")
        until(lambda: len(second.granted) == 4, "the second holds 4 more", 10)
        assert len(first.granted) == 4
        assert not set(first.granted) & set(second.granted)

    def test_who_has_no_shard_idles_and_gets_one_when_another_leaves(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=4, each=0)
        settings = {"session": "4s", "heartbeat": "1s"}
        five = [consume(name=f"m{n}", **settings) for n in range(5)]
        until(lambda: sorted(len(c.granted) for c in five) == [0, 1, 1, 1, 1], "one idles", 10)
        idle = next(consumer for consumer in five if not consumer.granted)
        assert idle.read(timeout="20ms") is None
        next(consumer for consumer in five if consumer.granted).close()
        began_s = time.monotonic()
        until(lambda: len(idle.granted) == 1, "it has one now", 10)
        assert time.monotonic() - began_s < 2

    def test_an_own_allocator_sees_the_shards_of_all_streams(
        self, hub: Hub, consume: Consume
    ) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=2, each=0)
        asked: list[set[str]] = []

        def deal(members: Members, shards: Shards, owners: Owners) -> Assignment:
            asked.append({shard.stream for shard in shards})
            return {
                member.name: [shard for shard in shards if shard.stream in member.streams]
                for member in members
            }

        mine = Allocator("mine", deal=deal)
        consume("a", name="1", allocator=mine)
        other = consume("b", name="2", allocator=mine)
        assert asked[0] == {"a"}
        assert {"a", "b"} in asked
        assert other.granted == [ShardId("b", 0), ShardId("b", 1)]

    def test_an_allocator_that_disagrees_is_refused(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=0)
        consume(allocator="balanced")
        with pytest.raises(BadSetting, match="same allocator"):
            consume(allocator="round_robin")
        assert len(hub.groups.load(GROUP).members) == 1

    def test_another_stream_of_another_member_leaves_grants_alone(
        self, hub: Hub, consume: Consume
    ) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=4, each=0)
        first = consume("a", name="1")
        before = {s: standing.epoch for s, standing in hub.groups.load(GROUP).shards.items()}
        other = consume("b", name="2")
        until(lambda: len(other.granted) == 4, "the second stream is read", 10)
        after = hub.groups.load(GROUP).shards
        assert {shard: after[shard].epoch for shard in before} == before
        assert len(first.granted) == 4

    def test_leaving_the_block_frees_shards_at_once(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=10)
        other = consume(name="b", session="60s", heartbeat="10s")
        with consume(name="a", session="60s", heartbeat="10s") as consumer:
            until(lambda: len(other.granted) == len(consumer.granted) == 2, "2 each", 10)
            taken(consumer, 3)
        began_s = time.monotonic()
        until(lambda: len(other.granted) == 4, "all four", 10)
        assert time.monotonic() - began_s < 1

    def test_the_first_one_makes_the_group_unless_it_must_not(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=0)
        with pytest.raises(UnknownGroup, match="'biling'"):
            consume(group="biling", create=False)
        assert hub.groups.names() == []
        consume(group=GROUP)
        group = hub.groups.load(GROUP)
        assert (group.timeout_s, group.order, group.allocator.name) == (3.0, False, "balanced")
        consume(group=GROUP, create=False)

    def test_signs_of_life_go_on_while_a_handler_works(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=1)
        taken(consume(name="ann"), 1)
        group = hub.groups.load(GROUP)
        beats = set()

        def beaten() -> bool:
            sign = hub.groups.signs(group)["ann"]
            assert sign is not None
            assert sign.alive
            beats.add(sign.beat)
            return len(beats) > 3

        until(beaten, "its counter grows although nothing is asked for", 10)

    @pytest.mark.parametrize("heartbeat", ["50ms", "150ms"])
    def test_who_is_heard_by_nobody_is_removed_after_a_session(
        self, hub: Hub, consume: Consume, backend: Backend, heartbeat: str
    ) -> None:
        stream = filled(hub, shards=2, each=0)
        consumer = consume(name="b", session="500ms", heartbeat=heartbeat)
        facts = StreamFacts(STREAM, stream.info.id, (ShardFacts(0), ShardFacts(1)))
        group = hub.groups.load(GROUP)
        ghost = Join("a", group.version << 30, (facts,), group.allocator, timeout_s=0.5)
        Coordinator(backend).apply(GROUP, ghost)
        joined_s = time.monotonic()
        until(lambda: len(consumer.granted) == 1, "one shard is the other's", 10)
        until(
            lambda: list(hub.groups.load(GROUP).members) == ["b"],
            "the silent one is gone",
            5,
        )
        assert time.monotonic() - joined_s >= 0.5
        until(lambda: len(consumer.granted) == 2, "its shards are taken over", 10)

    def test_of_two_of_one_name_the_newer_stays(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=2, each=5)
        older = consume(name="ann")
        taken(older, 1)
        newer = consume(name="ann")
        incarnation = hub.groups.load(GROUP).members["ann"].incarnation
        for _ in range(2):
            with pytest.raises(Replaced, match="'ann'"):
                taken(older, 20)
        with pytest.raises(Fenced):
            older.commit()
        assert places(taken(newer, 10)) == {0: range(5), 1: range(5)}
        older.close()
        stream.append(b"later", shard=0)
        assert taken(newer, 1)[0].offset == 5
        assert hub.groups.load(GROUP).members["ann"].incarnation == incarnation

    def test_shards_are_read_one_record_after_the_other_whoever_holds_them(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=4, each=60)
        effects: list[tuple[int, int, float, float]] = []

        def handle(record: Record) -> None:
            began_s = time.monotonic()
            time.sleep((record.offset * 7 + record.shard) % 5 / 2_000)
            effects.append((record.shard, record.offset, began_s, time.monotonic()))

        workers = [Worker(consume(name="a"), handle)]
        until(lambda: len(effects) > 20, "the first is at work", 20)
        workers.append(Worker(consume(name="b"), handle))
        until(lambda: len(effects) > 80, "both are at work", 20)
        workers.pop(0).close()
        until(lambda: len(effects) >= 240, "all is done", 20)
        workers[0].close()
        by_shard: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
        for shard, *effect in sorted(effects, key=lambda effect: effect[2]):
            by_shard[shard].append(tuple(effect))  # type: ignore[arg-type]
        for shard, done in by_shard.items():
            assert [offset for offset, _, _ in done] == list(range(60)), f"shard {shard}"
            for (_, _, ended_s), (_, began_s, _) in itertools.pairwise(done):
                assert began_s >= ended_s


@_where_there_are_groups
class HandOverContract(Consuming):
    """How a shard changes hands, stands still, or jumps."""

    def test_grants_are_told_in_the_workers_thread_and_ends_before_they_happen(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        told: list[tuple[str, int, list[ShardId], dict[str, list[int]]]] = []

        def tell(what: str) -> Callable[[list[ShardId]], None]:
            return lambda shards: told.append((what, threading.get_ident(), shards, held(hub)))

        first = consume(name="a", on_grant=tell("grant"), on_revoke=tell("revoke"))
        assert told == []
        taken(first, 1)
        me = threading.get_ident()
        assert [(what, thread, len(shards)) for what, thread, shards, _ in told] == [
            ("grant", me, 2)
        ]
        told.clear()
        second = consume(name="b")
        until(lambda: len(first.granted) == 1, "it shall let go of one", 10)
        assert second.granted == []
        assert told == []
        first.read(timeout="1ms")
        ((what, thread, shards, then),) = told
        assert (what, thread) == ("revoke", me)
        assert len(shards) == 1
        assert "b" not in then, "nobody else had it when this was told"
        until(lambda: second.granted == shards, "then it goes", 10)
        told.clear()
        first.close()
        assert [(what, shards) for what, _, shards, _ in told] == [("revoke", [*_others(shards)])]

    def test_what_is_done_is_committed_before_a_shard_goes(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=100)
        first = consume(name="a", allocator=LAST_BY_NAME, commit_every="1h")
        taken(first, 30)
        second = consume(name="b", allocator=LAST_BY_NAME)
        until(lambda: first.granted == [], "it shall let go", 10)
        assert second.granted == [], "the record in hand is waited for"
        assert first.read(timeout="1ms") is None, "nothing that was read ahead is handed out"
        assert offsets(taken(second, 70)) == list(range(30, 100))

    def test_a_long_handler_keeps_its_place_and_its_record(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        settings = {"session": "500ms", "heartbeat": "150ms", "allocator": LAST_BY_NAME}
        first = consume(name="a", **settings)
        taken(first, 1)
        member = hub.groups.load(GROUP).members["a"]
        second = consume(name="b", **settings)
        work_s = time.monotonic() + 0.8
        while time.monotonic() < work_s:  # the handler, which outlasts the session
            assert hub.groups.load(GROUP).members.get("a") == member
            assert second.granted == []
            time.sleep(0.02)
        assert first.read(timeout="1ms") is None
        assert offsets(taken(second, 9)) == list(range(1, 10))

    def test_a_handler_that_does_not_return_is_not_waited_for_for_ever(
        self, hub: Hub, consume: Consume, caplog: pytest.LogCaptureFixture
    ) -> None:
        filled(hub, shards=1, each=10)
        first = consume(name="a", allocator=LAST_BY_NAME, max_wait_handler="400ms")
        taken(first, 4)
        began_s = time.monotonic()
        with caplog.at_level(logging.WARNING, "penstock"):
            second = consume(name="b", allocator=LAST_BY_NAME)
            until(lambda: second.granted, "it goes all the same", 10)
        assert 0.35 < time.monotonic() - began_s < 2
        assert f"{STREAM}:0: let go, records 3 to " in caplog.text
        assert offsets(taken(second, 7)) == list(range(3, 10))
        with pytest.raises(Fenced):
            first.commit()

    def test_what_was_read_ahead_does_not_prolong_a_hand_over(
        self, hub: Hub, consume: Consume
    ) -> None:
        took_s = {}
        for count in (1, 256):
            name = f"of-{count}"
            filled(hub, name, shards=1, each=count)
            settings = {"group": name, "allocator": LAST_BY_NAME}
            working = threading.Event()

            def handle(_: Record, working: threading.Event = working) -> None:
                working.set()
                time.sleep(0.05)

            worker = Worker(consume(name, name="a", **settings), handle)
            assert working.wait(WAIT_S)
            began_s = time.monotonic()
            second = consume(name, name="b", **settings)
            until(lambda second=second: second.granted, "it is handed over", 20)  # type: ignore[misc]
            took_s[count] = time.monotonic() - began_s
            worker.close()
            second.close()
        assert took_s[256] < took_s[1] + 0.5, "256 of them take 12.8 s"

    def test_a_shard_can_be_moved_to_any_place_by_who_holds_it(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = hub.create_stream(STREAM, shards=1)
        for minute in range(10):
            stream.append(b"x", timestamp=datetime(2026, 1, 1, 12, minute, tzinfo=UTC))
        consumer = consume()
        taken(consumer, 5)
        noon = datetime(2026, 1, 1, 12, 6, 30, tzinfo=UTC)
        moves: list[tuple[int | ShardId, Where, int]] = [
            (0, "earliest", 0),
            (0, 8, 8),
            (ShardId(STREAM, 0), 2, 2),
            (0, noon, 7),
        ]
        for shard, where, expected in moves:
            consumer.seek(shard, where)
            assert checkpoints(hub) == {0: expected}, "stored on return"
            assert offsets(taken(consumer, 2)) == [expected, expected + 1]
        consumer.seek(0, "latest")
        stream.append(b"later")
        assert offsets(taken(consumer, 1)) == [10]
        consumer.commit()
        assert checkpoints(hub) == {0: 11}

    def test_a_move_to_what_is_not_there_is_refused(
        self, hub: Hub, consume: Consume, backend: Backend
    ) -> None:
        stream = filled(hub, shards=2, each=10)
        consumer, other = consume(name="a"), consume(name="b")
        until(lambda: len(consumer.granted) == len(other.granted) == 1, "1 each", 10)
        mine, others = consumer.granted[0].index, other.granted[0].index
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            consumer.seek(mine, 11)
        with pytest.raises(BadSetting, match=f"{STREAM}:{others} is not held .* {STREAM}:{mine}"):
            consumer.seek(others, 0)
        for where in ("first", None, 1.5, True):
            with pytest.raises(BadSetting, match="'earliest', 'latest', an offset or a datetime"):
                consumer.seek(mine, where)  # type: ignore[arg-type]
        if not lacks(backend, "trim", lambda: backend.trim(stream.info, mine, 4)):
            backend.trim(stream.info, mine, 4)
            with pytest.raises(OffsetOutOfRange, match="before the first kept offset 4"):
                consumer.seek(mine, 3)
        assert len(consumer.granted) == 1

    def test_a_paused_shard_stands_still_and_stays_held(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=10)
        consumer = consume()
        (first,) = taken(consumer, 1)
        consumer.pause(first.shard)
        assert {record.shard for record in taken(consumer, 10)} == {1 - first.shard}
        assert consumer.read(timeout="50ms") is None
        assert len(consumer.granted) == 2
        consumer.resume(first.shard)
        assert places(taken(consumer, 9)) == {first.shard: range(1, 10)}
        with pytest.raises(BadSetting, match="is not held"):
            consumer.pause(7)

    def test_an_only_shard_stands_still_too(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume()
        taken(consumer, 1)
        consumer.pause(0)
        assert consumer.read(timeout="50ms") is None
        consumer.resume(0)
        assert offsets(taken(consumer, 9)) == list(range(1, 10))

    def test_iteration_ends_when_another_thread_closes(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        working, go_on = threading.Event(), threading.Event()

        def handle(record: Record) -> None:
            if record.offset == 4:
                working.set()
                assert go_on.wait(WAIT_S)

        busy = Worker(consume(commit_every="1h"), handle)
        assert working.wait(WAIT_S)
        closing = threading.Thread(target=busy.consumer.close)
        closing.start()
        until(lambda: busy.consumer._hands.ending, "it is about to close", 10)
        go_on.set()
        began_s = time.monotonic()
        closing.join(WAIT_S)
        busy.join()
        assert time.monotonic() - began_s < 2
        assert checkpoints(hub) == {0: 5}, "what was finished counts"

        idle = Worker(consume(commit_every="50ms"), lambda _: None)
        until(lambda: checkpoints(hub) == {0: 10} or idle.ended, "all is read", 10)
        idle.consumer.close()
        idle.join()
        with pytest.raises(Closed, match="was closed"):
            idle.consumer.read(timeout="1s")

    def test_a_deleted_group_ends_its_consumers(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=1)
        consumer = consume()
        taken(consumer, 1)
        hub.groups.delete(GROUP, force=True)
        with pytest.raises(UnknownGroup, match=GROUP):
            consumer.read(timeout="10s")
        consumer.close()
        assert hub.groups.names() == []

    @pytest.mark.parametrize("busy", [False, True], ids=["waiting", "in a handler"])
    def test_a_deleted_stream_that_was_named_ends_its_consumers(
        self, hub: Hub, consume: Consume, busy: bool
    ) -> None:
        filled(hub, shards=1, each=1)
        consumer = consume()
        taken(consumer, 1)
        if not busy:
            assert consumer.read(timeout="1ms") is None
        hub.delete_stream(STREAM)
        if busy:
            until(lambda: not hub.groups.load(GROUP).shards, "the group has heard of it", 10)
            until(lambda: not consumer.granted, "and the consumer too", 10)
        with pytest.raises(UnknownStream, match=STREAM):
            consumer.read(timeout="5s")

    def test_a_stream_that_is_not_there_is_refused(self, hub: Hub, consume: Consume) -> None:
        with pytest.raises(UnknownStream, match="nowhere"):
            consume("nowhere")
        assert hub.groups.names() == []
        assert consume("no*").granted == []

    def test_a_group_of_too_much_is_refused_with_the_reason(
        self, hub: Hub, consume: Consume, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=3, each=0)
        monkeypatch.setattr("penstock.core.group.GROUP_SHARDS_MAX", 2)
        with pytest.raises(Refused, match="2"):
            consume()


class ConsumerContract(
    FixedShardsContract,
    ReadingAsAGroupContract,
    MarksContract,
    SharingContract,
    HandOverContract,
):
    """All of it."""


class Worker:
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
        """The iteration has ended, and well."""
        self._thread.join(WAIT_S)
        assert self.ended
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.consumer.close()
        self.join()


def filled(hub: Hub, name: str = STREAM, *, shards: int, each: int) -> Stream:
    """A stream with so many records in each shard."""
    stream = hub.create_stream(name, shards=shards)
    for shard in range(shards):
        stream.append_many(((b"%d" % number, None) for number in range(each)), shard=shard)
    return stream


def taken(consumer: Consumer, count: int) -> list[Record]:
    """The next so many records."""
    records: list[Record] = []
    while len(records) < count:
        record = consumer.read(timeout="10s")
        assert record is not None, f"{len(records)} of {count}, then nothing: {places(records)}"
        records.append(record)
    return records


def places(records: Iterable[Record]) -> dict[int, range | list[int]]:
    """Offsets in the order they came, by shard; a range if that is what they are."""
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
    """Which shards each member holds, for good."""
    found: dict[str, list[int]] = defaultdict(list)
    for shard, standing in sorted(hub.groups.load(group).shards.items()):
        if standing.state == "held" and standing.owner is not None:
            found[standing.owner].append(shard.index)
    return dict(found)


def checkpoints(hub: Hub, group: str = GROUP) -> dict[int, int | None]:
    """What is stored, by shard."""
    groups = hub.groups
    positions = groups.positions(groups.load(group))
    return {shard.index: position.checkpoint for shard, position in positions.items()}


def _all(shards: int, each: int) -> Counter[tuple[int, int]]:
    return Counter((shard, offset) for shard in range(shards) for offset in range(each))


def _id(record: Record) -> tuple[int, int]:
    return record.shard, record.offset


def _others(shards: list[ShardId]) -> list[ShardId]:
    return [shard for index in range(2) if (shard := ShardId(STREAM, index)) not in shards]
