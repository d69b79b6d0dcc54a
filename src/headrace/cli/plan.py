"""``headrace run --plan``: how many lanes the topology wants, without running it."""

from __future__ import annotations

from contextlib import ExitStack

import click

import headrace
from headrace.cli import render
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import NoHub
from headrace.ops.lane_plan import plan


def show_plan(
    hub: str, topology: Topology, settings: RunSettings, replicas: int, *, as_json: bool
) -> None:
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(headrace.open(hub, create=False))
        except NoHub:
            opened = None
        rows = plan(topology, settings, opened, replicas)
    lanes = sum(row["lanes"] for row in rows)
    if as_json:
        render.json_line({"plan": rows, "lanes": lanes})
        return
    render.table(rows, rare=["concurrency"])
    together = f", {lanes} if all have work at once" if len(rows) > 1 else ""
    most = max(row["lanes"] for row in rows)
    click.echo(
        f"lanes for each of {replicas} replicas: {most} for the busiest computation{together}: "
        f"headrace run … --lanes {lanes}"
    )
