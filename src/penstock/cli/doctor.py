"""``penstock doctor``: what is here, what is missing, what is wrong."""

from __future__ import annotations

import click

import penstock
from penstock.cli import render
from penstock.cli.streams import as_json
from penstock.core.errors import NoHub, PenstockError
from penstock.ops.doctor import Finding, damage_findings, hub_findings, machine_findings


@click.command()
@click.option("--deep", is_flag=True, help="Read and check every record.")
@as_json
@click.pass_context
def doctor(context: click.Context, deep: bool, as_json: bool) -> None:
    """Versions, sizes, free disk, stale readers, who holds the write lock, Java.

    Exit code 1 if something is wrong."""
    findings = machine_findings() + _about_hub(context.obj, deep)
    if as_json:
        render.json_line(findings)
    else:
        render.table(findings)
    if any(finding["ok"] is False for finding in findings):
        context.exit(1)


def _about_hub(place: str, deep: bool) -> list[Finding]:
    try:
        with penstock.open(place, create=False) as hub:
            findings = hub_findings(hub)
            streams = hub.streams()
            findings.append({"what": "streams", "found": len(streams), "ok": None, "advice": ""})
            if deep:
                for info in streams:
                    findings += damage_findings(hub.stream(info.name))
            return findings
    except NoHub as none:
        return [{"what": "hub", "found": str(none), "ok": None, "advice": ""}]
    except PenstockError as wrong:
        return [{"what": "hub", "found": str(wrong), "ok": False, "advice": ""}]
