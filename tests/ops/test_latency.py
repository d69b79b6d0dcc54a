"""Latency as Nuxeo tells it: how old the last record read is, while there are more to read."""

from __future__ import annotations

import headrace
from headrace.hub.hub import Hub
from headrace.ops.group_views import latency_views

T1, T2, T3, NOW = 1_000_000, 1_002_000, 1_005_000, 1_010_000


def latency(hub: Hub) -> tuple[int, float | None]:
    groups = hub.groups
    positions = groups.positions(groups.load("billing"))
    (row,) = latency_views("billing", positions, groups.last_read(positions), NOW)
    return row["lag"], row["latency_s"]


def test_the_worked_example_of_nuxeo() -> None:
    """Records at t1, t2, t3: nothing, then now - t1, now - t2, and 0 when all are read."""
    hub = headrace.open("memory:")
    orders = hub.create_stream("shop/orders", shards=1)
    for timestamp in (T1, T2, T3):
        orders.append(b"order", key="ann", timestamp=timestamp)
    with hub.consumer("shop/orders", group="billing", commit_every="1h") as consumer:
        assert latency(hub) == (3, None)
        told = []
        for _ in range(3):
            assert consumer.read(timeout="5s") is not None
            consumer.commit()
            told.append(latency(hub))
    assert told == [(2, (NOW - T1) / 1000), (1, (NOW - T2) / 1000), (0, 0.0)]


def test_outputs_carry_the_time_of_their_input_so_that_latency_is_from_end_to_end() -> None:
    @headrace.computation(inputs="shop/orders", outputs="shop/invoices")
    def bill(record: headrace.Record, out: headrace.Outputs) -> None:
        out.append("shop/invoices", b"invoice", key=record.key)

    hub = headrace.open("memory:")
    for name in ("shop/orders", "shop/invoices"):
        hub.create_stream(name, shards=1)
    times = list(range(T1, T1 + 40))
    with headrace.start(headrace.Topology(bill), hub) as running:
        for timestamp in times:
            hub.stream("shop/orders").append(b"order", key="ann", timestamp=timestamp)
        assert running.wait("10s", until_caught_up=True)
    assert [record.timestamp_ms for record in hub.stream("shop/invoices").read(0)] == times
