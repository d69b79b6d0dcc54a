"""A shard stops because of a failure. It stays stopped for the whole group until an operator or new
code resumes it."""

from __future__ import annotations

import logging
import threading

import pytest

from headrace.core.model import RecordId, ShardId
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    checkpoints,
    fill,
    orders,
    origins,
    stored_state,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import (
    ORDERS,
    TOTALS,
    mended_shop,
    shop,
    shop_and_books,
)

BAD = {"fails": 100}
STOP = {"retries": 1, "delay": "0s"}


class StoppingContract(EngineUnderTest):
    def test_only_the_shard_of_the_failure_stops(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=3, each=2)
        stream.append(BAD, shard=1)
        running = run(shop_and_books, policies={"serve": STOP})
        until(running.stopped, "the shard stops", 10)
        fill(stream, 2)  # appending is not affected
        assert running.wait("10s", until_caught_up=True), "a stopped shard does not count"
        assert running.stopped() == {"serve": ["shop/orders:1"]}
        assert origins(hub) == {0: list(range(4)), 1: [0, 1], 2: list(range(4))}
        assert len(values(hub, TOTALS)) == 10, "the downstream computation goes on"
        assert checkpoints(hub)[1] == 2
        assert running.counters["serve"].failures == 2
        until(lambda: running.counters["serve"].stopped == 1, "the stop is counted", 10)
        assert running.is_running

    def test_one_line_says_that_a_computation_was_terminated(
        self, hub: Hub, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = orders(hub, shards=3)
        for shard in range(3):
            stream.append(BAD, shard=shard)
        with caplog.at_level(logging.ERROR, "headrace"):
            running = run(shop, policy=STOP)
            until(lambda: len(running.stopped().get("serve", [])) == 3, "all shards stop", 10)
            until(lambda: caplog.text.count(": stopped at ") == 3, "each stop is logged", 10)
        line = "Terminate computation: serve due to previous failure"
        assert caplog.text.count(line) == 1

    def test_the_group_stores_where_and_why_a_shard_stopped(self, hub: Hub, run: Run) -> None:
        orders(hub, each=2).append({**BAD, "says": "no such thing"})
        running = run(shop, policy=STOP)
        until(running.stopped, "the shard stops", 10)
        group = hub.groups.load("serve")
        known = hub.groups.attempts(group)[ShardId(ORDERS, 0)]
        assert (known.offset, known.failed, known.stopped) == (2, 2, True)
        assert known.reason == "ValueError: no such thing"

    def test_a_stopped_shard_stays_stopped_for_new_replicas(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append(BAD, shard=0)
        first = run(shop, name="a", policy=STOP)
        until(first.stopped, "the shard stops", 10)
        second = run(shop, name="b", policy=STOP)
        fill(stream, 3, range(1, 2))
        assert second.wait("10s", until_caught_up=True)
        assert first.stop("5s")
        third = run(shop, name="c", policy=STOP)
        fill(stream, 3, range(1, 2))
        until(lambda: checkpoints(hub)[1] == 6, "the other shard goes on", 10)
        assert effects.count("begin", shard=0) == 2
        assert third.stopped() == {"serve": ["shop/orders:0"]}

    def test_a_resumed_shard_tries_the_record_with_all_its_retries(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=1)
        stream.append({"fails": 3})
        fill(stream, 1)
        running = run(shop, policy=STOP)
        until(running.stopped, "the shard stops", 10)
        assert hub.groups.resume("serve") == [ShardId(ORDERS, 0)]
        assert running.wait("10s", until_caught_up=True)
        until(lambda: origins(hub) == whole(1, 3), "all records are done", 10)
        assert effects.count("begin", offset=1) == 4
        assert running.stopped() == {}
        assert stored_state(hub)["count"] == 3

    def test_a_skipped_record_lets_its_shard_go_on(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=1)
        stream.append(BAD)
        fill(stream, 1)
        running = run(shop, policy=STOP)
        until(running.stopped, "the shard stops", 10)
        hub.groups.skip("serve", RecordId(ORDERS, 0, 1), force=True)
        until(lambda: origins(hub) == {0: [0, 2]}, "the shard goes on after the record", 10)
        assert running.stopped() == {}
        assert effects.count("begin", offset=1) == 2

    def test_new_code_resumes_a_stopped_shard_at_its_record(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=1)
        stream.append(BAD)
        fill(stream, 1)
        first = run(shop, name="a", policy=STOP)
        until(first.stopped, "the shard stops", 10)
        first.stop("5s")
        second = run(mended_shop, name="b", policy=STOP)
        until(lambda: origins(hub) == whole(1, 3), "all records have an output", 10)
        assert second.stopped() == {}
        assert [effect.offset for effect in effects.of("mended")] == [1, 2]

    def test_new_code_may_come_with_several_replicas_together(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=4)
        for shard in range(4):
            stream.append(BAD, shard=shard)
        first = run(shop, name="a", policy=STOP)
        until(lambda: len(first.stopped().get("serve", ())) == 4, "all shards stop", 10)
        first.stop("5s")
        both: list[Running] = []
        starting = [
            threading.Thread(target=lambda n=n: both.append(run(mended_shop, name=n)))
            for n in ("b", "c")
        ]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join(10)
        assert len(both) == 2
        until(lambda: origins(hub) == whole(4, 1), "all shards go on", 10)
        assert all(running.is_running for running in both)

    def test_the_same_code_does_not_resume_a_stopped_shard(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append(BAD, shard=0)
        first = run(shop, name="a", policy=STOP)
        until(first.stopped, "the shard stops", 10)
        first.stop("5s")
        second = run(shop, name="b", policy=STOP)
        fill(stream, 3, range(1, 2))
        assert second.wait("10s", until_caught_up=True)
        looked = second.replica._new_code_at_s
        until(lambda: second.replica._new_code_at_s > looked, "the replica looks for new code", 10)
        assert second.stopped() == {"serve": ["shop/orders:0"]}
        assert effects.count("begin", shard=0) == 2
