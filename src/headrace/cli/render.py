"""Prints results: tables and colours on a terminal, plain text in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

NARROW = 16
NAMES = 44

_STYLES = {"True": "green", "False": "red"}
_STATES = {"free": "red", "waiting": "yellow", "moving": "yellow", "done": "dim"}


def on_terminal() -> bool:
    return sys.stdout.isatty()


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def show_table(
    rows: Sequence[Row], *, empty: str = "nothing there", rare: Collection[str] = ()
) -> None:
    """Print rows that share their columns. A rare column is left out if it is empty in all rows."""
    if not rows:
        click.echo(empty, err=True)
        return
    columns = [c for c in rows[0] if c not in rare or any(row[c] for row in rows)]
    cells = [[shown(row[column]) for column in columns] for row in rows]
    if on_terminal():
        _rich_table(columns, cells, rows)
    else:
        _plain_table(columns, cells)


def shown(value: Any) -> str:
    """The text of one cell. Nothing in it can move the cursor or colour the screen."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(shown(item) for item in value) or "-"
    return escaped(str(value))


def escaped(text: str) -> str:
    """The text with control characters and lone surrogates made visible."""
    return "".join(char if char.isprintable() else _visible(char) for char in text)


def escaped_lines(text: str) -> str:
    """The same for a text of several lines, which are kept."""
    return "\n".join(escaped(line) for line in text.splitlines())


def _visible(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _plain_table(columns: list[str], cells: list[list[str]]) -> None:
    lines = [columns, *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _rich_table(columns: list[str], cells: list[list[str]], rows: Iterable[Row]) -> None:
    drawn = Table(header_style="bold")
    for at, column in enumerate(columns):
        numeric = cells[0][at].replace(".", "", 1).isdigit()
        width = max(len(column), *(len(line[at]) for line in cells))
        drawn.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            # On a narrow terminal only wide columns wrap; the first one, a name, does not.
            no_wrap=width <= NARROW or (at == 0 and width <= NAMES),
        )
    for line, row in zip(cells, rows, strict=True):
        style = _STYLES.get(str(row.get("ok")), "") or _STATES.get(str(row.get("state")), "")
        drawn.add_row(*(Text(cell) for cell in line), style=style)
    Console().print(drawn)
