"""What a consumer reads: from which offset, in which order, how much at once."""

from __future__ import annotations

import asyncio
import codecs
import logging
import math
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.core.errors import (
    BadSetting,
    OffsetOutOfRange,
    UnknownShard,
    UnknownStream,
)
from headrace.core.model import Record, ShardId
from headrace.core.ports import Log, ReadResult
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import lacks
from headrace.testing.contracts.consumer_tools import (
    GROUP,
    STREAM,
    Consume,
    ConsumersUnderTest,
    checkpoints,
    filled,
    offsets,
    place,
    places,
    taken,
    where_there_are_groups,
)


class FixedShardsContract(ConsumersUnderTest):
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
        # Nothing is stored: another consumer begins at the start.
        assert places(taken(consume(group=None, shards=[2]), 11)) == {2: range(11)}

    def test_a_consumer_of_chosen_shards_closes_at_once(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume(group=None, shards=[0])
        taken(consumer, 10)
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2

    def test_chosen_shards_start_at_the_given_position(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=1, each=10)
        consumer = consume(group=None, shards=[0], start="latest")
        stream.append(b"later", shard=0)
        assert offsets(taken(consumer, 1)) == [10]
        consumer.seek(0, 4)
        assert offsets(taken(consumer, 2)) == [4, 5]
        consumer.seek(0, "earliest")
        assert offsets(taken(consumer, 11)) == list(range(11))

    def test_missing_shards_are_refused(self, hub: Hub) -> None:
        filled(hub, shards=2, each=0)
        for shards in ([2], [-1], [0, 7]):
            with pytest.raises(UnknownShard):
                hub.consumer(STREAM, shards=shards)
        with pytest.raises(UnknownStream, match="nowhere"):
            hub.consumer("nowhere", shards=[0])


@where_there_are_groups
class ReadingAsAGroupContract(ConsumersUnderTest):
    """Which records a group hands out, and from which offset on."""

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

    def test_records_appended_later_are_handed_out_soon(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=4, each=0)
        consumer = consume()
        for number in range(20):
            record_id = stream.append(b"%d" % number)
            record = consumer.read(timeout="10s")
            assert record is not None
            assert record.id == record_id

    def test_a_new_member_goes_on_at_the_checkpoint(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=250)
        done: list[Record] = []
        with consume(name="first") as consumer:
            for record in consumer:
                if len(done) == 500:
                    break  # this record is not done
                done.append(record)
        stored = checkpoints(hub)
        assert sum(filter(None, stored.values())) == 500
        rest = taken(consume(name="second"), 500)
        first: dict[int, int] = {}
        for record in rest:
            first.setdefault(record.shard, record.offset)
        assert first == {shard: at or 0 for shard, at in stored.items() if (at or 0) < 250}
        assert Counter(map(place, done + rest)) == Counter(
            (s, o) for s in range(4) for o in range(250)
        )

    def test_a_new_group_reads_from_the_earliest_record_by_default(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        assert places(taken(consume(), 10)) == {0: range(5), 1: range(5)}
        assert places(taken(consume(group="other", start="earliest"), 10)) == {
            0: range(5),
            1: range(5),
        }

    def test_a_group_started_at_the_latest_reads_records_appended_afterwards(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = filled(hub, shards=2, each=5)
        with consume(start="latest") as consumer:
            assert checkpoints(hub) == {0: 5, 1: 5}, "the start position is stored at once"
            assert consumer.read(timeout="20ms") is None
        stream.append(b"between", shard=0)
        again = consume(start="latest")
        stream.append(b"after", shard=1)
        assert places(taken(again, 2)) == {0: range(5, 6), 1: range(5, 6)}

    def test_a_group_can_start_at_a_time(self, hub: Hub, consume: Consume) -> None:
        stream = hub.create_stream(STREAM, shards=2)
        for minute in range(10):
            at = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
            stream.append(b"x", timestamp=at, shard=minute % 2)
        consumer = consume(start=datetime(2026, 1, 1, 12, 4, 30, tzinfo=UTC))
        assert sorted(r.timestamp.minute for r in taken(consumer, 5)) == [5, 6, 7, 8, 9]
        assert consumer.read(timeout="20ms") is None

    def test_with_start_error_a_group_without_checkpoint_is_refused(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=5)
        with pytest.raises(BadSetting, match="'earliest'"):
            consume(start="error")
        assert hub.groups.load(GROUP).members == {}
        with consume() as consumer:
            taken(consumer, 3)
            consumer.commit()
        assert offsets(taken(consume(start="error"), 2)) == [3, 4]

    def test_a_second_group_reads_everything_while_the_first_goes_on(
        self, hub: Hub, consume: Consume
    ) -> None:
        stream = filled(hub, shards=2, each=20)
        first = consume()
        assert len(taken(first, 40)) == 40
        second = consume(group="audit")
        stream.append(b"later", shard=1)
        assert places(taken(second, 41)) == {0: range(20), 1: range(21)}
        assert offsets(taken(first, 1)) == [20]

    def test_one_consumer_can_read_several_streams(self, hub: Hub, consume: Consume) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=2, each=3)
        records = taken(consume(["a", "b"]), 12)
        assert Counter(record.stream for record in records) == {"a": 6, "b": 6}

    def test_a_stream_that_matches_later_is_read_from_its_beginning(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, "shop/orders", shards=1, each=3)
        filled(hub, "else", shards=1, each=3)
        consumer = consume("shop/*", start="latest")
        assert consumer.read(timeout="20ms") is None
        time.sleep(
            0.002
        )  # times are whole milliseconds: the stream must be younger than the consumer
        later = hub.create_stream("shop/later", shards=2)
        later.append_many([(b"x", None)] * 4, shard=1)
        began_s = time.monotonic()
        assert places(taken(consumer, 4)) == {1: range(4)}
        assert time.monotonic() - began_s < 2
        assert {shard.stream for shard in consumer.granted} == {"shop/orders", "shop/later"}

    def test_a_stream_of_a_pattern_may_be_deleted(self, hub: Hub, consume: Consume) -> None:
        for name in ("shop/a", "shop/b"):
            filled(hub, name, shards=1, each=1)
        consumer = consume("shop/*")
        taken(consumer, 2)
        hub.delete_stream("shop/a")
        hub.stream("shop/b").append(b"x")
        assert taken(consumer, 1)[0].stream == "shop/b"
        until(
            lambda: consumer.granted == [ShardId("shop/b", 0)],
            "the shard of the deleted stream is gone",
            10,
        )
        hub.stream("shop/b").append(b"x")
        assert taken(consumer, 1)[0].offset == 2
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2, "close does not wait for a deleted stream"

    def test_read_waits_for_its_timeout_and_no_longer(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=0)
        consumer = consume()
        began_s = time.monotonic()
        assert consumer.read(timeout="300ms") is None
        assert 0.3 <= time.monotonic() - began_s < 0.8
        began_s = time.monotonic()
        assert consumer.read_batch(timeout=0.2) == []
        assert 0.2 <= time.monotonic() - began_s < 0.7

    def test_records_can_be_read_as_lists(self, hub: Hub, consume: Consume) -> None:
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

    def test_records_can_be_read_as_arrow_batches(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=40)
        found: dict[int, list[int]] = defaultdict(list)
        for batch in consume().arrow_batches(timeout="100ms"):
            place = batch.schema.metadata
            assert place[b"headrace.stream"].decode() == STREAM
            found[int(place[b"headrace.shard"])] += batch.column("offset").to_pylist()
        assert found == {0: list(range(40)), 1: list(range(40))}

    def test_a_consumer_can_decode_by_a_function(self, hub: Hub, consume: Consume) -> None:
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
        assert len(ticks) > 10, "the event loop went on while the consumer waited"
        began_s = time.monotonic()
        consumer.close()
        assert time.monotonic() - began_s < 2
        assert sum(filter(None, checkpoints(hub).values())) == 10, "the last record was not done"

    def test_reads_of_the_log_are_as_large_as_allowed(
        self, hub: Hub, consume: Consume, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=1, each=1_000)
        reads: list[int] = []
        read = log.read

        def counted(*place: Any, **limits: Any) -> ReadResult:
            reading = read(*place, **limits)
            reads.append(sum(map(len, reading.batches)))
            return reading

        monkeypatch.setattr(log, "read", counted)
        taken(consume(max_records=100), 1_000)
        assert max(reads) == 100
        assert len(reads) <= math.ceil(1_000 / 100) + 1

    def test_unmarked_records_are_bounded_per_shard_and_other_shards_flow(
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

    def test_at_most_prefetch_records_are_fetched_and_unfinished(
        self, hub: Hub, consume: Consume, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=1, each=100)
        fetched = 0
        read = log.read

        def counted(*place: Any, **limits: Any) -> ReadResult:
            nonlocal fetched
            reading = read(*place, **limits)
            fetched += sum(map(len, reading.batches))
            return reading

        monkeypatch.setattr(log, "read", counted)
        consumer = consume(prefetch=16)
        for done in range(100):
            taken(consumer, 1)
            assert fetched - done <= 16

    def test_bytes_in_flight_are_divided_among_the_shards(
        self, hub: Hub, consume: Consume, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream = hub.create_stream(STREAM, shards=4)
        for shard in range(4):
            for _ in range(60):
                stream.append(b"x" * 1_000, shard=shard)
        flying: Counter[int] = Counter()
        read = log.read

        def counted(info: Any, shard: int, *place: Any, **limits: Any) -> ReadResult:
            reading = read(info, shard, *place, **limits)
            flying[shard] += sum(batch.nbytes for batch in reading.batches)
            return reading

        monkeypatch.setattr(log, "read", counted)
        consumer = consume(auto_mark=False, max_bytes=80_000, max_wait_handler="50ms")
        while consumer.read(timeout="50ms") is not None:
            pass
        one_record = 1_100
        assert set(flying) == {0, 1, 2, 3}
        assert 10_000 < max(flying.values()) <= 80_000 / 4 + one_record
        assert sum(flying.values()) <= 80_000 + 4 * one_record

    def test_a_read_below_min_bytes_waits_for_more(self, hub: Hub, consume: Consume) -> None:
        stream = filled(hub, shards=1, each=0)
        consumer = consume(min_bytes=1_000, max_wait="500ms")
        stream.append(b"small")
        began_s = time.monotonic()
        taken(consumer, 1)
        assert 0.45 < time.monotonic() - began_s < 2
        stream.append(b"x" * 2_000)
        began_s = time.monotonic()
        taken(consumer, 1)
        assert time.monotonic() - began_s < 0.4, "enough bytes are handed out at once"

    def test_records_trimmed_unread_are_logged_and_passed_over(
        self, hub: Hub, consume: Consume, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = filled(hub, shards=1, each=10)
        with consume() as consumer:
            taken(consumer, 2)
            consumer.commit()
        if lacks(log, "trim", lambda: log.trim(stream.info, 0, 6)):
            return
        log.trim(stream.info, 0, 6)
        with pytest.raises(OffsetOutOfRange, match="before the first kept offset 6"):
            consume(start="error")
        with caplog.at_level(logging.WARNING, "headrace"):
            consumer = consume(start="earliest")
        assert f"{STREAM}:0: records 2 to 5 were dropped before they were read" in caplog.text
        assert offsets(taken(consumer, 4)) == [6, 7, 8, 9]
        consumer.commit()
        assert checkpoints(hub) == {0: 10}

    def test_with_start_latest_a_trimmed_checkpoint_moves_to_the_end(
        self, hub: Hub, consume: Consume, log: Log
    ) -> None:
        stream = filled(hub, shards=1, each=10)
        with consume() as consumer:
            taken(consumer, 2)
            consumer.commit()
        if lacks(log, "trim", lambda: log.trim(stream.info, 0, 6)):
            return
        log.trim(stream.info, 0, 6)
        consumer = consume(start="latest")
        stream.append(b"later", shard=0)
        assert offsets(taken(consumer, 1)) == [10]

    def test_a_trim_under_a_reader_is_passed_over_or_raised(
        self, hub: Hub, consume: Consume, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = filled(hub, shards=1, each=100)
        with consume(group="strict") as first:
            taken(first, 1)
            first.commit()
        consumer = consume(prefetch=4)
        strict = consume(group="strict", prefetch=4, start="error")
        taken(consumer, 1)
        taken(strict, 1)
        if lacks(log, "trim", lambda: log.trim(stream.info, 0, 50)):
            return
        log.trim(stream.info, 0, 50)
        with caplog.at_level(logging.WARNING, "headrace"):
            rest = offsets(taken(consumer, 3 + 50))
        assert rest == [1, 2, 3, *range(50, 100)]
        assert "were dropped before they were read" in caplog.text
        assert offsets(taken(strict, 3)) == [2, 3, 4]
        with pytest.raises(OffsetOutOfRange):
            strict.read(timeout="10s")
