"""``headrace group``: shows who shares which shards and what happened, and moves checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

import headrace
from headrace.cli import render
from headrace.cli.streams import as_json
from headrace.core.errors import BadQuantity, BadSetting, UnknownGroup
from headrace.core.groups.group import Group
from headrace.core.model import RecordId, ShardId
from headrace.core.names import checked_name
from headrace.core.quantities import seconds
from headrace.core.redaction import shown_place
from headrace.groups.admin import Groups
from headrace.groups.positions import Seek, SeekTo
from headrace.ops.attempts_views import because, brief
from headrace.ops.explain import changes_of
from headrace.ops.group_views import (
    explanation,
    group_line,
    group_view,
    history_views,
    seek_views,
)
from headrace.ops.ranges import shown_shards
from headrace.process.clock import now_ms

_WHERE = "earliest, latest, an offset, a time as in 2026-01-31T08:00:00Z, or 2h for two hours ago"
_REASON_CHARS_IN_TABLE = 60

yes = click.option("--yes", is_flag=True, help="Do not ask.")
force = click.option("--force", is_flag=True, help="Even if members live: they are fenced.")


@click.group()
def group() -> None:
    """Groups: list, show, history, explain, seek, skip, resume, delete."""


@group.command("list")
@as_json
@click.pass_obj
def list_groups(hub: str, /, as_json: bool) -> None:
    """All groups of the hub."""
    with headrace.open(hub, create=False) as opened:
        views = sorted(map(group_line, opened.groups.every()), key=lambda view: view["group"])
    if as_json:
        render.show_json(views)
    else:
        render.show_table(views, empty=f"no groups in {shown_place(hub)}")


@group.command()
@click.argument("name", metavar="GROUP")
@as_json
@click.pass_obj
def show(hub: str, /, name: str, as_json: bool) -> None:
    """One group with its members and shards."""
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        found = _load(groups, name)
        positions = groups.positions(found)
        view = group_view(
            found,
            groups.signs(found),
            positions,
            groups.unread(positions),
            groups.history(name),
            now_ms(),
            groups.attempts(found),
        )
    if as_json:
        render.show_json(view)
        return
    parts = {"members", "shards", "allocator_version"}
    rare = {"fault", "order"}
    render.show_table([{key: value for key, value in view.items() if key not in parts}], rare=rare)
    render.show_table(view["members"], empty=f"{name} has no members")
    shards = [_shard_line(row) for row in view["shards"]]
    render.show_table(shards, empty=f"{name} has no shards", rare={"stopped", "next", "trouble"})
    for row in view["shards"]:
        if row["stopped"]:
            _show_stopped(name, row)


@group.command()
@click.argument("name", metavar="GROUP")
@click.option(
    "--last",
    "-n",
    "count",
    type=click.IntRange(1),
    help="How many of the last ones [all that are kept].",
)
@as_json
@click.pass_obj
def history(hub: str, /, name: str, count: int | None, as_json: bool) -> None:
    """What happened to GROUP, oldest first; also to one that was deleted."""
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        with _near_groups(groups):
            stored = groups.stored(name)
            entries = groups.history(name)
        changes = changes_of(stored, groups.replayed(name, entries))
    views = history_views(entries[-(count or len(entries)) :], changes)
    if as_json:
        render.show_json(views)
        return
    render.show_table(views, empty=f"nothing is told of {name}")
    _note(changes.note)


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("shard", metavar="[STREAM:SHARD]", required=False)
@as_json
@click.pass_obj
def explain(hub: str, /, name: str, shard: str | None, as_json: bool) -> None:
    """Why the shards of GROUP, or one of them, are where they are."""
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        found = _load(groups, name)
        one = None if shard is None else _shard(shard)
        positions = groups.positions(found, None if one is None else one.stream)
        if one is not None and one not in positions.keys() | found.shards.keys():
            raise BadSetting(f"{one}: the stream has no such shard")
        shards = sorted(found.shards) if one is None else [one]
        changes = changes_of(found, groups.replayed(name, groups.history(name)))
        attempts = groups.attempts(found, None if one is None else one.stream)
        view = explanation(found, shards, positions, changes, groups.signs(found), attempts)
    if as_json:
        render.show_json(view)
        return
    rows = [{key: row[key] for key in ("shard", "state", "why")} for row in view["shards"]]
    render.show_table(rows, empty=f"{name} has no shards")
    if one is not None:
        render.show_table(view["shards"][0]["story"], empty=f"no move of {one} is told")
    _note(changes.note)


@group.command()
@click.argument("name", metavar="GROUP")
@click.option("--to", "where", required=True, metavar="WHERE", help=f"{_WHERE}.")
@click.option("--stream", metavar="STREAM", help="This stream only.")
@click.option("--shard", "shards", type=int, multiple=True, help="This one only; may be repeated.")
@force
@yes
@as_json
@click.pass_obj
def seek(
    hub: str,
    /,
    name: str,
    where: str,
    stream: str | None,
    shards: tuple[int, ...],
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Move the checkpoints of GROUP, after a preview."""
    target = _where(where)
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        with _near_groups(groups):
            plan = groups.plan(name, target, stream, shards or None)
        _move(groups, name, plan, force, yes, as_json)


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("what", metavar="STREAM:SHARD[+OFFSET]")
@click.option("--records", default=1, show_default=True, help="How many.")
@force
@yes
@as_json
@click.pass_obj
def skip(
    hub: str, /, name: str, what: str, records: int, force: bool, yes: bool, as_json: bool
) -> None:
    """Leave out the next records of one shard, after a preview; a stopped one goes on. With an
    offset exactly that record, if it is the next."""
    named = RecordId.parse(what) if "+" in what else _shard(what)
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        with _near_groups(groups):
            plan = [groups.plan_skip(name, named, records)]
        _move(groups, name, plan, force, yes, as_json)


