"""``headrace lag`` and ``headrace latency``: how far groups lag, in records and in seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json, find_stream
from headrace.core.redaction import shown_place
from headrace.groups.admin import Groups
from headrace.groups.kept_progress import GroupProgress
from headrace.ops.group_views import lag_views, latency_views
from headrace.process.clock import now_ms

_View = Callable[[Groups, GroupProgress, bool], list[dict[str, Any]]]


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        as_json,
        click.option("--quiet", "-q", is_flag=True, help="Only where there is lag."),
        click.option("--verbose", "-v", is_flag=True, help="A line for each shard."),
        click.option("--stream", metavar="STREAM", help="This stream only."),
        click.argument("name", metavar="[GROUP]", required=False),
    ):
        command = option(command)
    return command


@click.command()
@_options
@click.pass_obj
def lag(hub: str, /, **options: Any) -> None:
    """How far groups are behind: records, and seconds since the oldest unread one came."""
    _show(hub, _lag_views, **options)


@click.command()
@_options
@click.pass_obj
def latency(hub: str, /, **options: Any) -> None:
    """How long ago the last record that was read came, while there are more to read."""
    _show(hub, _latency_views, **options)


def _lag_views(groups: Groups, progress: GroupProgress, each: bool) -> list[dict[str, Any]]:
    unread = groups.unread(progress.positions)
    return lag_views(progress.group, progress.positions, unread, now_ms(), each=each)


def _latency_views(groups: Groups, progress: GroupProgress, each: bool) -> list[dict[str, Any]]:
    last = groups.last_read(progress.positions)
    return latency_views(progress.group, progress.positions, last, now_ms(), each=each)


def _show(
    hub: str,
    view: _View,
    name: str | None,
    stream: str | None,
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        if stream is not None:
            find_stream(opened, stream)
        rows = [
            row
            for progress in groups.progress(name, stream)
            for row in view(groups, progress, verbose)
            if row["lag"] or not quiet
        ]
    rows.sort(key=lambda row: (row["group"], row["stream"]))
    if as_json:
        render.show_json(rows)
    else:
        render.show_table(rows, empty="no lag" if quiet else _nothing(hub, name, stream))


def _nothing(hub: str, name: str | None, stream: str | None) -> str:
    if name is not None:
        return f"{name} reads no stream that is there"
    return f"no groups in {shown_place(hub)}" if stream is None else f"no group reads {stream}"
