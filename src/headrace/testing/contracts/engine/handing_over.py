"""Shards move between replicas: a record in hand is finished first, a hung handler is given up."""

from __future__ import annotations

import os
import threading
import time

import pytest

from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
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
from headrace.testing.contracts.engine.samples import shop


class HandingOverContract(EngineUnderTest):
    def test_replicas_share_the_shards_and_state_moves_with_a_shard(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=4, each=10)
        first = run(shop, name="a")
        assert first.wait("10s", until_caught_up=True)
        second = run(shop, name="b")
        until(
            lambda: [len(s) for s in held(hub).values()] == [2, 2],
            "each replica holds two shards",
            10,
        )
        fill(stream, 10)
        assert second.wait("10s", until_caught_up=True)
        assert first.stop("5s")
        until(lambda: len(held(hub).get("b", ())) == 4, "all shards move to the other replica", 10)
        fill(stream, 10)
        assert second.wait("10s", until_caught_up=True)
        assert origins(hub) == whole(4, 30)
        for shard in range(4):
            found = [v["count"] for v in values(hub) if f":{shard}+" in v["from"]]
            assert found == list(range(1, 31))
            assert stored_state(hub, shard=shard)["count"] == 30

    def test_a_hand_over_waits_only_for_the_record_in_hand(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=2)
        for shard in range(2):
            for n in range(40):
                stream.append({"wait": f"{shard} {n}"}, shard=shard)
        first = run(shop, name="a", lanes=2, max_wait_handler="30s")
        until(lambda: effects.count("begin") == 2, "both handlers work", 10)
        run(shop, name="b", lanes=2, max_wait_handler="30s")
        until(
            lambda: any(state.ending_s for state, _ in first.replica.dispatcher.duties()),
            "the first replica must let go of one shard",
            10,
        )
        assert held(hub).get("b", []) == [], "the record in hand is waited for"
        for shard in range(2):
            wait_points.release(f"{shard} 0")
        until(lambda: held(hub).get("b"), "the shard moves when the record is done", 10)
        wait_points.release_all()
        assert first.wait("10s", until_caught_up=True)
        (shard,) = held(hub)["b"]
        replicas = [effect.replica for effect in effects.of("begin", shard=shard)]
        assert replicas == ["a"] + ["b"] * 39, (
            "the checkpoint is after the first record, not after the slice"
        )
        assert origins(hub) == whole(2, 40)

    def test_a_hung_handler_costs_its_lane_and_nothing_else(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """A replica joins while a handler hangs. The shard of the handler moves within
        max_wait_handler + 3 s, the new owner handles the record again, and other shards go on."""
        stream = orders(hub, shards=4)
        for shard in range(4):
            stream.append({"wait": "hung"}, shard=shard)
            fill(stream, 2, range(shard, shard + 1))
        pid = os.getpid()
        first = run(shop, name="a", lanes=8, max_wait_handler="500ms")
        until(lambda: effects.count("begin") == 4, "all four handlers hang", 10)
        starting: list[Running] = []
        joining = threading.Thread(
            target=lambda: starting.append(run(shop, name="b", lanes=4, max_wait_handler="500ms"))
        )
        joining.start()
        until(
            lambda: any(state.ending_s for state, _ in first.replica.dispatcher.duties()),
            "the first replica must let go of some shards",
            20,
        )
        began_s = time.monotonic()
        until(lambda: len(held(hub).get("b", ())) == 2, "two shards move", 10)
        assert 0.3 < time.monotonic() - began_s < 0.5 + 3
        joining.join(20)
        (second,) = starting
        moved = held(hub)["b"]
        stayed = [shard for shard in range(4) if shard not in moved]
        until(
            lambda: all(checkpoints(hub)[shard] == 3 for shard in moved),
            "the new owner handles their records",
            10,
        )
        for shard in moved:
            replicas = [e.replica for e in effects.of("begin", shard=shard, offset=0)]
            assert replicas == ["a", "b"]
        assert first.is_running
        assert first.counters["serve"].lanes_lost == 2
        assert os.getpid() == pid
        for shard in stayed:
            assert effects.count("begin", shard=shard) == 1, (
                "the hung handlers were not interrupted"
            )
        wait_points.release("hung")
        assert second.wait("10s", until_caught_up=True)
        if not self.LOST_LANES_ARE_DEAD:
            until(lambda: effects.count("end") == effects.count("begin"), "the zombies end", 10)
        assert origins(hub) == whole(4, 3), "the zombies committed nothing"
        for shard in range(4):
            assert stored_state(hub, shard=shard)["count"] == 3

    def test_other_shards_go_on_while_a_hung_handler_is_waited_for(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=4)
        stream.append({"wait": "hung", "waits": 2}, shard=0)
        first = run(shop, name="a", lanes=4, max_wait_handler="1s")
        until(lambda: effects.count("begin", shard=0) == 1, "the handler hangs", 10)
        run(shop, name="b", lanes=4, max_wait_handler="1s")
        longest_s = 0.0
        for turn in range(1, 61):
            began_s = time.monotonic()
            fill(stream, 1, range(1, 4))
            until(
                lambda n=turn: all((checkpoints(hub)[s] or 0) >= n for s in range(1, 4)),  # type: ignore[misc]
                "the other shards go on",
                10,
            )
            longest_s = max(longest_s, time.monotonic() - began_s)
            threading.Event().wait(max(0.02 - (time.monotonic() - began_s), 0))
        assert longest_s < 0.5
        assert first.is_running
        wait_points.release("hung")

    @pytest.mark.parametrize("lanes", [1, 4])
    def test_a_lane_that_was_given_up_is_replaced(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints, lanes: int
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"wait": "hung", "waits": 2}, shard=0)
        run(shop, name="a", lanes=lanes, policy={"timeout": "150ms", "delay": "1h"})
        until(lambda: effects.count("begin", shard=0) == 1, "the handler hangs", 10)
        fill(stream, 20, range(1, 2))
        until(lambda: checkpoints(hub)[1] == 20, "another lane goes on", 10)

    def test_a_fenced_replica_goes_on_after_a_new_grant(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """An operator moves the checkpoint while a handler works: the commit of its slice is
        refused, the next one counts."""
        stream = orders(hub, each=5)
        stream.append({"wait": "moved"})
        running = run(shop)
        until(lambda: effects.count("begin", offset=5) == 1, "the record is in hand", 10)
        hub.groups.seek("serve", 2, "shop/orders", [0], force=True)
        wait_points.release("moved")
        assert running.wait("10s", until_caught_up=True)
        until(
            lambda: len(values(hub)) in (4, 4 + 5),
            "the records from the new checkpoint on are done",
            10,
        )
        offsets = origins(hub)[0]
        assert offsets in ([2, 3, 4, 5], [0, 1, 2, 3, 4, 2, 3, 4, 5])
        assert checkpoints(hub) == {0: 6}