@group.command()
@click.argument("name", metavar="GROUP")
@click.argument("shard", metavar="[STREAM:SHARD]", required=False)
@as_json
@click.pass_obj
def resume(hub: str, /, name: str, shard: str | None, as_json: bool) -> None:
    """Let the stopped shards of GROUP, or one of them, go on, with all their retries."""
    one = None if shard is None else _shard(shard)
    with headrace.open(hub, create=False) as opened, _near_groups(opened.groups):
        resumed = opened.groups.resume(name, one)
    if as_json:
        render.show_json({"group": name, "resumed": [str(each) for each in resumed]})
    else:
        click.echo(f"{name}: {shown_shards(resumed)} resumed")


@group.command()
@click.argument("name", metavar="GROUP")
@force
@yes
@as_json
@click.pass_obj
def delete(hub: str, /, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete GROUP with its checkpoints and state, for good; its history stays."""
    with headrace.open(hub, create=False) as opened:
        groups = opened.groups
        found = _load(groups, name)
        lag = sum(position.lag for position in groups.positions(found).values())
        _confirm(f"{name} is {lag} records behind in {len(found.shards)} shards", "delete it", yes)
        groups.delete(name, force)
    if as_json:
        render.show_json({"group": name, "deleted": True})
    else:
        click.echo(f"{name}: deleted")


@contextmanager
def _near_groups(groups: Groups) -> Iterator[None]:
    """A group that is not there is refused with the nearest name."""
    try:
        yield
    except UnknownGroup as unknown:
        raise UnknownGroup(unknown.name, known=[found.name for found in groups.every()]) from None


def _load(groups: Groups, name: str) -> Group:
    with _near_groups(groups):
        return groups.load(name)


def _move(
    groups: Groups, name: str, plan: Sequence[Seek], force: bool, yes: bool, as_json: bool
) -> None:
    views = seek_views(plan)
    if not as_json:
        render.show_table(views, empty=f"{name} reads nothing that is there", rare={"resumes"})
    skipped, repeated = (sum(view[key] for view in views) for key in ("skipped", "repeated"))
    about = f"{name}: {skipped} records skipped, {repeated} repeated"
    resumed = shown_shards(seek.shard for seek in plan if seek.resumes)
    about += f", {resumed} resumed" if resumed else ""
    _confirm(about, "move the checkpoints", yes)
    moved = groups.move(name, plan, force)
    if as_json:
        render.show_json({"group": name, "moved": seek_views(moved)})
    else:
        click.echo(f"{about}, {len(moved)} checkpoints moved")


def _shard_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A shard in the table; why it is stopped is printed below the table."""
    line = {**row, "since": _short(row["since"]), "trouble": None}
    attempts = line.pop("attempts")
    del line["stopped_since"]
    if attempts is not None:
        record = attempts["record"]
        where = "no record" if record is None else f"+{record.rpartition('+')[2]}"
        counts = {"failed": attempts["failed"], "died": attempts["deaths"]}
        counted = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        reason = brief(attempts["reason"], _REASON_CHARS_IN_TABLE)
        line["trouble"] = ": ".join(filter(None, [where, counted, reason]))
    return line


def _show_stopped(name: str, row: Mapping[str, Any]) -> None:
    """Print why a shard is stopped, and what to do."""
    attempts = row["attempts"]
    since = f" since {_short(row['stopped_since'])}" if row["stopped_since"] else ""
    why = f" {because(attempts)}" if attempts is not None else ""
    click.echo(render.escaped(f"{row['shard']} is stopped{since}{why}"))
    click.echo(f"  to go on:        headrace group resume {name} {row['shard']}")
    if attempts is not None and attempts["record"] == f"{row['shard']}+{row['checkpoint']}":
        click.echo(f"  to leave it out: headrace group skip {name} {attempts['record']}")


def _confirm(about: str, what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadSetting(f"{about}: say --yes to {what}")
    click.confirm(f"{about}. {what.capitalize()}?", abort=True, err=True)


def _short(time: str | None) -> str | None:
    """A time in whole seconds, without the date if it is today's."""
    if time is None:
        return None
    day, _, clock = time.partition("T")
    today = datetime.now(UTC).date().isoformat()
    return f"{clock[:8]}Z" if day == today else f"{day} {clock[:8]}Z"


def _note(note: str) -> None:
    if note:
        click.echo(note, err=True)


def _shard(text: str) -> ShardId:
    stream, _, index = text.rpartition(":")
    if not (stream and index.isascii() and index.isdigit() and len(index) < 10):
        raise BadSetting(f"bad shard {text!r}: write stream:shard, as in shop/orders:2")
    return ShardId(checked_name(stream), int(index))


def _where(text: str) -> SeekTo:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        if at.tzinfo is None:
            raise BadSetting(f"--to {text}: give its time zone, as in 2026-01-31T08:00:00Z")
        return at
    try:
        return timedelta(seconds=seconds(text))
    except BadQuantity:
        raise BadSetting(f"--to {text!r}: {_WHERE}") from None
