"""Timers: a computation is called at a time, without a record."""

from __future__ import annotations

from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    fill,
    orders,
    values,
)
from headrace.testing.contracts.engine.samples import timed


class TimersContract(EngineUnderTest):
    def test_a_timer_is_called_once_and_its_outputs_are_committed(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"timers": {"tick": "150ms"}}, shard=1)
        run(timed)
        until(lambda: values(hub), "the output of the timer is there", 10)
        (begun,), (called,) = effects.of("begin"), effects.of("timer")
        assert 0.15 <= called.at_s - begun.at_s < 2
        fill(stream, 3)
        stream.append({"timers": {"other": "50ms"}}, shard=1)
        until(lambda: len(values(hub)) == 2, "the output of the next timer is there", 10)
        assert values(hub) == [{"timer": key, "shard": 1, "nth": 1} for key in ("tick", "other")]

    def test_a_timer_set_again_is_replaced_and_a_cancelled_one_not_called(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"timers": {"a": "1ms", "b": "50ms", "c": "10ms"}, "cancel": ["c"]})
        stream.append({"timers": {"a": "100ms"}})
        run(timed, lanes=1)
        until(lambda: len(values(hub)) >= 2, "both timers were called", 10)
        assert [value["timer"] for value in values(hub)] in (["b", "a"], ["a", "b", "a"])
        assert effects.count("timer") == len(values(hub))
        assert "c" not in {value["timer"] for value in values(hub)}

    def test_a_timer_may_set_itself_again(self, hub: Hub, run: Run) -> None:
        orders(hub).append({"timers": {"again": "10ms"}})
        run(timed)
        until(lambda: len(values(hub)) == 3, "the timer was called three times", 10)
        assert [value["nth"] for value in values(hub)] == [1, 2, 3]

    def test_a_timer_that_fails_leaves_nothing_and_is_tried_again(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"timers": {"bad": "10ms"}})
        running = run(timed, policy={"delay": "20ms"})
        until(lambda: values(hub), "the timer succeeded", 10)
        assert values(hub) == [{"timer": "bad", "shard": 0, "nth": 1}]
        assert effects.count("timer") == 2
        assert running.counters["Timed"].failures == 1

    def test_a_failed_timer_does_not_undo_others_due_at_the_same_time(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub).append({"timers": {"a": "1ms", "bad": "2ms", "c": "3ms"}})
        run(timed, policy={"delay": "20ms"})
        until(lambda: len(values(hub)) >= 3, "all timers succeeded", 10, lambda: values(hub))
        assert [value["timer"] for value in values(hub)] == ["a", "bad", "c"]
        assert effects.count("timer") == 4

    def test_timers_set_by_a_failed_attempt_are_not_kept(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"timers": {"kept": "60ms", "both": "60ms"}})
        stream.append({"timers": {"lost": "1ms", "both": "1ms"}, "cancel": ["kept"], "fails": 1})
        stream.append({"timers": {"last": "120ms"}})
        run(timed, policy={"retries": 0, "then": "skip"})
        until(lambda: len(values(hub)) >= 3, "all timers were called", 10, lambda: values(hub))
        assert [value["timer"] for value in values(hub)] == ["kept", "both", "last"]
        begun = effects.of("begin", offset=0)[0]
        assert effects.of("timer")[0].at_s - begun.at_s >= 0.06

    def test_a_timer_that_is_given_up_is_not_called_again(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"timers": {"never": "1ms", "last": "100ms"}})
        running = run(timed, policy={"retries": 1, "delay": "0s", "then": "skip"})
        until(lambda: values(hub), "the other timer is called", 10)
        calls = [effect.facts["key"] for effect in effects.of("timer")]
        assert calls == ["never", "never", "last"]
        assert running.counters["Timed"].failures == 2
        assert values(hub) == [{"timer": "last", "shard": 0, "nth": 1}]

    def test_failures_of_a_timer_are_not_charged_to_a_record(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub)
        stream.append({"timers": {"badd": "1ms"}})
        running = run(timed, policy={"retries": 2, "delay": "100ms", "then": "skip"})
        until(lambda: effects.count("timer") == 1, "the timer has failed once", 10)
        stream.append({"fails": 2})
        assert running.wait("10s", until_caught_up=True)
        assert effects.count("timer") == 3
        assert effects.count("begin", offset=1) == 3, "the record has all its retries"
        assert running.counters["Timed"].skipped == 0
        assert (running.counters["Timed"].failures, running.counters["Timed"].retries) == (4, 2)

    def test_timers_that_exceed_one_commit_take_two(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub).append({"timers": {"large a": "1ms", "large b": "1ms"}})
        running = run(timed)
        until(lambda: len(values(hub)) >= 2, "both timers were called", 10)
        assert sorted(value["timer"] for value in values(hub)) == ["large a", "large b"]
        assert [value["nth"] for value in values(hub)] == [1, 1]
        assert running.counters["Timed"].lanes_lost == 0

    def test_a_timer_is_kept_when_its_shard_changes_lanes(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=6)
        run(timed, lanes=3)
        for turn in range(5):
            for shard in range(6):
                timers = {f"{shard} {turn}": "100ms"}
                stream.append({"timers": timers}, shard=shard)
        for _ in range(20):
            fill(stream, 1)
        until(lambda: len(values(hub)) >= 30, "all timers were called", 5, lambda: len(values(hub)))
        assert sorted(value["timer"] for value in values(hub)) == sorted(
            f"{shard} {turn}" for shard in range(6) for turn in range(5)
        )
        for value in values(hub):
            assert value["timer"].startswith(f"{value['shard']} ")
