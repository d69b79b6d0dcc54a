"""Marks: when a record counts as done, and when its checkpoint is committed."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict

import pytest

from headrace.core.errors import BadSetting, Fenced
from headrace.core.groups.events import Fence
from headrace.core.model import Record, ShardId
from headrace.core.ports import GroupStore
from headrace.groups.coordinator import Coordinator
from headrace.groups.stored import checkpoint_of
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.consumer_tools import (
    GROUP,
    STREAM,
    Consume,
    ConsumersUnderTest,
    all_places,
    checkpoints,
    filled,
    offsets,
    place,
    places,
    taken,
    where_there_are_groups,
)


@where_there_are_groups
class MarksContract(ConsumersUnderTest):
    """When a record counts as done, and when its checkpoint is committed."""

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
        assert checkpoints(hub) == {0: 4}, "a record that is not done is not passed over"
        consumer.mark(records[4])
        consumer.mark(records[5])
        consumer.commit()
        assert checkpoints(hub) == {0: 7}

    def test_without_auto_mark_no_unmarked_record_is_committed(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        with consume(auto_mark=False, max_wait_handler="50ms") as consumer:
            records = taken(consumer, 10)
            consumer.commit()
            assert checkpoints(hub) == {0: None}
            consumer.mark(records[0])
            consumer.mark(records[0])
        assert checkpoints(hub) == {0: 1}, "close commits what is marked"
        assert offsets(taken(consume(), 1)) == [1]

    def test_a_record_counts_as_done_when_the_next_one_is_asked_for(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        with consume(commit_every="50ms") as consumer:
            taken(consumer, 3)
            until(lambda: checkpoints(hub) == {0: 2}, "the records before it are committed", 10)
            until(lambda: consumer.granted, "the shard is still held", 10)
            time.sleep(0.2)  # several times as long as a commit takes
            assert checkpoints(hub) == {0: 2}
        assert checkpoints(hub) == {0: 2}
        assert offsets(taken(consume(), 2)) == [2, 3]

    def test_a_record_whose_handler_failed_is_handed_out_again(
        self, hub: Hub, consume: Consume
    ) -> None:
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

    def test_after_commit_returns_the_checkpoint_can_be_read(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        consumer = consume(commit_every="1h")
        for count in range(1, 11):
            taken(consumer, 1)
            consumer.commit()
            assert sum(filter(None, checkpoints(hub).values())) == count

    def test_marks_are_committed_every_interval_and_not_more_often(
        self, hub: Hub, consume: Consume, store: GroupStore
    ) -> None:
        stream = filled(hub, shards=2, each=400)
        consumer = consume(commit_every="150ms")
        seen: dict[int, set[int]] = defaultdict(set)
        began_s = time.monotonic()
        first_s = math.inf
        while (passed_s := time.monotonic() - began_s) < 0.8:
            taken(consumer, 1)
            for shard in range(2):
                checkpoint = checkpoint_of(store, GROUP, stream.info.id, shard)
                if checkpoint is not None:
                    first_s = min(first_s, passed_s)
                    seen[shard].add(checkpoint.commits)
            time.sleep(0.002)
        assert 0.15 <= first_s < 0.65
        assert set(seen) == {0, 1}
        assert max(map(len, seen.values())) <= passed_s / 0.15
        until(
            lambda: sum(filter(None, checkpoints(hub).values())) > 10,
            "the marks are committed although no further record is read",
            10,
        )

    def test_a_later_consumer_begins_after_the_last_mark(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=3, each=30)
        seen: list[Record] = []
        while len(seen) < 90:
            with consume() as consumer:
                seen += taken(consumer, 10)
                consumer.mark(seen[-1])
        assert Counter(map(place, seen)) == all_places(3, 30)

    def test_a_commit_under_an_ended_grant_is_refused(
        self, hub: Hub, consume: Consume, store: GroupStore
    ) -> None:
        filled(hub, shards=2, each=5)
        consumer = consume(commit_every="1h")
        (record,) = taken(consumer, 1)
        shard = ShardId(STREAM, record.shard)
        epoch = hub.groups.load(GROUP).shards[shard].epoch
        Coordinator(store).apply(GROUP, Fence(shard, epoch))
        with pytest.raises(Fenced, match=str(shard)):
            consumer.commit()
        assert checkpoints(hub) == {0: None, 1: None}
        again = taken(consumer, 10)
        assert places(again) == {0: range(5), 1: range(5)}, (
            "the owner reads on from the new checkpoint"
        )

    def test_a_consumer_follows_a_checkpoint_moved_by_an_operator(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume()
        taken(consumer, 6)
        hub.groups.seek(GROUP, 3, force=True)
        with pytest.raises(Fenced):
            consumer.commit()
        assert offsets(taken(consumer, 2)) == [3, 4]

    def test_a_second_loop_goes_on_where_the_first_was_left(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=6)
        consumer = consume()
        failed = next(iter(consumer))
        assert [failed.offset, next(iter(consumer)).offset] == [0, 0]
        loop = iter(consumer)
        assert [next(loop).offset, next(loop).offset] == [0, 1]
        consumer.commit()
        assert next(iter(consumer)).offset == 2
        assert offsets(next(consumer.batches())) == [2, 3, 4, 5]
        again = next(consumer.batches())
        assert offsets(again) == [2, 3, 4, 5]
        consumer.mark(again)
        assert list(consumer.batches(timeout="10ms")) == []

    def test_a_loop_does_not_repeat_records_read_before_it(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=3)
        consumer = consume()
        assert offsets(taken(consumer, 1)) == [0]
        loop = iter(consumer)
        assert [next(loop).offset, next(loop).offset] == [1, 2]

    def test_a_mark_of_an_earlier_grant_counts_only_up_to_the_handed_out_records(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=40)
        consumer = consume()
        old = taken(consumer, 40)
        consumer.commit()
        consumer.seek(0, 10)
        assert offsets(taken(consumer, 1)) == [10]
        consumer.mark(old[30])
        consumer.commit()
        assert checkpoints(hub) == {0: 11}

    def test_mark_takes_only_records(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=1)
        consumer = consume()
        for nothing in (5, None, "all", [5]):
            with pytest.raises(BadSetting, match="mark takes a record"):
                consumer.mark(nothing)  # type: ignore[arg-type]

    def test_a_refused_commit_names_the_records_that_were_not_stored(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        consumer = consume()
        records = taken(consumer, 10)
        shard = records[0].shard
        hub.groups.seek(GROUP, 1, shards=[shard], force=True)
        with pytest.raises(Fenced, match="records 0 to 4 were not committed and come again"):
            consumer.commit()
        assert checkpoints(hub) == {shard: 1, 1 - shard: 5}
        assert offsets(taken(consumer, 4)) == [1, 2, 3, 4]
        consumer.commit()
