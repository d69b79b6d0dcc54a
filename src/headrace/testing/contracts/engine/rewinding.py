"""`Rewind`: reading goes on at an earlier record, and no effect of later records is kept."""

from __future__ import annotations

import pytest

from headrace.hub.hub import Hub
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
from headrace.testing.contracts.engine.samples import going_back, many


class RewindingContract(EngineUnderTest):
    @pytest.mark.parametrize("back_to", [0, 2, 4, 5])
    def test_a_rewind_takes_back_what_is_not_committed(
        self, hub: Hub, run: Run, effects: Effects, back_to: int
    ) -> None:
        stream = orders(hub, each=5)
        stream.append({"back_to": back_to})
        fill(stream, 3)
        running = run(going_back)
        assert running.wait("10s", until_caught_up=True)
        begun = [effect.offset for effect in effects.of("begin")]
        assert begun[:6] == list(range(6))
        assert begun[6] in (0, back_to), "at the offset, or where the slice began"
        assert begun[6:] == list(range(begun[6], 9))
        assert origins(hub) == whole(1, 9)
        assert [value["count"] for value in values(hub)] == list(range(1, 10))
        assert stored_state(hub, "go_back") == {"count": 9}
        assert running.counters["go_back"].failures == 0
        assert running.counters["go_back"].processed == 9

    def test_a_rewind_before_the_checkpoint_moves_the_checkpoint(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        """Outputs committed since then are made again: the computation has asked for that."""
        stream = orders(hub, each=4)
        stream.append({"checkpoint": True})
        stream.append({"back_to": 3})
        fill(stream, 2)
        running = run(going_back)
        until(lambda: checkpoints(hub, "go_back") == {0: 8}, "all records are done", 10)
        assert running.wait("10s", until_caught_up=True)
        begun = [effect.offset for effect in effects.of("begin")]
        assert begun == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7]
        assert origins(hub) == {0: [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]}

    def test_repeated_rewinds_are_delayed_and_other_shards_go_on(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"back_to": 0, "times": 1_000_000}, shard=0)
        run(going_back, lanes=1, policy={"delay": "10s"})
        until(lambda: effects.count("begin", shard=0) >= 2, "the first rewind is not delayed", 10)
        for _ in range(10):
            fill(stream, 5, range(1, 2))
        until(lambda: checkpoints(hub, "go_back")[1] == 50, "the other shard goes on", 10)
        assert effects.count("begin", shard=0) == 2

    @pytest.mark.parametrize("back_to", [4, 100])
    def test_a_rewind_forward_is_a_failure(
        self, hub: Hub, run: Run, effects: Effects, back_to: int
    ) -> None:
        stream = orders(hub, each=2)
        stream.append({"back_to": back_to, "times": 1_000_000})
        fill(stream, 5)
        running = run(going_back, policy={"retries": 0})
        until(running.stopped, "the rewind is a failure", 10)
        assert origins(hub) == {0: [0, 1]}
        assert checkpoints(hub, "go_back") == {0: 2}

    @pytest.mark.parametrize("back_to", [-1, 1])
    def test_a_rewind_to_a_missing_offset_is_a_failure(
        self, hub: Hub, run: Run, effects: Effects, back_to: int
    ) -> None:
        """The replica stays alive, and the other shard goes on."""
        stream = orders(hub, shards=2, each=5)
        stream.append({"checkpoint": True}, shard=0)
        stream.trim(0, 3)
        stream.append({"back_to": back_to, "times": 1_000_000}, shard=0)
        running = run(going_back, lanes=1, policy={"retries": 0})
        until(running.stopped, "the rewind is a failure", 10)
        fill(stream, 5, range(1, 2))
        until(lambda: checkpoints(hub, "go_back")[1] == 10, "the other shard goes on", 10)
        assert running.stopped() == {"go_back": ["shop/orders:0"]}
        assert checkpoints(hub, "go_back")[0] == 6

    def test_a_batch_is_rewound_as_a_whole(self, hub: Hub, run: Run, effects: Effects) -> None:
        stream = orders(hub, each=10)
        stream.append({"back_to": 10})
        fill(stream, 9)
        assert run(many).wait("10s", until_caught_up=True)
        assert origins(hub) == whole(1, 20)
        assert [effect.offset for effect in effects.of("begin")] == [0, 10, 10]
        assert stored_state(hub, "serve_many")["count"] == 20
