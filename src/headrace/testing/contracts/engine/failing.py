"""A record fails: nothing of the attempt is kept, the record is tried again after its delay and in
order, and no other shard waits for it."""

from __future__ import annotations

import logging
import time

import pytest

from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.streams.stream import Stream
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    Arm,
    EngineUnderTest,
    ManualClock,
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
    appending_hook,
    choosy_shop,
    failing_init,
    hooked,
    hooked_badly,
    never_made,
    shop,
)

SEED_TIMES_S = [1, 3, 7, 15, 31, 63, 123, 183]
SOON = {"delay": "10ms"}


class FailingContract(EngineUnderTest):
    @pytest.mark.parametrize(
        ("policy", "times_s"),
        [
            ({"retries": 8, "delay": "1s", "delay_max": "60s"}, SEED_TIMES_S),
            ({}, [*SEED_TIMES_S, *range(243, 904, 60)]),
        ],
        ids=["eight of them", "by default twenty"],
    )
    def test_retries_come_after_the_delays_of_the_policy(
        self, hub: Hub, run: Run, effects: Effects, policy: dict[str, object], times_s: list[int]
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"fails": 100}, shard=0)
        clock = ManualClock()
        running = run(shop, lanes=1, clock=clock, policy=policy)
        began_s = clock.now_s
        until(lambda: _settled(running, 1), "the first attempt failed", 10)
        for tried, at_s in enumerate(times_s, 1):
            clock.now_s = began_s + at_s - 0.1
            _pass_through(stream, 1, effects)
            assert effects.count("begin", shard=0) == tried, f"no attempt before {at_s} s"
            clock.now_s = began_s + at_s
            _pass_through(stream, 1, effects)
            until(lambda n=tried: _settled(running, n + 1), f"an attempt after {at_s} s", 10)  # type: ignore[misc]
        until(lambda: running.stopped() == {"serve": ["shop/orders:0"]}, "the shard stops", 10)
        clock.now_s += 10_000
        _pass_through(stream, 1, effects)
        assert effects.count("begin", shard=0) == len(times_s) + 1
        passed = list(range(2 * len(times_s) + 1))
        until(lambda: origins(hub)[1] == passed, "the records of the other shard are committed", 10)

    def test_a_failed_attempt_leaves_nothing_and_earlier_records_are_kept(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub, each=5)
        stream.append({"fails": 3})
        fill(stream, 5)
        assert run(shop, policy=SOON).wait("20s", until_caught_up=True)
        assert origins(hub) == whole(1, 11)
        assert [value["count"] for value in values(hub)] == list(range(1, 12))
        assert stored_state(hub) == {"count": 11, **{f"seen {n}": True for n in range(11)}}

    def test_records_before_a_failed_one_are_committed_while_it_waits(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub, each=5)
        stream.append({"fails": 1})
        fill(stream, 5)
        running = run(shop, clock=ManualClock())
        until(lambda: _settled(running, 1), "the attempt failed", 10)
        assert checkpoints(hub) == {0: 5}
        assert origins(hub) == whole(1, 5)
        assert stored_state(hub) == {"count": 5, **{f"seen {n}": True for n in range(5)}}

    def test_while_a_record_waits_its_shard_waits_and_its_lane_works_on(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=3)
        stream.append({"fails": 1}, shard=0)
        fill(stream, 3)
        clock = ManualClock()
        running = run(shop, lanes=1, clock=clock)
        until(lambda: checkpoints(hub) == {0: 0, 1: 3, 2: 3}, "the other shards are done", 10)
        _pass_through(stream, 1, effects)
        assert [effect.offset for effect in effects.of("begin", shard=0)] == [0]
        clock.now_s += 1
        assert running.wait("10s", until_caught_up=True)
        assert [effect.offset for effect in effects.of("begin", shard=0)] == [0, 0, 1, 2, 3]

    def test_attempts_are_remembered_across_replicas(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub).append({"fails": 100})
        policy = {"retries": 3, "delay": "0s"}
        waiting = {"retries": 3, "delay": "1h"}
        first = run(shop, name="a", policy=waiting)
        until(lambda: _settled(first, 1), "the attempt failed", 10)
        assert first.stop("5s")
        second = run(shop, name="b", policy=policy)
        until(second.stopped, "the record was tried four times", 10)
        assert effects.count("begin") == 4, "one attempt and three retries, over all replicas"
        assert (second.counters["serve"].failures, second.counters["serve"].retries) == (3, 3)

    def test_a_replica_that_takes_over_waits_out_the_remaining_delay(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub).append({"fails": 1})
        policy = {"delay": "700ms"}
        first = run(shop, name="a", policy=policy)
        until(lambda: _settled(first, 1), "the attempt failed", 10)
        first.stop("5s")
        assert run(shop, name="b", policy=policy).wait("10s", until_caught_up=True)
        failed, again = effects.of("begin")
        assert 0.69 <= again.at_s - failed.at_s < 3

    @pytest.mark.parametrize(
        ("error", "tries"),
        [("NoRetry", 1), ("SystemExit", 3), ("KeyError", 3), ("ValueError", 3)],
    )
    def test_every_error_but_no_retry_is_tried_again(
        self, hub: Hub, run: Run, effects: Effects, error: str, tries: int
    ) -> None:
        stream = orders(hub)
        stream.append({"fails": 100, "error": error})
        fill(stream, 1)
        running = run(shop, policy={"retries": 2, "delay": "0s", "then": "skip"})
        assert running.wait("10s", until_caught_up=True)
        assert effects.count("begin", offset=0) == tries
        assert origins(hub) == {0: [1]}
        assert running.counters["serve"].lanes_lost == 0

    def test_the_policy_can_exclude_kinds_of_errors_from_retries(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        for error in ("KeyError", "ValueError"):
            stream.append({"fails": 100, "error": error})
        assert run(choosy_shop).wait("10s", until_caught_up=True)
        assert [effects.count("begin", offset=offset) for offset in range(2)] == [1, 3]

    def test_hooks_are_called_for_each_retry_and_the_final_failure(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"fails": 1, "says": "too early"})
        stream.append({"fails": 100, "says": "never"})
        running = run(hooked, policy={"retries": 2, "delay": "0s", "then": "skip"})
        assert running.wait("10s", until_caught_up=True)
        retried = [(e.offset, e.facts["failure"]) for e in effects.of("retry")]
        assert retried == [(0, "ValueError: too early"), *[(1, "ValueError: never")] * 2]
        assert [(e.offset, e.facts["failure"]) for e in effects.of("failure")] == [
            (1, "ValueError: never")
        ]
        assert values(hub) == [{"from": "shop/orders:0+0"}, {"failed": "shop/orders:0+1"}]

    def test_outputs_of_on_failure_are_dropped_if_the_shard_stops(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, each=1).append({"fails": 100})
        running = run(hooked, policy={"retries": 0})
        until(running.stopped, "the shard stops", 10)
        assert effects.count("failure") == 1
        assert values(hub) == [{"from": "shop/orders:0+0"}]

    def test_outputs_of_on_retry_are_kept_only_with_their_attempt(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """This holds also for a record that is not the first of its slice."""
        stream = orders(hub)
        bad = {"wait": "never", "waits": 1, "fails": 2}
        stream.append_many((bad if n == 3 else None, None) for n in range(6))
        running = run(appending_hook, policy={"timeout": "200ms", "delay": "10ms"})
        assert running.wait("10s", until_caught_up=True)
        assert effects.count("begin", offset=3) == 3
        assert [value for value in values(hub) if "retry" in value] == [{"retry": 3}]
        assert stored_state(hub, "AppendingHook") == {"retries": 1}
        assert origins(hub) == whole(1, 6)

    def test_hooks_that_fail_change_nothing(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        stream.append({"fails": 1})
        stream.append({"fails": 100})
        running = run(hooked_badly, policy={"retries": 1, "delay": "0s", "then": "skip"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0]}
        assert running.counters["Hooked"].skipped == 1

    def test_an_init_that_fails_is_tried_again_before_any_record(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, each=2)
        running = run(failing_init, options={"init_fails": 2}, policy=SOON)
        assert running.wait("10s", until_caught_up=True)
        assert effects.count("init") == 3
        assert values(hub) == [
            {"init": 2}, {"from": "shop/orders:0+0"}, {"from": "shop/orders:0+1"},
        ]  # fmt: skip

    @pytest.mark.parametrize("then", ["stop", "skip", "dead-letter"])
    def test_an_init_that_always_fails_stops_the_shard_under_any_policy(
        self, hub: Hub, run: Run, effects: Effects, then: str
    ) -> None:
        orders(hub, each=2)
        options = {"init_fails": 100, "init_exits": then == "skip"}
        policy = {"retries": 2, "delay": "0s", "then": then}
        running = run(failing_init, options=options, policy=policy)
        until(running.stopped, "the shard stops", 10)
        assert effects.count("init") == 3
        assert values(hub) == []
        assert running.counters["FailingInit"].lanes_lost == 0

    def test_a_class_that_cannot_be_instantiated_stops_its_shards(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, shards=2, each=2)
        running = run(never_made, policy={"retries": 1, "delay": "0s"})
        until(lambda: len(running.stopped().get("NeverMade", ())) == 2, "the shards stop", 10)
        assert running.counters["NeverMade"].failures == 4
        assert running.counters["NeverMade"].lanes_lost == 0

    @pytest.mark.parametrize(
        "says",
        ["HALF a pair", "x" * 100_000, "", "two\nlines", "\x00"],
        ids=["no text", "long", "empty", "lines", "null"],
    )
    def test_any_error_message_can_be_stored(
        self, hub: Hub, run: Run, says: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders(hub).append({"fails": 100, "says": says})
        with caplog.at_level(logging.CRITICAL, "headrace"):
            running = run(shop, policy={"retries": 1, "delay": "0s"})
            until(running.stopped, "the shard stops", 10)
        assert running.counters["serve"].failures == 2
        assert running.counters["serve"].lanes_lost == 0

    def test_a_record_over_its_timeout_fails_and_no_other_does(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """The lane of the record is given up; the other lanes go on."""
        stream = orders(hub, shards=2)
        fill(stream, 3)
        stream.append({"wait": "never", "waits": 100}, shard=0)
        fill(stream, 3)
        policy = {"timeout": "300ms", "retries": 1, "delay": "0s", "then": "skip"}
        running = run(shop, lanes=1, policy=policy)
        assert running.wait("20s", until_caught_up=True)
        assert origins(hub) == {0: [0, 1, 2, 4, 5, 6], 1: list(range(6))}
        begun = effects.of("begin", shard=0, offset=3)
        assert len(begun) == 2
        begins_s = (
            2.0 if self.LOST_LANES_ARE_DEAD else 0.3
        )  # a process needs longer to start than a thread
        assert 0.3 <= begun[1].at_s - begun[0].at_s < 0.6 + begins_s, (
            "the timeout T is noticed between T and 2 T"
        )
        counted = running.counters["serve"]
        assert (counted.failures, counted.skipped, counted.lanes_lost) == (2, 1, 2)

    def test_a_record_that_always_exceeds_its_timeout_stops_its_shard(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        fill(stream, 2)
        stream.append({"wait": "never", "waits": 100})
        running = run(shop, policy={"timeout": "100ms", "retries": 1, "delay": "0s"})
        until(running.stopped, "the shard stops", 10)
        assert effects.count("begin", offset=2) == 2
        assert origins(hub) == whole(1, 2)
        until(lambda: running.counters["serve"].stopped == 1, "the stop is counted", 10)

    def test_a_record_over_its_timeout_inside_a_slice_is_given_up(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        stream.append_many(
            ({"wait": "never", "waits": 100} if n == 6 else None, None) for n in range(12)
        )
        policy = {"timeout": "150ms", "retries": 1, "delay": "0s", "then": "skip"}
        running = run(shop, policy=policy)
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [n for n in range(12) if n != 6]}
        assert effects.count("begin", offset=6) == 2

    def test_a_slow_commit_is_not_charged_to_a_record(
        self, hub: Hub, run: Run, arm: Arm, effects: Effects
    ) -> None:
        arm("lane.before-commit:sleep=0.4@1")
        orders(hub, each=3)
        running = run(shop, policy={"timeout": "150ms", "retries": 0, "then": "skip"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == whole(1, 3)
        assert running.counters["serve"].failures == 0
        assert effects.count("begin") == 3

    def test_a_timeout_holds_for_one_record_not_for_a_slice(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        for _ in range(20):
            stream.append({"sleep": 0.03})
        running = run(shop, policy={"timeout": "300ms"})
        assert running.wait("20s", until_caught_up=True)
        assert running.counters["serve"].failures == 0
        assert effects.count("begin") == 20


def _settled(running: Running, failures: int) -> bool:
    """Whether at least ``failures`` attempts have failed."""
    return running.counters["serve"].failures >= failures


def _pass_through(stream: Stream, shard: int, effects: Effects) -> None:
    """Handle records of another shard. There is one lane and slices are given in the order of time,
    so every slice that was ready before has been given too."""
    record = stream.append({"sleep": 0}, shard=shard)
    began_s = time.monotonic()
    until(lambda: effects.of("end", record=str(record)), "the other shard goes on", 10)
    assert time.monotonic() - began_s < 5
