"""``headrace append`` and ``headrace tail``: write and show records, line by line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import headrace
from headrace.cli import render
from headrace.cli.options import OneOf
from headrace.cli.streams import as_json, find_stream
from headrace.core.errors import BadRecord, BadSetting
from headrace.core.model import Record
from headrace.core.records.limits import check_shard, check_start
from headrace.ops.stream_views import record_view
from headrace.streams.merged import followed, last, merged
from headrace.streams.stream import Stream

_REFRESH_RECORDS = 1_000


@click.command()
@click.argument("stream")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--lines", type=OneOf(["json", "raw"]), help="What a line is [by the codec].")
@click.option("--key-field", metavar="FIELD", help="The key is this field of each JSON line.")
@click.option("--key", help="One key for all records.")
@click.option("--shard", type=int, help="One shard for all records.")
@as_json
@click.pass_obj
def append(
    hub: str,
    /,
    stream: str,
    file: IO[bytes],
    lines: str | None,
    key_field: str | None,
    key: str | None,
    shard: int | None,
    as_json: bool,
) -> None:
    """Append each line of FILE (or of standard input) to STREAM as a record."""
    with headrace.open(hub, create=False) as opened:
        target = find_stream(opened, stream)
        lines = lines or ("json" if target.info.codec == "json" else "raw")
        if key_field and (lines == "raw" or key is not None):
            raise BadSetting("--key-field goes with JSON lines and without --key")
        if shard is not None:
            check_shard(target.info, shard)
        try:
            count = _append_lines(target, file, lines == "json", key_field, key, shard)
        except _Interrupted as interrupted:
            click.echo(
                f"{stream}: interrupted, {render.counted(interrupted.count, 'record')} appended",
                err=True,
            )
            raise KeyboardInterrupt from None
    if as_json:
        render.show_json({"stream": stream, "appended": count})
    else:
        click.echo(f"{stream}: {render.counted(count, 'record')} appended", err=True)


def _append_lines(
    stream: Stream,
    file: IO[bytes],
    is_json: bool,
    key_field: str | None,
    key: str | None,
    shard: int | None,
) -> int:
    count = number = 0
    with (
        _progress(file) as advance,
        stream.appender(linger="5ms") as out,
        _count_on_interrupt(lambda: count),
    ):
        for number, line in enumerate(file, 1):
            text = line.rstrip(b"\r\n")
            if is_json and not text.strip():
                continue
            try:
                value = _parsed(text) if is_json else text
                own_key = _key(value, key_field) if key_field else key
                out.append(_for_codec(stream, value, text, is_json), own_key, shard=shard)
            except headrace.Invalid as why:
                out.flush()
                raise BadRecord(
                    f"line {number}: {why}; the {count} lines before were appended"
                ) from None
            count += 1
            advance(len(line), count)
    return count


class _Interrupted(BaseException):
    def __init__(self, count: int) -> None:
        self.count = count


@contextmanager
def _count_on_interrupt(count: Callable[[], int]) -> Iterator[None]:
    """Ctrl-C carries the number of records that were appended until then."""
    try:
        yield
    except KeyboardInterrupt:
        raise _Interrupted(count()) from None


def _for_codec(stream: Stream, value: Any, text: bytes, is_json: bool) -> Any:
    """The value that the stream's codec takes. On a stream of bytes or text, JSON lines are not
    parsed."""
    if stream.info.codec == "bytes":
        return text
    if stream.info.codec == "text":
        try:
            return text.decode()
        except UnicodeDecodeError as why:
            raise BadRecord(f"it is no UTF-8: {why}") from None
    return value if is_json else _text_or_bytes(text)


def _text_or_bytes(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


def _parsed(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadRecord(f"it is no JSON: {why}") from None


def _key(value: Any, field: str) -> str:
    found = value.get(field) if isinstance(value, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int | float):
        raise BadRecord(f"it has no text or number in its field {field!r}")
    return str(found)


@contextmanager
def _progress(file: IO[bytes]) -> Iterator[Any]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda nbytes, count: None
        return
    try:
        total: int | None = os.fstat(file.fileno()).st_size or None
    except OSError:
        total = None
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("appending", total=total)
        waiting = 0

        def advance(nbytes: int, count: int) -> None:
            nonlocal waiting
            waiting += nbytes
            if count % _REFRESH_RECORDS == 0:
                bar.update(task, advance=waiting, description=f"{count:,} records")
                waiting = 0

        yield advance
        bar.update(task, advance=waiting)


@click.command()
@click.argument("stream")
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--from", "start", metavar="WHERE", help="earliest, latest or an offset.")
@click.option(
    "--last", "-n", "count", default=10, show_default=True, help="How many, without --from."
)
@click.option("--shard", type=int, help="This shard only.")
@as_json
@click.pass_obj
def tail(
    hub: str,
    /,
    stream: str,
    follow: bool,
    start: str | None,
    count: int,
    shard: int | None,
    as_json: bool,
) -> None:
    """Show records of STREAM, the last 10 unless told otherwise."""
    with headrace.open(hub, create=False) as opened:
        target = find_stream(opened, stream)
        if shard is not None:
            check_shard(target.info, shard)
        shards = [shard] if shard is not None else list(range(target.shards))
        starts = _find_starts(target, shards, start, count)
        records = (followed if follow else merged)(target, starts)
        for record in records:
            if as_json:
                render.show_json(record_view(record))
            else:
                _show(record)
            if follow:
                sys.stdout.flush()


def _find_starts(
    stream: Stream, shards: list[int], start: str | None, count: int
) -> dict[int, int]:
    if start is None:
        if count < 0:
            raise BadSetting(f"--last {count}: 0 or more")
        return last(stream, shards, count)
    bounds = {shard: stream.bounds(shard) for shard in shards}
    if start == "earliest":
        return {shard: kept.start for shard, kept in bounds.items()}
    if start == "latest":
        return {shard: kept.end for shard, kept in bounds.items()}
    if not start.isascii() or not start.isdigit():
        raise BadSetting(f"--from {start!r}: earliest, latest or an offset")
    if len(shards) == 1:
        return {shards[0]: int(start)}
    longest = max(bounds, key=lambda shard: bounds[shard].end)
    check_start(stream.info, longest, int(start), bounds[longest])
    return {shard: min(int(start), kept.end) for shard, kept in bounds.items()}


def _show(record: Record) -> None:
    key = "-" if record.key is None else render.escaped(record.key)
    data = (
        "-"
        if record.data is None
        else render.escaped(record.data.decode("utf-8", "backslashreplace"))
    )
    time = record.timestamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{record.timestamp_ms % 1000:03d}Z"
    if render.on_terminal():
        place, time, key = (
            click.style(str(record.id), fg="cyan"),
            click.style(time, dim=True),
            click.style(key, fg="yellow"),
        )
    else:
        place = str(record.id)
    click.echo(f"{place}  {time}  {key}  {data}")
