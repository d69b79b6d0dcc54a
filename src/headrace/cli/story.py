"""``headrace story``: where a record comes from, and what became of it."""

from __future__ import annotations

from typing import Any

import click

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.hub.story.reader import DEPTH_DEFAULT
from headrace.hub.story.record_story import LineKind, RecordStory, lines
from headrace.ops.story import story_view

_STYLES: dict[LineKind, dict[str, Any]] = {
    "record": {"fg": "cyan", "bold": True},
    "commit": {"fg": "green"},
    "trouble": {"fg": "red"},
    "fact": {},
    "note": {"fg": "yellow"},
}


@click.command()
@click.argument("record")
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=DEPTH_DEFAULT,
    show_default=True,
    help="How many commits to follow, each way.",
)
@as_json
@click.pass_obj
def story(hub: str, /, record: str, depth: int, as_json: bool) -> None:
    """Where RECORD, as in shop/orders:2+17, comes from, and what became of it."""
    with headrace.open(hub, create=False) as opened:
        told = opened.story(record, depth=depth)
    if as_json:
        render.show_json(story_view(told))
    else:
        _show(told)


def _show(told: RecordStory) -> None:
    for depth, kind, text in lines(told):
        line = render.escaped(text)
        shown = click.style(line, **_STYLES[kind]) if render.on_terminal() else line
        click.echo("  " * depth + shown)
