"""Every record has its effect exactly once: no output is lost, doubled or out of order, and state
is a fold over the input, while lanes and replicas come, go and die."""

from __future__ import annotations

import re
import threading
from collections import defaultdict

import pytest

from headrace.hub.hub import Hub
from headrace.process import failpoints
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    Arm,
    EngineUnderTest,
    Logged,
    Run,
    checkpoints,
    fill,
    held,
    orders,
    origins,
    read,
    stored_state,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import (
    BILLS,
    COUNTED,
    LINES,
    TOTALS,
    chain,
    shop,
)

KEYS = 12
LANE_POINTS = [point for point in failpoints.POINTS if point.startswith("lane.")]
REPLICA_POINTS = [point for point in failpoints.POINTS if point.startswith("replica.")]


class ExactlyOnceContract(EngineUnderTest):
    def test_three_stages_lose_and_double_nothing_end_to_end(self, hub: Hub, run: Run) -> None:
        _fill_chain(hub, 600)
        assert run(chain).wait("20s", until_caught_up=True)
        _check_chain(hub, 600)

    def test_outputs_and_checkpoint_become_visible_together(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        hub.create_stream(BILLS, shards=1, codec="json")
        run(shop)

        def done(records: int) -> bool:
            before = checkpoints(hub)[0] or 0
            made = hub.stream(BILLS).bounds(0).end
            if checkpoints(hub)[0] == before:
                assert made == before
            return before == records

        for turn in range(1, 21):
            fill(stream, 50)
            until(lambda all=50 * turn: done(all), "all records are done", 20)  # type: ignore[misc]

    @pytest.mark.parametrize("point", LANE_POINTS)
    def test_a_lane_that_dies_loses_and_doubles_nothing(
        self, hub: Hub, run: Run, arm_lanes: Arm, logged: Logged, point: str
    ) -> None:
        _fill_chain(hub, 600)
        arm_lanes(f"{point}:raise@5")
        running = run(chain, lanes=2)
        assert running.wait("60s", until_caught_up=True)
        _check_chain(hub, 600)
        assert re.search(r"lane \d+ has died", logged())

    @pytest.mark.parametrize("point", REPLICA_POINTS)
    def test_a_replica_that_ends_by_an_error_loses_and_doubles_nothing(
        self, hub: Hub, run: Run, arm: Arm, point: str
    ) -> None:
        _fill_chain(hub, 600)
        arm(f"{point}:raise@1")
        both = [run(chain, name="a")]
        until(
            lambda: both[0].counters["split"].slices or not both[0].is_running,
            "the first replica works",
            20,
        )
        both.append(run(chain, name="b"))
        until(lambda: not all(one.is_running for one in both), "one replica ends", 20)
        (ended,) = [one for one in both if not one.is_running]
        with pytest.raises(failpoints.FailPoint):
            ended.wait("1s")
        assert run(chain, name="c").wait("20s", until_caught_up=True)
        _check_chain(hub, 600)

    def test_replicas_that_come_and_go_lose_and_double_nothing(self, hub: Hub, run: Run) -> None:
        _fill_chain(hub, 300)
        first = run(chain, name="a")
        for turn in range(3):
            name = f"b{turn}"
            second = run(chain, name=name)
            until(lambda name=name: held(hub, "split").get(name), "the second has a share", 20)  # type: ignore[misc]
            _fill_chain(hub, 300, first=300 * (turn + 1))
            until(
                lambda second=second: second.counters["split"].slices > 0,  # type: ignore[misc]
                "the second replica works too",
                20,
            )
            assert second.stop("10s")
        assert first.wait("20s", until_caught_up=True)
        _check_chain(hub, 1_200)

    def test_a_zombie_commits_nothing(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        fill(stream, 3)
        stream.append({"wait": "hung"}, shard=0)
        fill(stream, 3)
        running = run(shop, policy={"timeout": "200ms", "delay": "10ms"})
        assert running.wait("20s", until_caught_up=True)
        before = origins(hub), stored_state(hub)
        wait_points.release("hung")
        if not self.LOST_LANES_ARE_DEAD:
            until(lambda: effects.count("end", offset=3) == 2, "the zombie goes on", 10)
        stream.append(None)
        assert running.wait("20s", until_caught_up=True)
        assert before[0] == whole(1, 7)
        assert origins(hub) == whole(1, 8)
        assert stored_state(hub)["count"] == 8

    def test_a_zombie_commits_nothing_even_at_an_unchanged_checkpoint(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """The checkpoint is still the one at which the zombie read its slice, but its grant has
        ended."""
        stream = orders(hub)
        stream.append({"wait": "hung"})
        fill(stream, 2)
        running = run(shop, policy={"timeout": "200ms", "delay": "10ms"})
        assert running.wait("20s", until_caught_up=True)
        running.stop("5s")
        hub.groups.seek("serve", 0, "shop/orders")
        wait_points.release("hung")
        if not self.LOST_LANES_ARE_DEAD:
            until(lambda: effects.count("end", offset=0) == 2, "the zombie goes on", 10)
            until(_no_lanes, "the zombie ends", 10)
        assert checkpoints(hub) == {0: 0}
        assert origins(hub) == whole(1, 3)
        assert run(shop).wait("10s", until_caught_up=True)
        assert [value["count"] for value in values(hub)] == [1, 2, 3, 4, 5, 6]

    def test_without_failures_every_record_is_handled_once(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, shards=3, each=40)
        first = run(shop, name="a")
        run(shop, name="b")
        assert first.wait("20s", until_caught_up=True)
        begun = [effect.record for effect in effects.of("begin")]
        assert len(begun) == len(set(begun)) == 120
        assert origins(hub) == whole(3, 40)


def _no_lanes() -> bool:
    return not any("lane" in thread.name for thread in threading.enumerate())


def _fill_chain(hub: Hub, count: int, first: int = 0) -> None:
    if not first:
        for name, shards in (("shop/orders", 4), (LINES, 3), (COUNTED, 2), (TOTALS, 1)):
            hub.create_stream(name, shards=shards, codec="json")
    hub.stream("shop/orders").append_many(
        ({"n": n}, f"key {n % KEYS}") for n in range(first, first + count)
    )


def _check_chain(hub: Hub, count: int) -> None:
    """Check that each record led to one output, in order per key, and that state is the fold."""
    by_key: dict[str | None, list[dict[str, int]]] = defaultdict(list)
    for record in read(hub, TOTALS):
        by_key[record.key].append(record.value)
    assert len(values(hub, TOTALS)) == 2 * count
    counted: dict[str, int] = {}
    totals: dict[str, int] = {}
    for key, found in by_key.items():
        mine = [n for n in range(count) if f"key {n % KEYS}" == key]
        assert [(each["n"], each["part"]) for each in found] == [
            (n, part) for n in mine for part in range(2)
        ]
        assert [each["nth"] for each in found] == list(range(1, 2 * len(mine) + 1))
        counted[str(key)], totals[str(key)] = 2 * len(mine), 2 * sum(mine)
        assert found[-1]["sum"] == totals[str(key)]
    assert _state_of(hub, "count", LINES) == counted
    assert _state_of(hub, "total", COUNTED) == totals


def _state_of(hub: Hub, group: str, stream: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for shard in range(hub.stream(stream).shards):
        found |= stored_state(hub, group, stream, shard)
    return found
