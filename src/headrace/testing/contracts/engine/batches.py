"""Batch computations: as many records of one shard as there are, up to the capacity."""

from __future__ import annotations

from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects
from headrace.testing.contracts.engine.engine_under_test import (
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
from headrace.testing.contracts.engine.samples import many, many_as_arrow


class BatchesContract(EngineUnderTest):
    def test_full_batches_come_at_once_and_a_partial_one_after_the_threshold(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        fill(stream, 25, range(1))
        clock = ManualClock()
        running = run(many, clock=clock)
        until(lambda: checkpoints(hub, "serve_many")[0] == 20, "two full batches are committed", 10)
        fill(stream, 10, range(1, 2))
        until(
            lambda: checkpoints(hub, "serve_many") == {0: 20, 1: 10},
            "the other shard's batch is committed",
            10,
        )
        assert effects.count("begin") == 3, "five records wait for the threshold"
        clock.now_s += 0.15
        assert running.wait("10s", until_caught_up=True)
        assert [len(effect.facts["ids"]) for effect in effects.of("begin", shard=0)] == [10, 10, 5]
        assert origins(hub) == {0: list(range(25)), 1: list(range(10))}
        assert stored_state(hub, "serve_many")["count"] == 25

    def test_a_batch_holds_records_of_one_shard_in_order(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=3)
        for _ in range(5):
            fill(stream, 7)
        assert run(many).wait("10s", until_caught_up=True)
        for effect in effects.of("begin"):
            first = effect.offset
            ids = [f"shop/orders:{effect.shard}+{first + n}" for n in range(10)]
            assert effect.facts["ids"] == ids[: len(effect.facts["ids"])]
        assert origins(hub) == whole(3, 35)

    def test_a_failed_batch_is_tried_again_as_a_whole(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=3)
        stream.append({"fails": 2})
        fill(stream, 16)
        running = run(many, policy={"delay": "10ms"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == whole(1, 20)
        assert stored_state(hub, "serve_many")["count"] == 20
        begun = [effect.facts["ids"] for effect in effects.of("begin")]
        assert begun[0] == begun[1] == begun[2]
        assert running.counters["serve_many"].failures == 2

    def test_a_batch_can_be_given_as_arrow(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        for n in range(4):
            stream.append_many((None, f"key {5 * n + i}") for i in range(5))
        assert run(many_as_arrow).wait("10s", until_caught_up=True)
        keys = [key for value in values(hub) for key in value["keys"]]
        assert keys == [f"key {n}" for n in range(20)]
