"""How the members of a group share its shards, and how members come and go."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict

import pytest

from headrace.core.errors import (
    BadSetting,
    Fenced,
    Replaced,
    UnknownGroup,
)
from headrace.core.groups.allocators import Allocator, capped
from headrace.core.groups.even_shares import Assignment, Members, Owners, Shards
from headrace.core.groups.events import Join, ShardFacts, StreamFacts
from headrace.core.model import Record, ShardId
from headrace.core.ports import GroupStore
from headrace.groups.coordinator import Coordinator
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.consumer_tools import (
    GROUP,
    STREAM,
    Consume,
    ConsumersUnderTest,
    ReadingThread,
    filled,
    held,
    places,
    taken,
    where_there_are_groups,
)


@where_there_are_groups
class SharingContract(ConsumersUnderTest):
    """Which member holds which shards."""

    def test_a_consumer_is_a_member_until_it_is_closed(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=2, each=0)
        with consume(name="ann"):
            assert list(hub.groups.load(GROUP).members) == ["ann"]
            assert held(hub) == {"ann": [0, 1]}
        assert hub.groups.load(GROUP).members == {}
        assert held(hub) == {}

    def test_shards_are_shared_fairly_within_seconds(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=12, each=0)
        began_s = time.monotonic()
        three = [consume(name=name, session="4s", heartbeat="1s") for name in ("a", "b", "c")]
        until(
            lambda: [len(one.granted) for one in three] == [4, 4, 4],
            "each member holds 4 shards",
            10,
        )
        assert time.monotonic() - began_s < 2
        everything = [shard for one in three for shard in one.granted]
        assert sorted(everything) == [ShardId(STREAM, index) for index in range(12)]

    def test_two_groups_are_independent(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=0)
        a, b = consume(name="a", group="1"), consume(name="b", group="1")
        c = consume(name="c", group="2")
        until(lambda: len(a.granted) == len(b.granted) == 2, "each member holds 2 shards", 10)
        assert len(c.granted) == 4

    def test_shards_of_several_streams_are_shared_together(
        self, hub: Hub, consume: Consume
    ) -> None:
        for name in ("a", "b"):
            filled(hub, name, shards=3, each=0)
        one, other = consume(["a", "b"]), consume(["a", "b"])
        until(lambda: len(one.granted) == len(other.granted) == 3, "each member holds 3 shards", 10)

    def test_a_capped_share_is_never_exceeded(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=12, each=0)
        first = consume(name="a", allocator=capped(3))
        assert len(first.granted) == 4
        second = consume(name="b", allocator="capped(3)")
        until(lambda: len(second.granted) == 4, "the second member holds 4 shards", 10)
        assert len(first.granted) == 4
        assert not set(first.granted) & set(second.granted)

    def test_a_member_without_shards_gets_one_when_another_leaves(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=4, each=0)
        settings = {"session": "4s", "heartbeat": "1s"}
        five = [consume(name=f"m{n}", **settings) for n in range(5)]
        until(
            lambda: sorted(len(c.granted) for c in five) == [0, 1, 1, 1, 1],
            "one member has no shard",
            10,
        )
        idle = next(consumer for consumer in five if not consumer.granted)
        assert idle.read(timeout="20ms") is None
        next(consumer for consumer in five if consumer.granted).close()
        began_s = time.monotonic()
        until(lambda: len(idle.granted) == 1, "the idle member has a shard", 10)
        assert time.monotonic() - began_s < 2

    def test_a_custom_allocator_sees_the_shards_of_all_streams(
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

    def test_a_member_with_another_stream_does_not_change_other_grants(
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

    def test_leaving_the_with_block_frees_shards_at_once(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=10)
        other = consume(name="b", session="60s", heartbeat="10s")
        with consume(name="a", session="60s", heartbeat="10s") as consumer:
            until(
                lambda: len(other.granted) == len(consumer.granted) == 2,
                "each member holds 2 shards",
                10,
            )
            taken(consumer, 3)
        began_s = time.monotonic()
        until(lambda: len(other.granted) == 4, "one member holds all four shards", 10)
        assert time.monotonic() - began_s < 1

    def test_the_first_member_creates_the_group_unless_create_is_false(
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

    def test_heartbeats_go_on_while_a_handler_works(self, hub: Hub, consume: Consume) -> None:
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

        until(beaten, "the beat grows although no record is read", 10)

    @pytest.mark.parametrize("heartbeat", ["50ms", "150ms"])
    def test_a_silent_member_is_removed_after_a_session(
        self, hub: Hub, consume: Consume, store: GroupStore, heartbeat: str
    ) -> None:
        stream = filled(hub, shards=2, each=0)
        consumer = consume(name="b", session="500ms", heartbeat=heartbeat)
        facts = StreamFacts(STREAM, stream.info.id, (ShardFacts(0), ShardFacts(1)))
        group = hub.groups.load(GROUP)
        ghost = Join("a", group.version << 30, (facts,), group.allocator, timeout_s=0.5)
        Coordinator(store).apply(GROUP, ghost)
        joined_s = time.monotonic()
        until(lambda: len(consumer.granted) == 1, "the other member holds one shard", 10)
        until(
            lambda: list(hub.groups.load(GROUP).members) == ["b"],
            "the silent member is gone",
            5,
        )
        assert time.monotonic() - joined_s >= 0.5
        until(
            lambda: len(consumer.granted) == 2, "the shards of the silent member are taken over", 10
        )

    def test_of_two_members_with_one_name_the_newer_stays(self, hub: Hub, consume: Consume) -> None:
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

    def test_a_shard_is_read_in_order_across_its_owners(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=4, each=60)
        effects: list[tuple[int, int, float, float]] = []

        def handle(record: Record) -> None:
            began_s = time.monotonic()
            time.sleep((record.offset * 7 + record.shard) % 5 / 2_000)
            effects.append((record.shard, record.offset, began_s, time.monotonic()))

        threads = [ReadingThread(consume(name="a"), handle)]
        until(lambda: len(effects) > 20, "the first member reads", 20)
        threads.append(ReadingThread(consume(name="b"), handle))
        until(lambda: len(effects) > 80, "both members read", 20)
        threads.pop(0).close()
        until(lambda: len(effects) >= 240, "all records are done", 20)
        threads[0].close()
        by_shard: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
        for shard, *effect in sorted(effects, key=lambda effect: effect[2]):
            by_shard[shard].append(tuple(effect))  # type: ignore[arg-type]
        for shard, done in by_shard.items():
            assert [offset for offset, _, _ in done] == list(range(60)), f"shard {shard}"
            for (_, _, ended_s), (_, began_s, _) in itertools.pairwise(done):
                assert began_s >= ended_s
