"""What the context gives to a handler."""

from __future__ import annotations

from headrace.core.computations.settings import RunSettings
from headrace.hub.hub import Hub
from headrace.testing.contracts.engine.engine_under_test import EngineUnderTest, Run, orders, values
from headrace.testing.contracts.engine.samples import showing


class ContextContract(EngineUnderTest):
    def test_options_reach_the_handler(self, hub: Hub, run: Run) -> None:
        orders(hub, each=1)
        settings = RunSettings(
            options={"my_option": "of the file", "my_other": 2},
            streams={"default": {"codec": "json", "shards": 1}},
        )
        running = run(showing, settings=settings, options={"my_option": "of the command line"})
        assert running.wait("10s", until_caught_up=True)
        (shown,) = values(hub)
        assert shown["options"] == {"my_option": "of the command line", "my_other": 2}

    def test_the_context_names_computation_shard_replica_and_lane(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=2, each=1)
        assert run(showing, name="ann", lanes=1).wait("10s", until_caught_up=True)
        shown = values(hub)
        assert {each["shard"] for each in shown} == {"shop/orders:0", "shop/orders:1"}
        for each in shown:
            where = each["computation"], each["replica"], each["lane"]
            assert where == ("show_context", "ann", 0)
