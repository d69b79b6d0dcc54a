"""How shards move between members, are sought and paused, and how consumers end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from headrace.consumers.consumer import Consumer
from headrace.core.errors import (
    BadSetting,
    Closed,
    Fenced,
    OffsetOutOfRange,
    Refused,
    UnknownGroup,
    UnknownStream,
)
from headrace.core.model import Record, ShardId
from headrace.core.ports import Log
from headrace.hub.hub import Hub
from headrace.streams.start import Where
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S, lacks
from headrace.testing.contracts.consumer_tools import (
    GROUP,
    LAST_BY_NAME,
    STREAM,
    Consume,
    ConsumersUnderTest,
    ReadingThread,
    checkpoints,
    filled,
    held,
    offsets,
    places,
    taken,
    the_others,
    where_there_are_groups,
)


@where_there_are_groups
class HandOverContract(ConsumersUnderTest):
    """How a shard moves to another member, is paused, or is sought."""

    def test_callbacks_run_in_the_reading_thread_and_before_a_shard_moves(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=2, each=5)
        calls: list[tuple[str, int, list[ShardId], dict[str, list[int]]]] = []

        def noting(what: str) -> Callable[[list[ShardId]], None]:
            return lambda shards: calls.append((what, threading.get_ident(), shards, held(hub)))

        first = consume(name="a", on_grant=noting("grant"), on_revoke=noting("revoke"))
        assert calls == []
        taken(first, 1)
        me = threading.get_ident()
        assert [(what, thread, len(shards)) for what, thread, shards, _ in calls] == [
            ("grant", me, 2)
        ]
        calls.clear()
        second = consume(name="b")
        until(lambda: len(first.granted) == 1, "the first member must let go of one shard", 10)
        assert second.granted == []
        assert calls == []
        first.read(timeout="1ms")
        ((what, thread, shards, then),) = calls
        assert (what, thread) == ("revoke", me)
        assert len(shards) == 1
        assert "b" not in then, "no other member held the shard when on_revoke ran"
        until(lambda: second.granted == shards, "the shard moves", 10)
        calls.clear()
        first.close()
        assert [(what, shards) for what, _, shards, _ in calls] == [
            ("revoke", [*the_others(shards)])
        ]

    def test_finished_records_are_committed_before_a_shard_moves(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=100)
        first = consume(name="a", allocator=LAST_BY_NAME, commit_every="1h")
        taken(first, 30)
        second = consume(name="b", allocator=LAST_BY_NAME)
        until(lambda: first.granted == [], "the member must let go of a shard", 10)
        assert second.granted == [], "the record in hand is waited for"
        assert first.read(timeout="1ms") is None, "no prefetched record is handed out"
        assert offsets(taken(second, 70)) == list(range(30, 100))

    def test_a_handler_longer_than_the_session_keeps_its_shard(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        settings = {"session": "500ms", "heartbeat": "150ms", "allocator": LAST_BY_NAME}
        first = consume(name="a", **settings)
        taken(first, 1)
        member = hub.groups.load(GROUP).members["a"]
        second = consume(name="b", **settings)
        work_s = time.monotonic() + 0.8
        while time.monotonic() < work_s:  # the handler works longer than the session
            assert hub.groups.load(GROUP).members.get("a") == member
            assert second.granted == []
            time.sleep(0.02)
        assert first.read(timeout="1ms") is None
        assert offsets(taken(second, 9)) == list(range(1, 10))

    def test_a_hand_over_does_not_wait_for_ever_for_a_handler(
        self, hub: Hub, consume: Consume, caplog: pytest.LogCaptureFixture
    ) -> None:
        filled(hub, shards=1, each=10)
        first = consume(name="a", allocator=LAST_BY_NAME, max_wait_handler="400ms")
        taken(first, 4)
        began_s = time.monotonic()
        with caplog.at_level(logging.WARNING, "headrace"):
            second = consume(name="b", allocator=LAST_BY_NAME)
            until(lambda: second.granted, "the shard moves all the same", 10)
        assert 0.35 < time.monotonic() - began_s < 2
        assert f"{STREAM}:0: let go, records 3 to " in caplog.text
        assert offsets(taken(second, 7)) == list(range(3, 10))
        with pytest.raises(Fenced):
            first.commit()

    def test_prefetched_records_do_not_prolong_a_hand_over(
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

            reading = ReadingThread(consume(name, name="a", **settings), handle)
            assert working.wait(WAIT_S)
            began_s = time.monotonic()
            second = consume(name, name="b", **settings)
            until(lambda second=second: second.granted, "the shard is handed over", 20)  # type: ignore[misc]
            took_s[count] = time.monotonic() - began_s
            reading.close()
            second.close()
        assert took_s[256] < took_s[1] + 0.5, "256 records would take 12.8 s"

    def test_a_member_can_seek_a_shard_it_holds_to_any_offset(
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
            assert checkpoints(hub) == {0: expected}, "seek returns when the checkpoint is stored"
            assert offsets(taken(consumer, 2)) == [expected, expected + 1]
        consumer.seek(0, "latest")
        stream.append(b"later")
        assert offsets(taken(consumer, 1)) == [10]
        consumer.commit()
        assert checkpoints(hub) == {0: 11}

    def test_a_seek_out_of_bounds_or_in_a_foreign_shard_is_refused(
        self, hub: Hub, consume: Consume, log: Log
    ) -> None:
        stream = filled(hub, shards=2, each=10)
        consumer, other = consume(name="a"), consume(name="b")
        until(
            lambda: len(consumer.granted) == len(other.granted) == 1,
            "each member holds one shard",
            10,
        )
        mine, others = consumer.granted[0].index, other.granted[0].index
        with pytest.raises(OffsetOutOfRange, match="beyond the end"):
            consumer.seek(mine, 11)
        with pytest.raises(BadSetting, match=f"{STREAM}:{others} is not held .* {STREAM}:{mine}"):
            consumer.seek(others, 0)
        for where in ("first", None, 1.5, True):
            with pytest.raises(BadSetting, match="'earliest', 'latest', an offset or a datetime"):
                consumer.seek(mine, where)  # type: ignore[arg-type]
        if not lacks(log, "trim", lambda: log.trim(stream.info, mine, 4)):
            log.trim(stream.info, mine, 4)
            with pytest.raises(OffsetOutOfRange, match="before the first kept offset 4"):
                consumer.seek(mine, 3)
        assert len(consumer.granted) == 1

    def test_a_paused_shard_is_not_read_and_stays_held(self, hub: Hub, consume: Consume) -> None:
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

    def test_an_only_shard_can_be_paused(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=10)
        consumer = consume()
        taken(consumer, 1)
        consumer.pause(0)
        assert consumer.read(timeout="50ms") is None
        consumer.resume(0)
        assert offsets(taken(consumer, 9)) == list(range(1, 10))

    def test_iteration_ends_when_another_thread_closes_the_consumer(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=10)
        working, go_on = threading.Event(), threading.Event()

        def handle(record: Record) -> None:
            if record.offset == 4:
                working.set()
                assert go_on.wait(WAIT_S)

        busy = ReadingThread(consume(commit_every="1h"), handle)
        assert working.wait(WAIT_S)
        closing = threading.Thread(target=busy.consumer.close)
        closing.start()
        until(lambda: busy.consumer._shards.is_ending, "the consumer is closing", 10)
        go_on.set()
        began_s = time.monotonic()
        closing.join(WAIT_S)
        busy.join()
        assert time.monotonic() - began_s < 2
        assert checkpoints(hub) == {0: 5}, "a finished record counts"

        idle = ReadingThread(consume(commit_every="50ms"), lambda _: None)
        until(lambda: checkpoints(hub) == {0: 10} or idle.ended, "all records are read", 10)
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
    def test_deleting_a_stream_subscribed_by_name_ends_its_consumers(
        self, hub: Hub, consume: Consume, busy: bool
    ) -> None:
        filled(hub, shards=1, each=1)
        consumer = consume()
        taken(consumer, 1)
        if not busy:
            assert consumer.read(timeout="1ms") is None
        hub.delete_stream(STREAM)
        if busy:
            until(lambda: not hub.groups.load(GROUP).shards, "the group has no shards any more", 10)
            until(lambda: not consumer.granted, "the consumer has no shards any more", 10)
        with pytest.raises(UnknownStream, match=STREAM):
            consumer.read(timeout="5s")

    def test_a_missing_stream_is_refused(self, hub: Hub, consume: Consume) -> None:
        with pytest.raises(UnknownStream, match="nowhere"):
            consume("nowhere")
        assert hub.groups.names() == []
        assert consume("no*").granted == []

    def test_a_group_with_too_many_shards_is_refused_with_the_reason(
        self, hub: Hub, consume: Consume, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(hub, shards=3, each=0)
        monkeypatch.setattr("headrace.core.groups.machine.GROUP_SHARDS_MAX", 2)
        with pytest.raises(Refused, match="2"):
            consume()

    def test_a_commit_inside_on_revoke_counts(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=5)
        opened: list[Consumer] = []
        consumer = consume(on_revoke=lambda shards: opened[0].commit())
        opened.append(consumer)
        taken(consumer, 2)
        consumer.close()
        assert checkpoints(hub) == {0: 2}
        with pytest.raises(Closed):
            consumer.commit()

    def test_an_error_of_on_revoke_is_raised_and_the_shards_are_free(
        self, hub: Hub, consume: Consume
    ) -> None:
        filled(hub, shards=1, each=5)

        def fail(shards: list[ShardId]) -> None:
            raise ZeroDivisionError

        consumer = consume(on_revoke=fail)
        taken(consumer, 2)
        with pytest.raises(ZeroDivisionError):
            consumer.close()
        assert held(hub) == {}

    def test_every_on_grant_is_followed_by_an_on_revoke(self, hub: Hub, consume: Consume) -> None:
        filled(hub, shards=1, each=5)
        calls: list[str] = []
        consumer = consume(
            max_wait_handler="50ms",
            on_grant=lambda shards: calls.append("grant"),
            on_revoke=lambda shards: calls.append("revoke"),
        )
        taken(consumer, 1)
        hub.groups.seek(GROUP, 3, force=True)

        def goes_on_there() -> bool:
            record = consumer.read(timeout="1s")
            return record is not None and record.offset == 3 and len(calls) == 3

        until(goes_on_there, "the consumer goes on at the new checkpoint")
        assert calls == ["grant", "revoke", "grant"]

    @pytest.mark.parametrize("way", ["closed", "asked to end"])
    def test_a_loop_ends_with_its_consumer_and_no_other_begins(
        self, hub: Hub, consume: Consume, way: str
    ) -> None:
        filled(hub, shards=1, each=5)
        consumer = consume()
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if record.offset == 1:
                consumer.close() if way == "closed" else consumer._keeper.end()
                until(lambda: consumer.ended, "the consumer has ended")
        assert seen == [0, 1]
        for begin in (
            lambda: consumer.read(timeout="1s"),
            lambda: consumer.read_batch(timeout="1s"),
            lambda: next(iter(consumer)),
            lambda: next(consumer.batches(timeout="1s")),
        ):
            with pytest.raises(Closed):
                begin()
