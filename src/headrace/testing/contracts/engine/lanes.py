"""Lanes: how many records are handled at once, in which lane, and which shard waits for which."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict

import pytest

from headrace.core.computations.settings import RunSettings
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    checkpoints,
    fill,
    orders,
    origins,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import (
    BRANCHES,
    REFUNDS,
    collecting,
    shop,
    two_shops,
)


class LanesContract(EngineUnderTest):
    def test_never_more_handlers_run_at_once_than_there_are_lanes(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=8)
        for n in range(24):
            stream.append({"sleep": 0.02}, shard=n % 8)
        assert run(shop, lanes=3).wait("20s", until_caught_up=True)
        assert effects.most_at_once() == 3

    def test_shards_are_handled_in_parallel(self, hub: Hub, run: Run, effects: Effects) -> None:
        stream = orders(hub, shards=4)
        for n in range(40):
            stream.append({"sleep": 0.1}, shard=n % 4)
        assert run(shop, lanes=4).wait("20s", until_caught_up=True)
        spans = effects.spans()
        took_s = max(end for _, _, end in spans) - min(begin for _, begin, _ in spans)
        assert took_s <= 1.5, "40 x 100 ms in 4 lanes"

    def test_the_concurrency_of_a_computation_is_respected(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=4)
        for n in range(16):
            stream.append({"sleep": 0.02}, shard=n % 4)
        settings = RunSettings(
            computations={"serve": {"concurrency": 1}},
            streams={"default": {"codec": "json", "shards": 1}},
        )
        assert run(two_shops, lanes=4, settings=settings).wait("20s", until_caught_up=True)
        assert effects.most_at_once("serve") == 1
        assert effects.most_at_once("refund") > 1
        assert origins(hub) == origins(hub, REFUNDS) == whole(4, 4)

    def test_a_blocked_handler_holds_up_only_its_own_shard(
        self, hub: Hub, run: Run, wait_points: WaitPoints
    ) -> None:
        """Eight shards and two lanes: one shard blocks its lane, the other seven use the other
        lane."""
        stream = orders(hub, shards=8)
        stream.append({"wait": "blocked"}, shard=0)
        fill(stream, 50)
        running = run(shop, lanes=2)
        done = dict.fromkeys(range(1, 8), 50)
        until(
            lambda: _done(hub) == {0: 0, **done},
            "the other shards are done",
            10,
            lambda: _done(hub),
        )
        wait_points.release("blocked")
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: list(range(51)), **{s: list(range(50)) for s in range(1, 8)}}

    def test_other_shards_keep_up_while_one_handler_blocks(
        self, hub: Hub, run: Run, wait_points: WaitPoints, effects: Effects
    ) -> None:
        """Four shards and four lanes: one shard blocks. Each new record of the other three is done
        within a second."""
        stream = orders(hub, shards=4)
        stream.append({"wait": "blocked"}, shard=0)
        run(shop, lanes=4)
        until(lambda: effects.count("begin", shard=0), "the handler blocks", 10)
        slowest_s = 0.0
        for turn in range(1, 21):
            began_s = time.monotonic()
            fill(stream, 1, range(1, 4))
            until(
                lambda turn=turn: _done(hub) == {0: 0, 1: turn, 2: turn, 3: turn},  # type: ignore[misc]
                "the other shards keep up",
                10,
            )
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < 1

    def test_in_a_pool_a_shard_changes_lanes_and_stays_in_order(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=3)
        running = run(shop, lanes=2)
        for turn, blocked in enumerate((0, 2, 0, 2)):
            # One shard blocks the lane that handled the other two last.
            stream.append({"wait": f"turn {turn}"}, shard=blocked)
            until(lambda: effects.count("begin") > effects.count("end"), "the handler blocks", 10)
            fill(stream, 5, iter({0, 1, 2} - {blocked}))
            done = 11 * (turn + 1) - 1
            until(lambda done=done: effects.count("end") == done, "the other shards go on", 10)  # type: ignore[misc]
            wait_points.release(f"turn {turn}")
            assert running.wait("10s", until_caught_up=True)
        _check_serial(effects)
        lanes = defaultdict(set)
        for effect in effects.of("begin"):
            lanes[effect.shard].add(effect.lane)
        assert any(len(found) > 1 for found in lanes.values()), lanes
        for shard in range(3):
            counts = [v["count"] for v in values(hub) if f":{shard}+" in v["from"]]
            assert counts == list(range(1, len(counts) + 1)), "state moves with the shard"

    def test_with_static_allocation_a_shard_waits_for_its_own_lane(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """With 20 shards and 5 lanes the lane is the index modulo 5. Shards of the blocked lane
        wait although other lanes are idle."""
        stream = orders(hub, shards=20)
        stream.append({"wait": "blocked"}, shard=3)
        fill(stream, 3)
        running = run(shop, lanes=5, allocation="static")
        until(
            lambda: all(_done(hub)[s] == 3 for s in range(20) if s % 5 != 3),
            "the shards of the other lanes are done",
            10,
        )
        until(lambda: effects.count("begin", shard=3), "the lane blocks", 10)
        (blocked,) = effects.of("begin", shard=3)
        before = {e.shard for e in effects.of("begin", lane=blocked.lane)} - {3}
        fill(stream, 1)
        until(
            lambda: all(_done(hub)[s] == 4 for s in range(20) if s % 5 != 3),
            "the other lanes handle new records",
            10,
        )
        for shard in {8, 13, 18} - before:
            assert effects.count("begin", shard=shard) == 0
        for shard in before:
            assert effects.count("begin", shard=shard) == 3, (
                "the new record of the blocked lane waits"
            )
        wait_points.release("blocked")
        assert running.wait("10s", until_caught_up=True)
        by_shard: dict[int, set[int]] = defaultdict(set)
        for effect in effects.of("begin"):
            by_shard[effect.shard].add(effect.lane % 5)
        assert by_shard == {shard: {shard % 5} for shard in range(20)}

    def test_with_static_allocation_a_replaced_lane_keeps_its_number(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=4)
        stream.append({"wait": "hung"}, shard=1)
        fill(stream, 3)
        policy = {"timeout": "200ms", "delay": "0s"}
        running = run(shop, lanes=2, allocation="static", policy=policy)
        assert running.wait("10s", until_caught_up=True)
        assert {(e.shard % 2, e.lane % 2) for e in effects.of("begin")} == {(0, 0), (1, 1)}
        assert len({e.lane for e in effects.of("begin", shard=1)}) == 2, "the lane was replaced"

    def test_records_of_a_shard_are_handled_one_at_a_time_across_replicas(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=4)
        for n in range(160):
            stream.append({"sleep": (n * 7 % 5) / 2_000}, shard=n % 4)
        first = run(shop, name="a", lanes=2)
        until(lambda: effects.count("end") > 30, "the first replica works", 20)
        second = run(shop, name="b", lanes=2)
        for n in range(160):
            stream.append({"sleep": (n * 7 % 5) / 2_000}, shard=n % 4)
        until(lambda: any(e.replica == "b" for e in effects.of("begin")), "both replicas work", 20)
        first.stop("10s")
        assert second.wait("20s", until_caught_up=True)
        _check_serial(effects)
        assert origins(hub) == whole(4, 80)

    @pytest.mark.slow
    def test_a_thousand_shards_of_ten_streams_share_ten_lanes(self, hub: Hub, run: Run) -> None:
        for name in BRANCHES:
            fill(orders(hub, shards=100, name=name), 2)
        assert run(collecting, lanes=10, session="30s").wait("60s", until_caught_up=True)
        made = [value["from"] for value in values(hub)]
        assert len(made) == len(set(made)) == 2_000

    def test_idle_lanes_use_no_processor_time(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=8, each=1)
        running = run(shop, lanes=4)
        assert running.wait("10s", until_caught_up=True)
        slices = running.counters["serve"].slices
        began_s, used_s = time.monotonic(), time.process_time()
        until(lambda: time.monotonic() - began_s > 0.5, "half a second goes by", 10)
        looking_s = 0.15  # the test itself uses some of it to look at the clock
        assert time.process_time() - used_s < looking_s
        assert running.counters["serve"].slices == slices


def _done(hub: Hub) -> dict[int, int]:
    return {shard: checkpoint or 0 for shard, checkpoint in checkpoints(hub).items()}


def _check_serial(effects: Effects) -> None:
    """Check that records of a shard are handled in order, each after the end of the one before."""
    by_shard: dict[int, list[tuple[int, float, float]]] = defaultdict(list)
    for effect, began_s, ended_s in effects.spans():
        by_shard[effect.shard].append((effect.offset, began_s, ended_s))
    for shard, spans in by_shard.items():
        spans.sort(key=lambda span: span[1])
        seen = [offset for offset, _, _ in spans]
        assert seen == list(range(len(seen))), f"shard {shard}"
        for (_, _, ended_s), (_, began_s, _) in itertools.pairwise(spans):
            assert began_s >= ended_s
