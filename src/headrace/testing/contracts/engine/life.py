"""The life of a run: instances are made and closed, records in hand are finished at the end, and
`wait` knows when all records are done."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter

import pytest

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import UnknownStream
from headrace.hub.hub import Hub
from headrace.process import failpoints
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    Arm,
    EngineUnderTest,
    ManualClock,
    Run,
    checkpoints,
    fill,
    held,
    orders,
    origins,
    stored_state,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import (
    BILLS,
    LINES,
    TOTALS,
    chain,
    living,
    shop,
    shop_and_books,
)


class LifeContract(EngineUnderTest):
    def test_a_class_is_instantiated_and_initialised_once_per_grant(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=3, each=2)
        running = run(living, lanes=1)
        for _ in range(3):
            assert running.wait("10s", until_caught_up=True)
            fill(stream, 2)
        assert running.wait("10s", until_caught_up=True)
        assert Counter(effect.shard for effect in effects.of("init")) == {0: 1, 1: 1, 2: 1}
        for shard in range(3):
            (made,) = {e.facts["instance"] for e in effects.of("init", shard=shard)}
            begun = effects.of("begin", shard=shard)
            assert {effect.facts["instance"] for effect in begun} == {made}, (
                "one instance per shard"
            )
            assert [effect.facts["handled"] for effect in begun] == list(range(1, 9))
            assert effects.of("init", shard=shard)[0].at_s < begun[0].at_s

    def test_in_several_lanes_init_is_called_before_the_first_record(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=5)
        running = run(living, lanes=3)
        for _ in range(20):
            fill(stream, 2)
        assert running.wait("10s", until_caught_up=True)
        running.stop("5s")
        for one in {(e.facts["instance"], e.shard) for e in effects.of("begin")}:
            life = [e for e in effects.all() if (e.facts.get("instance"), e.shard) == one]
            assert life[0].what == "init"
            assert len({effect.lane for effect in life}) == 1, "the shard stays in one lane"
        assert origins(hub) == whole(5, 40)

    def test_close_is_called_once_and_its_outputs_are_committed(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, shards=2, each=2)
        running = run(living, lanes=1)
        assert running.wait("10s", until_caught_up=True)
        assert running.stop("5s")
        assert Counter(effect.shard for effect in effects.of("close")) == {0: 1, 1: 1}
        closed = sorted(value["closed"] for value in values(hub) if "closed" in value)
        assert closed == ["shop/orders:0", "shop/orders:1"]
        for shard in range(2):
            assert stored_state(hub, "Live", shard=shard) == {"inits": 1, "closes": 1}

    def test_close_is_called_before_a_shard_moves_to_another_replica(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2, each=2)
        first = run(living, name="a", lanes=1)
        assert first.wait("10s", until_caught_up=True)
        run(living, name="b", lanes=1)
        until(lambda: held(hub, "Live").get("b"), "one shard moves", 10)
        (shard,) = held(hub, "Live")["b"]
        fill(stream, 1, range(shard, shard + 1))
        until(
            lambda: effects.count("init", shard=shard, replica="b"),
            "init is called in the new replica",
            10,
        )
        (closed,) = effects.of("close")
        (opened,) = effects.of("init", replica="b")
        assert (closed.shard, closed.replica) == (shard, "a")
        assert closed.at_s < opened.at_s
        assert opened.facts["inits"] == 1, "the new instance sees the state of the old one"

    def test_a_close_that_hangs_costs_its_lane_and_nothing_else(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=2, each=2)
        settings = {"lanes": 1, "max_wait_handler": "300ms", "options": {"close_waits": "hung"}}
        first = run(living, name="a", **settings)
        assert first.wait("10s", until_caught_up=True)
        run(living, name="b", **settings)
        until(lambda: held(hub, "Live").get("b"), "the shard moves all the same", 10)
        fill(stream, 2)
        until(lambda: checkpoints(hub, "Live") == {0: 4, 1: 4}, "both shards go on", 10)
        assert {effect.replica for effect in effects.of("begin", offset=3)} == {"a", "b"}
        wait_points.release("hung")

    def test_stop_finishes_the_record_in_hand_and_no_record_is_repeated(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, each=3)
        stream.append({"wait": "in hand"})
        fill(stream, 3)
        first = run(shop, name="a")
        until(lambda: effects.count("begin", offset=3) == 1, "the record is in hand", 10)
        ended: list[bool] = []
        stopping = threading.Thread(target=lambda: ended.append(first.stop("10s")))
        stopping.start()
        until(
            lambda: first.replica._ending_s is not None or not first.is_running,
            "the replica is stopping",
            10,
        )
        wait_points.release("in hand")
        stopping.join(10)
        assert ended == [True]
        assert checkpoints(hub) == {0: 4}
        assert held(hub) == {}
        assert hub.groups.load("serve").members == {}
        assert run(shop, name="b").wait("10s", until_caught_up=True)
        assert origins(hub) == whole(1, 7)
        assert [effect.offset for effect in effects.of("begin")] == list(range(7))

    def test_stop_waits_no_longer_than_its_timeout(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"wait": "hung"}, shard=0)
        fill(stream, 3)
        first = run(shop, name="a", lanes=2)
        until(lambda: effects.count("begin", shard=0) == 1, "the handler hangs", 10)
        until(lambda: checkpoints(hub)[1] == 3, "the other shard is done", 10)
        began_s = time.monotonic()
        assert first.stop("300ms") is False
        assert 0.25 < time.monotonic() - began_s < 2
        assert held(hub) == {}
        wait_points.release("hung")
        assert run(shop, name="b").wait("10s", until_caught_up=True)
        assert origins(hub) == {0: list(range(4)), 1: list(range(3))}
        assert effects.count("begin", shard=0, offset=0) == 2

    def test_stop_does_not_wait_for_a_parked_record(self, hub: Hub, run: Run) -> None:
        orders(hub).append({"fails": 1})
        running = run(shop, policy={"delay": "1h"})
        until(lambda: running.counters["serve"].failures == 1, "the record is parked", 10)
        began_s = time.monotonic()
        assert running.stop("30s")
        assert time.monotonic() - began_s < 2

    def test_a_second_stop_changes_nothing(self, hub: Hub, run: Run) -> None:
        orders(hub, each=3)
        running = run(shop)
        assert running.stop("5s")
        assert running.stop("5s")
        running.close()
        assert not running.is_running

    def test_sigterm_stops_a_run_in_order(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, each=2)
        stream.append({"wait": "in hand"})
        fill(stream, 2)
        running = run(living)
        until(lambda: effects.count("begin", offset=2) == 1, "the record is in hand", 10)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        until(
            lambda: running.replica._ending_s is not None or not running.is_running,
            "the replica is stopping",
            10,
        )
        assert running.is_running, "the record in hand is waited for"
        wait_points.release("in hand")
        assert running.wait("10s")
        assert not running.is_running
        assert checkpoints(hub, "Live") == {0: 3}
        assert effects.count("close") == 1
        running.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def test_wait_returns_when_all_stages_have_caught_up(self, hub: Hub, run: Run) -> None:
        for name, shards in (("shop/orders", 2), (LINES, 2), ("shop/counted", 2), (TOTALS, 1)):
            hub.create_stream(name, shards=shards, codec="json")
        stream = hub.stream("shop/orders")
        running = run(chain)
        for turn in range(1, 6):
            stream.append_many(({"n": n}, f"key {n}") for n in range(50))
            assert running.wait("10s", until_caught_up=True)
            assert len(values(hub, TOTALS)) == 100 * turn, "the records of the start came through"
            assert running.is_running

    def test_a_record_in_hand_of_another_replica_is_not_caught_up(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        hub.create_stream(BILLS, shards=2, codec="json")
        first = run(shop_and_books, name="a", options={"book_waits": "b"})
        run(shop_and_books, name="b", options={"book_waits": "b"})
        until(lambda: len(held(hub, "book")) == 2, "each replica holds one shard", 10)
        stream.append_many((None, f"key {n}") for n in range(20))
        until(lambda: effects.count("waits"), "the other replica has a record in hand", 10)
        until(lambda: checkpoints(hub) == {0: 20}, "the upstream computation is done", 10)
        assert first.wait("300ms", until_caught_up=True) is False
        wait_points.release("book")
        assert first.wait("10s", until_caught_up=True)
        assert len(values(hub, TOTALS)) == 20

    def test_wait_returns_after_its_timeout(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        orders(hub).append({"wait": "hung"})
        running = run(shop)
        began_s = time.monotonic()
        assert running.wait("200ms", until_caught_up=True) is False
        assert running.wait("100ms") is False
        assert 0.3 <= time.monotonic() - began_s < 2

    def test_a_record_waiting_for_its_retry_is_not_caught_up(self, hub: Hub, run: Run) -> None:
        orders(hub, each=1).append({"fails": 1})
        clock = ManualClock()
        running = run(shop, clock=clock)
        until(lambda: running.counters["serve"].failures == 1, "the attempt failed", 10)
        assert running.wait("200ms", until_caught_up=True) is False
        clock.now_s += 1
        assert running.wait("10s", until_caught_up=True)

    def test_a_record_appended_while_a_shard_begins_is_handled(
        self, hub: Hub, run: Run, arm: Arm
    ) -> None:
        """No later write wakes the dispatcher up."""
        stream = orders(hub)
        arm("replica.after-begin:sleep=0.3")
        running = run(shop)
        until(lambda: failpoints._armed["replica.after-begin"]._passed, "the shard begins", 10)
        stream.append(None)
        until(lambda: origins(hub) == whole(1, 1), "the record is handled", 5)
        assert running.wait("5s", until_caught_up=True)

    def test_a_missing_source_stream_is_refused(self, hub: Hub, run: Run) -> None:
        with pytest.raises(UnknownStream, match="shop/orders"):
            run(shop, settings=RunSettings())
        assert hub.groups.names() == []
        orders(hub)
        run(shop, settings=RunSettings())
        assert BILLS in {info.name for info in hub.streams()}
