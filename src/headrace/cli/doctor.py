"""``headrace doctor``: what is here, what is missing, what is wrong."""

from __future__ import annotations

import click

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.core.errors import HeadraceError, NoHub
from headrace.ops.doctor import (
    Finding,
    damage_findings,
    hub_findings,
    machine_findings,
    stream_findings,
)


@click.command()
@click.option("--deep", is_flag=True, help="Read and check every record.")
@as_json
@click.pass_context
def doctor(context: click.Context, deep: bool, as_json: bool) -> None:
    """Versions, sizes, free disk, stale readers, who holds the write lock, Java; on Kafka what the
    settings of the brokers mean.

    Exit code 1 if something is wrong."""
    findings = machine_findings() + _about_hub(context.obj, deep)
    if as_json:
        render.json_line(findings)
    else:
        render.table(findings)
    if any(finding["ok"] is False for finding in findings):
        context.exit(1)


def _about_hub(place: str, deep: bool) -> list[Finding]:
    """What was found before something went wrong is told too."""
    findings: list[Finding] = []
    try:
        with headrace.open(place, create=False) as hub:
            findings += hub_findings(hub)
            streams = hub.streams()
            findings += stream_findings(hub, streams)
            if deep:
                for info in streams:
                    findings += damage_findings(hub, info.name)
    except NoHub as none:
        findings.append({"what": "hub", "found": str(none), "ok": None, "advice": ""})
    except HeadraceError as wrong:
        findings.append({"what": "hub", "found": str(wrong), "ok": False, "advice": ""})
    return findings
