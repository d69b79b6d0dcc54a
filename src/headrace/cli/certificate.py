"""Prints and draws the certificate of a proof."""

from __future__ import annotations

from collections.abc import Iterator

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from headrace.cli import render
from headrace.tools.proof.certificate import Certificate, StreamLine

NAME_CHARS_MAX = 30

_TITLES = (
    "stream", "in", "out", "lost", "doubled", "out of order", "unexpected", "longest gap",
    "of a shard", "compared by",
)  # fmt: skip


def show_certificate(certificate: Certificate, evidence: str | None) -> None:
    console = Console(highlight=False)
    if render.on_terminal():
        console.print(drawn_table(certificate))
    else:
        render.show_table(
            [dict(zip(_TITLES, _row(each), strict=True)) for each in certificate.streams]
        )
    for note in _notes(certificate):
        click.echo(note)
    if evidence is not None:
        click.echo(f"hub and logs are kept in {evidence}")
    click.echo(f"again: {certificate.again}")
    console.print(drawn_verdict(certificate), soft_wrap=True)


def drawn_table(certificate: Certificate) -> Table:
    drawn = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    longest = max((len(each.stream) for each in certificate.streams), default=0)
    drawn.add_column(_TITLES[0], no_wrap=longest <= NAME_CHARS_MAX, overflow="fold")
    for title in _TITLES[1:]:
        side: JustifyMethod = "left" if title == "compared by" else "right"
        drawn.add_column(title, justify=side, overflow="fold")
    for each in certificate.streams:
        drawn.add_row(*_cells(each), style="" if each.clean else "red")
    return drawn


def drawn_verdict(certificate: Certificate) -> Text:
    verdict = "clean" if certificate.clean else "NOT CLEAN"
    if certificate.clean and not certificate.complete:
        verdict = "clean as far as it could be compared"
    lost, doubled, out_of_order = (
        sum(getattr(each, what) or 0 for each in certificate.streams)
        for what in ("lost", "doubled", "out_of_order")
    )
    return Text.assemble(
        (f"{verdict}: ", "bold green" if certificate.clean else "bold red"),
        f"lost {lost}, doubled {doubled}, out of order {out_of_order}; "
        f"{_counted(certificate.kills, 'kill')} and {_counted(certificate.stops, 'stop')} of "
        f"{_counted(certificate.replicas, 'replica')}, {certificate.records} records, "
        f"{certificate.seconds:g} s, seed {certificate.seed}",
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _row(each: StreamLine) -> list[str]:
    values = (
        each.stream, each.records_in, each.records_out, each.lost, each.doubled, each.out_of_order,
        each.unexpected, _ms(each.longest_gap_ms), _ms(each.longest_shard_gap_ms), each.compared,
    )  # fmt: skip
    return ["n/a" if value is None and at in (3, 4, 5) else render.shown(value)
            for at, value in enumerate(values)]  # fmt: skip


def _ms(gap_ms: int | None) -> str | None:
    return None if gap_ms is None else f"{gap_ms} ms"


def _cells(each: StreamLine) -> list[Text]:
    return [Text(cell) for cell in _row(each)]


def _notes(certificate: Certificate) -> Iterator[str]:
    """What the table does not show, line by line."""
    if not certificate.caught_up:
        yield "not caught up: there was still work to do when nothing moved any more"
    for stop in certificate.stopped:
        yield f"stopped: {stop.computation} at {stop.record}: {render.escaped(stop.reason)}"
    for end in certificate.ended:
        yield f"{end.name} ended by itself ({end.code}): {render.escaped(end.said)}"
    for each in certificate.streams:
        for note in (*each.notes, *each.examples):
            yield f"{each.stream}: {note}"
    for state in certificate.state:
        verdict = {True: "as undisturbed", False: "WRONG", None: "not compared"}[state.equal]
        line = f"state of {state.computation}: {state.entries} entries, {verdict}"
        yield "; ".join([line, *state.notes])
    for failure in certificate.failures:
        yield f"no reference: {render.escaped(failure)}"
    yield from certificate.notes
