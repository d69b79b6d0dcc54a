"""``headrace doctor``: shows what is installed, what is missing and what is wrong."""

from __future__ import annotations

import click

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.core.errors import HeadraceError, NoHub
from headrace.ops.doctor import (
    FindingRow,
    examine_hub,
    examine_machine,
    examine_streams,
    find_damage,
)


@click.command()
@click.option("--deep", is_flag=True, help="Read and check every record.")
@as_json
@click.pass_context
def doctor(context: click.Context, deep: bool, as_json: bool) -> None:
    """Versions, sizes, free disk, stale readers, who holds the write lock, Java; on Kafka what the
    settings of the brokers mean.

    Exit code 1 if something is wrong."""
    findings = examine_machine() + _examine_hub(context.obj, deep)
    if as_json:
        render.show_json(findings)
    else:
        render.show_table(findings)
    if any(finding["ok"] is False for finding in findings):
        context.exit(1)


def _examine_hub(place: str, deep: bool) -> list[FindingRow]:
    """Findings about the hub; an error ends them and is the last one."""
    findings: list[FindingRow] = []
    try:
        with headrace.open(place, create=False) as hub:
            findings += examine_hub(hub)
            streams = hub.streams()
            findings += examine_streams(hub, streams)
            if deep:
                for info in streams:
                    findings += find_damage(hub, info.name)
    except NoHub as none:
        findings.append({"what": "hub", "found": str(none), "ok": None, "advice": ""})
    except HeadraceError as wrong:
        findings.append({"what": "hub", "found": str(wrong), "ok": False, "advice": ""})
    return findings
