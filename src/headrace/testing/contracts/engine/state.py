"""State of a shard: a mapping that is committed with the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.hub.hub import Hub
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    fill,
    orders,
    stored_state,
    values,
)
from headrace.testing.contracts.engine.samples import keeping, shop, two_shops

VALUES: dict[str, Any] = {
    "nothing": None, "true": True, "int": 2**63 - 1, "float": 0.5, "text": "ä", "list": [1, [2]],
    "map": {"a": {"b": 1}}, "": "the empty key",
}  # fmt: skip


class StateContract(EngineUnderTest):
    def test_state_is_a_mapping(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        steps: list[tuple[list[Any], dict[str, Any], str]] = [
            ([["set", "a", 1], ["set", "b", [2, 3]]], {"a": 1, "b": [2, 3]}, ""),
            ([["set", "a", {"x": None}]], {"a": {"x": None}, "b": [2, 3]}, ""),
            ([["del", "b"]], {"a": {"x": None}}, ""),
            ([["del", "b"]], {"a": {"x": None}}, "KeyError"),
            ([["set", "b", 1], ["pop", "a"], ["pop", "b"]], {}, ""),
            ([["pop", "a"]], {}, "KeyError"),
            ([["set", "c", 1], ["set", "d", 1]], {"c": 1, "d": 1}, ""),
            ([["set", "e", 1], ["clear"]], {}, ""),
            ([["set", "c", 2]], {"c": 2}, ""),
        ]
        for do, _, _ in steps:
            stream.append({"do": do})
        assert run(keeping).wait("10s", until_caught_up=True)
        assert values(hub) == [
            {"state": state, "len": len(state), "error": error} for _, state, error in steps
        ]
        assert stored_state(hub, "keep") == {"c": 2}

    def test_state_holds_what_messagepack_can_encode(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        stream.append({"do": [["set", key, value] for key, value in VALUES.items()]})
        assert run(keeping).wait("10s", until_caught_up=True)
        assert stored_state(hub, "keep") == VALUES

    def test_a_value_that_messagepack_cannot_encode_is_refused(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        stream.append({"do": [["set", "a", 1], ["object", "a"]]})
        stream.append({"do": [["fill", "a", 5 * 2**20]]})
        assert run(keeping).wait("10s", until_caught_up=True)
        assert [(value["error"], value["state"]) for value in values(hub)] == [
            ("BadValue", {"a": 1})
        ] * 2

    @pytest.mark.parametrize("together", [True, False], ids=["in one slice", "one by one"])
    def test_a_failed_attempt_does_not_change_state(
        self, hub: Hub, run: Run, together: bool
    ) -> None:
        stream = orders(hub)
        running = None if together else run(keeping, policy={"retries": 0, "then": "skip"})
        first = [["set", "kept", 1], ["set", "changed", 1], ["set", "gone", 1]]
        bad = [
            ["set", "changed", 2], ["set", "changed", 3], ["del", "gone"], ["set", "gone", 9],
            ["del", "gone"], ["set", "new", 1], ["del", "new"], ["set", "other", 1],
        ]  # fmt: skip
        for do, fails in ((first, 0), (bad, 100), ([["clear"]], 100), ([], 0)):
            stream.append({"do": do, "fails": fails})
            if running is not None:
                assert running.wait("10s", until_caught_up=True)
        if running is None:
            running = run(keeping, policy={"retries": 0, "then": "skip"})
            assert running.wait("10s", until_caught_up=True)
        expected = {"kept": 1, "changed": 1, "gone": 1}
        assert values(hub)[-1]["state"] == expected
        assert stored_state(hub, "keep") == expected

    def test_each_shard_and_each_computation_has_its_own_state(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=3, each=4)
        assert run(two_shops).wait("10s", until_caught_up=True)
        for shard in range(3):
            assert stored_state(hub, shard=shard)["count"] == 4
            assert stored_state(hub, "refund", shard=shard) == {}

    def test_state_is_there_in_the_next_run(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        for n in range(3):
            fill(stream, 10)
            running = run(shop, name=f"replica {n}".replace(" ", "-"))
            assert running.wait("10s", until_caught_up=True)
            assert running.stop("5s")
        assert [value["count"] for value in values(hub)] == list(range(1, 31))

    def test_state_is_the_committed_one_in_every_lane(self, hub: Hub, run: Run) -> None:
        """A lane that gets a shard again does not see the state of the last time."""
        stream = orders(hub, shards=5)
        running = run(shop, lanes=4)
        for n in range(150):
            stream.append({"sleep": 0.0005 * (n % 3)}, shard=n * 7 % 5)
        assert running.wait("20s", until_caught_up=True)
        for shard in range(5):
            found = [v["count"] for v in values(hub) if f":{shard}+" in v["from"]]
            assert found == list(range(1, 31))

    def test_state_larger_than_one_commit_is_stored_in_several(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        for n in range(12):
            stream.append({"do": [["fill", f"key {n}", 300_000]]})
        running = run(keeping)
        assert running.wait("20s", until_caught_up=True)
        assert {key: len(value) for key, value in stored_state(hub, "keep").items()} == {
            f"key {n}": 300_000 for n in range(12)
        }
        assert [value["len"] for value in values(hub)] == list(range(1, 13))

    def test_a_key_written_repeatedly_counts_once_against_the_limit(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub)
        stream.append({"do": [["fill", "key", 300_000]] * 20, "raises": True})
        running = run(keeping, policy={"retries": 0, "then": "skip"})
        assert running.wait("20s", until_caught_up=True)
        assert running.counters["keep"].failures == 0
        assert len(stored_state(hub, "keep")["key"]) == 300_000

    def test_state_of_one_record_that_exceeds_a_commit_is_a_failure(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub)
        stream.append({"do": [["set", "before", 1]]})
        fills = [["fill", f"key {n}", 500_000] for n in range(12)]
        stream.append({"do": fills, "raises": True})
        stream.append({"do": [["set", "after", 1]]})
        running = run(keeping, policy={"retries": 0, "then": "skip"})
        assert running.wait("20s", until_caught_up=True)
        assert stored_state(hub, "keep") == {"before": 1, "after": 1}
        assert "change less at once" in running.counters["keep"].last_failure
