"""What is counted for each computation."""

from __future__ import annotations

from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    fill,
    orders,
    origins,
)
from headrace.testing.contracts.engine.samples import shop_and_books, two_shops

BAD = {"fails": 100}


class CountersContract(EngineUnderTest):
    def test_records_outputs_and_slices_are_counted(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=2, each=50)
        running = run(shop_and_books)
        assert running.wait("10s", until_caught_up=True)
        for name in ("serve", "book"):
            counted = running.counters[name]
            assert (counted.processed, counted.outputs) == (100, 100)
            assert (counted.failures, counted.retries, counted.skipped) == (0, 0, 0)
            assert (counted.dead_letters, counted.stopped, counted.lanes_lost) == (0, 0, 0)
            assert 0 < counted.slices <= 100
            assert counted.busy_s > 0
            assert counted.first_failure_ms is None

    def test_failures_retries_skipped_records_and_dead_letters_are_counted(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub, each=2)
        stream.append({"fails": 2})
        stream.append({**BAD, "says": "never"})
        fill(stream, 2)
        policies = {
            "serve": {"retries": 3, "delay": "0s", "then": "skip"},
            "refund": {"retries": 3, "delay": "0s", "then": "dead-letter"},
        }
        running = run(two_shops, policies=policies)
        assert running.wait("10s", until_caught_up=True)
        for name, skipped, letters in (("serve", 1, 0), ("refund", 0, 1)):
            counted = running.counters[name]
            assert (counted.failures, counted.retries) == (2 + 4, 2 + 3)
            assert (counted.skipped, counted.dead_letters) == (skipped, letters)
            assert (counted.processed, counted.outputs) == (6, 5)
            assert counted.last_failure == "ValueError: never"
            assert counted.first_failure_ms is not None

    def test_latency_is_the_time_from_the_record_to_its_commit(self, hub: Hub, run: Run) -> None:
        from datetime import UTC, datetime, timedelta

        stream = orders(hub)
        stream.append(None, timestamp=datetime.now(UTC) - timedelta(seconds=100))
        running = run(shop_and_books)
        assert running.wait("10s", until_caught_up=True)
        for name in ("serve", "book"):
            latency_s = running.counters[name].latency_s(0.5)
            assert latency_s is not None
            assert 100 <= latency_s < 110

    def test_lag_counts_the_records_that_are_not_committed(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        stream.append({"wait": "blocked"})
        fill(stream, 9)
        running = run(shop_and_books)
        until(lambda: effects.count("begin") == 1, "the handler blocks", 10)
        until(lambda: running.replica.dispatcher.lag("serve")[0] == 10, "ten records are left", 10)
        assert running.replica.dispatcher.lag("book")[0] == 0
        wait_points.release("blocked")
        assert running.wait("10s", until_caught_up=True)
        assert running.replica.dispatcher.lag("serve") == (0, 0.0)

    def test_the_work_of_a_zombie_is_not_counted(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, each=3)
        stream.append({"wait": "hung"})
        running = run(shop_and_books, policy={"timeout": "150ms", "delay": "0s"})
        assert running.wait("10s", until_caught_up=True)
        wait_points.release("hung")
        if not self.LOST_LANES_ARE_DEAD:
            until(lambda: effects.count("end", offset=3) == 2, "the zombie ends", 10)
        assert running.counters["serve"].processed == 4
        assert (running.counters["serve"].failures, running.counters["serve"].retries) == (1, 1)
        assert running.counters["serve"].lanes_lost == 1
        assert origins(hub) == {0: [0, 1, 2, 3]}
