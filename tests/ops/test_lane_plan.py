from __future__ import annotations

import pytest

from headrace import Topology, UnknownStream, computation
from headrace.core.computations.settings import RunSettings
from headrace.hub.hub import Hub
from headrace.hub.opening import open as open_hub
from headrace.ops.lane_plan import advised_lanes, plan_lanes


@computation(inputs="orders", outputs="bills")
def bill(record: object) -> None:
    pass


@computation(inputs="bills", concurrency=2)
def index(record: object) -> None:
    pass


@pytest.mark.parametrize(
    ("shards", "replicas", "lanes"),
    [(16, 4, 5), (10, 1, 12), (10, 3, 4), (1, 1, 2), (1, 10, 1), (5, 6, 1), (1000, 7, 172)],
)
def test_a_fifth_more_lanes_than_shards_of_a_replica(
    shards: int, replicas: int, lanes: int
) -> None:
    assert advised_lanes(shards, replicas) == lanes


def lanes(topology: Topology, hub: Hub | None, replicas: int) -> dict[str, int]:
    rows = plan_lanes(topology, RunSettings(), hub, replicas)
    return {row["computation"]: row["lanes"] for row in rows}


def test_streams_count_as_they_are_or_as_they_would_be_made() -> None:
    topology = Topology(bill, index, streams={"orders": {"shards": 4}, "bills": {"shards": 16}})
    assert lanes(topology, None, 4) == {"bill": 2, "index": 2}
    with open_hub("memory:") as hub:
        hub.create_stream("orders", shards=16)
        assert lanes(topology, hub, 4) == {"bill": 5, "index": 2}, "index takes no more than 2"


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(UnknownStream, match="orders"):
        plan_lanes(Topology(bill), RunSettings(), None, 1)
