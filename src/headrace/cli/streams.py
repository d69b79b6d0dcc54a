"""``headrace stream``: creates, lists, shows and deletes streams."""

from __future__ import annotations

import sys
from typing import Any

import click

import headrace
from headrace.cli import render
from headrace.core.errors import BadSetting, UnknownStream
from headrace.core.model import ROUTINGS, Bounds, StreamInfo
from headrace.core.redaction import shown_place
from headrace.hub.hub import SHARDS_DEFAULT, Hub
from headrace.ops.stream_views import shard_views, stream_view
from headrace.streams.stream import Stream

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON value, for programs.")


def find_stream(hub: Hub, name: str) -> Stream:
    """The stream of that name; one that is not there is refused with the nearest name."""
    try:
        return hub.stream(name)
    except UnknownStream:
        raise UnknownStream(name, known=[info.name for info in hub.streams()]) from None


@click.group()
def stream() -> None:
    """Streams: create, list, show, delete."""


@stream.command()
@click.argument("name")
@click.option("--shards", default=SHARDS_DEFAULT, show_default=True, help="How many shards.")
@click.option("--codec", default="bytes", show_default=True, help="bytes, text, json or your own.")
@click.option("--routing", default=ROUTINGS[0], show_default=True, help=", ".join(ROUTINGS) + ".")
@click.option("--retention", metavar="TIME", help="How long records are kept, as in 7d [for ever].")
@click.option("--retention-bytes", metavar="SIZE", help="How much is kept per shard, as in 10GiB.")
@click.option("--exist-ok", is_flag=True, help="Leave a stream that is there as it is.")
@as_json
@click.pass_obj
def create(hub: str, /, name: str, as_json: bool, **settings: Any) -> None:
    """Create the stream NAME, and the hub if there is none."""
    with headrace.open(hub) as opened:
        made = opened.create_stream(name, **settings)
        (bounds,) = _ask_bounds(opened, made.info)
        view = stream_view(made.info, bounds)
        if as_json:
            render.show_json(view)
            return
        wanted = settings["shards"]
        kept = f" (it was there, {wanted} were asked for)" if made.shards != wanted else ""
        click.echo(
            f"{name}: {made.shards} shards{kept}, codec {made.info.codec}, in {shown_place(hub)}"
        )


@stream.command("list")
@as_json
@click.pass_obj
def list_streams(hub: str, /, as_json: bool) -> None:
    """All streams of the hub."""
    with headrace.open(hub, create=False) as opened:
        streams = opened.streams()
        bounds = _ask_bounds(opened, *streams)
        at_most = _at_most(opened)
    views = [stream_view(info, own) for info, own in zip(streams, bounds, strict=True)]
    if as_json:
        render.show_json(views)
    else:
        shown = [{**view, "records": f"{at_most}{view['records']}"} for view in views]
        render.show_table(shown, empty=f"no streams in {shown_place(hub)}")


@stream.command()
@click.argument("name")
@as_json
@click.pass_obj
def show(hub: str, /, name: str, as_json: bool) -> None:
    """One stream with its shards."""
    with headrace.open(hub, create=False) as opened:
        info = find_stream(opened, name).info
        (bounds,) = _ask_bounds(opened, info)
        at_most = _at_most(opened)
    view, shards = stream_view(info, bounds), shard_views(info, bounds)
    if as_json:
        render.show_json({**view, "shards": shards})
        return
    render.show_table([{**view, "records": f"{at_most}{view['records']}"}])
    render.show_table(shards)


@stream.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def delete(hub: str, /, name: str, yes: bool, as_json: bool) -> None:
    """Delete a stream with all its records, for good."""
    with headrace.open(hub, create=False) as opened:
        info = find_stream(opened, name).info
        (bounds,) = _ask_bounds(opened, info)
        records = stream_view(info, bounds)["records"]
        shown = f"{_at_most(opened)}{records}"
        if not yes:
            if not sys.stdin.isatty():
                raise BadSetting(f"{name} has {shown} records: say --yes to delete them")
            click.confirm(f"Delete {name} with {shown} records?", abort=True)
        opened.delete_stream(name)
    if as_json:
        render.show_json({"stream": name, "deleted": True, "records": records})
    else:
        click.echo(f"{name}: deleted, {shown} records")


def _at_most(hub: Hub) -> str:
    """A sign before a number of records that was counted by offsets, where those have gaps."""
    return "≤" if "dense_offsets" in hub.capabilities.missing else ""


def _ask_bounds(hub: Hub, *streams: StreamInfo) -> list[dict[int, Bounds]]:
    """The bounds of all shards of these streams, in one call of the backend."""
    shards = [(info, shard.index) for info in streams for shard in info.shards]
    found = iter(hub.log.bounds_of(shards))
    return [{shard.index: next(found) for shard in info.shards} for info in streams]
