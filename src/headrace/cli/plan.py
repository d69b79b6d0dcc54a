"""``headrace run --plan``: shows how many lanes the topology needs, without running it."""

from __future__ import annotations

from contextlib import ExitStack

import click

import headrace
from headrace.cli import render
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import NoHub
from headrace.ops.lane_plan import plan_lanes


def show_plan(
    hub: str, topology: Topology, settings: RunSettings, replicas: int, *, as_json: bool
) -> None:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(headrace.open(hub, create=False))
        except NoHub:
            opened = None
        rows = plan_lanes(topology, settings, opened, replicas)
    lanes = sum(row["lanes"] for row in rows)
    if as_json:
        render.show_json({"plan": rows, "lanes": lanes})
        return
    render.show_table(rows, rare=["concurrency"])
    together = f", {lanes} if all have work at once" if len(rows) > 1 else ""
    most = max(row["lanes"] for row in rows)
    click.echo(
        f"lanes for each of {replicas} replicas: {most} for the busiest computation{together}: "
        f"headrace run … --lanes {lanes}"
    )
