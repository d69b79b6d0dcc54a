"""``headrace topology``: checks a topology, and draws it."""

from __future__ import annotations

import logging
from typing import Any

import click

from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.core.computations.computation import Computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadSetting
from headrace.hub.settings_file import settings_here
from headrace.lanes.fingerprint import fingerprint
from headrace.lanes.loading import load_topology
from headrace.ops.drawing import drawn, mermaid, shown_policy


@click.command()
@click.argument("place", metavar="FILE[:NAME]")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="A Mermaid flowchart, for documents.")
@as_json
def topology(place: str, as_mermaid: bool, as_json: bool) -> None:
    """Check the topology in FILE, as in shop.py or shop.py:nightly, and draw it.

    The settings of headrace.toml are applied, if there is one in this directory."""
    if as_mermaid and as_json:
        raise BadSetting("--mermaid and --json: say one of them")
    settings = settings_here()
    loaded = load_topology(place)
    for line in settings.unknown_names(loaded.topology):
        logging.getLogger("headrace").warning("%s", line)
    whole = settings.applied(loaded.topology)
    if as_json:
        render.show_json({"reference": loaded.reference, **topology_view(whole)})
    elif as_mermaid:
        click.echo(mermaid(whole))
    else:
        click.echo(drawn(whole))
        if render.on_terminal():
            click.echo()
            render.show_table([_row(each) for each in whole.computations], rare=["concurrency"])


def topology_view(topology: Topology) -> dict[str, Any]:
    """A topology as a dict, for programs."""
    return {
        "topology": topology.name,
        "sources": list(topology.sources),
        "sinks": list(topology.sinks),
        "streams": [
            {
                "stream": stream,
                "writers": [each.name for each in topology.writers(stream)],
                "readers": [each.name for each in topology.readers(stream)],
                "settings": topology.declared.get(stream, {}),
            }
            for stream in topology.streams
        ],
        "computations": [computation_view(each) for each in topology.computations],
    }


def computation_view(each: Computation) -> dict[str, Any]:
    batch = each.kind == "batch"
    return {
        "computation": each.name,
        "inputs": list(each.inputs),
        "outputs": list(each.outputs),
        "kind": each.kind,
        "capacity": each.capacity if batch else None,
        "threshold_s": each.threshold_s if batch else None,
        "concurrency": each.concurrency,
        "start": each.start,
        "code": fingerprint(each),
        "policy": policy_view(each.policy or Policy()),
    }


def policy_view(policy: Policy) -> dict[str, Any]:
    return {
        "retries": policy.retries,
        "delay_s": policy.delay_s,
        "delay_s_max": policy.delay_s_max,
        "then": policy.then,
        "timeout_s": policy.timeout_s,
        "no_retry": [kind.__name__ for kind in policy.no_retry],
        "deaths": policy.deaths,
        "dead_letters_max": policy.dead_letters_max,
    }


def _row(each: Computation) -> dict[str, Any]:
    return {
        "computation": each.name,
        "inputs": list(each.inputs),
        "outputs": list(each.outputs),
        "kind": each.kind,
        "concurrency": each.concurrency,
        "policy": shown_policy(each.policy or Policy()) or "usual",
    }
