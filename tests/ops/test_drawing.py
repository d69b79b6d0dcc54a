"""Topologies as pictures: in text, and for Mermaid."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.ops.drawing import drawn, mermaid, shown_policy
from tests.core.computations.topologies import (
    CHAIN,
    DIAMOND,
    TWO_BY_TWO,
    any_computations,
    computation_of,
)


def test_a_chain_is_drawn_from_top_to_bottom_with_what_is_not_usual() -> None:
    assert drawn(CHAIN).splitlines() == [
        "○  orders    4 shards, codec json, retention 7d",
        "▼  [bill]    3 retries, then dead-letter",
        "○  invoices",
        "▼  [index]   batch of 100 or 1s",
        "○  index     1 shard",
        "▼  [post]    concurrency 2, from latest",
    ]


def test_a_diamond_is_drawn_with_both_its_sides() -> None:
    assert drawn(DIAMOND).splitlines() == [
        "○    orders",
        "├─╮",
        "│ ▼  [left]",
        "│ ○  a",
        "▼ │  [right]",
        "○ │  b",
        "├─╯",
        "▼    [join]",
        "○    all",
    ]


def test_two_inputs_and_two_outputs_are_drawn() -> None:
    assert drawn(TWO_BY_TWO).splitlines() == [
        "○    x",
        "│ ○  y",
        "├─╯",
        "▼    [both]",
        "├─╮",
        "│ ○  p",
        "○    q",
        "▼    [last]",
    ]


def test_unconnected_computations_do_not_look_connected() -> None:
    assert drawn(
        Topology(computation_of("a", "x", "y"), computation_of("b", "p"))
    ).splitlines() == [
        "○  x",
        "▼  [a]",
        "○  y",
        "",
        "○  p",
        "▼  [b]",
    ]


def test_rails_that_cross_are_not_joined() -> None:
    """The rail of y is crossed by the one that leads from x to b; a reads y alone."""
    topology = Topology(
        computation_of("split", "x", ["y", "z"]),
        computation_of("late", ["x", "z"]),
        computation_of("a", "y"),
    )
    assert drawn(topology).splitlines() == [
        "○      x",
        "├─╮",
        "│ ▼    [split]",
        "│ ├─╮",
        "│ │ ○  y",
        "│ ○ │  z",
        "├─╯ │",
        "▼   │  [late]",
        "    ▼  [a]",
    ]


def test_a_rail_that_goes_on_and_joins_another_is_told_apart_from_it() -> None:
    assert drawn(
        Topology(computation_of("a", ["x", "y"]), computation_of("b", "x"))
    ).splitlines() == [
        "○    x",
        "│ ○  y",
        "├▸┤",
        "│ ▼  [a]",
        "▼    [b]",
    ]
    assert drawn(
        Topology(computation_of("a", ["x", "y"]), computation_of("b", ["x", "y"]))
    ).splitlines() == [
        "○      x",
        "│ ○    y",
        "├─│─╮",
        "│ ├▸┤",
        "│ │ ▼  [a]",
        "├─╯",
        "▼      [b]",
    ]


def test_a_rail_is_crossed_on_the_way_to_a_free_column() -> None:
    many = Topology(
        *(computation_of(f"f{at}", "in", f"o{at}") for at in range(3)),
        computation_of("all", ["o0", "o2"]),
    )
    assert "├─│─╮" in drawn(many).splitlines()


@settings(max_examples=50)
@given(st.integers(2, 10), st.randoms(use_true_random=False))
def test_a_picture_of_any_topology_leads_where_it_does(count: int, dice: random.Random) -> None:
    _check_picture(Topology(*any_computations(count, dice)))


@pytest.mark.parametrize("topology", [CHAIN, DIAMOND, TWO_BY_TWO])
def test_a_picture_leads_where_the_topology_does(topology: Topology) -> None:
    _check_picture(topology)


def _check_picture(topology: Topology) -> None:
    """Follow the lines of the picture from each node downwards: they lead to those that follow it,
    and to nothing else."""
    rows = drawn(topology).splitlines()
    names = {f"[{each.name}]": f"computation {each.name}" for each in topology.computations}
    names |= {stream: f"stream {stream}" for stream in topology.streams}
    nodes = {
        (at, row.index(glyph)): names[row.split(glyph, 1)[1].replace("│", "").split()[0]]
        for at, row in enumerate(rows)
        for glyph in ("○", "▼")
        if glyph in row
    }
    assert sorted(nodes.values()) == sorted(names.values())
    wanted = set()
    for each in topology.computations:
        wanted |= {(f"stream {stream}", f"computation {each.name}") for stream in each.inputs}
        wanted |= {(f"computation {each.name}", f"stream {stream}") for stream in each.outputs}
    assert {(of, to) for at, of in nodes.items() for to in _below(rows, nodes, at)} == wanted


_OPENINGS = {
    "│": "ud", "├": "udr", "┤": "udl", "┼": "udlr", "╯": "ul", "╰": "ur", "┴": "ulr",
    "╮": "dl", "╭": "dr", "┬": "dlr", "─": "lr",
}  # fmt: skip
_ARROWS = {"▸": "r", "◂": "l"}
_MOVES = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
_BACK = {"u": "d", "d": "u", "l": "r", "r": "l"}


def _below(rows: list[str], nodes: dict[tuple[int, int], str], at: tuple[int, int]) -> set[str]:
    """The nodes that the lines from one lead down to."""
    found, seen, todo = set(), set(), [((at[0] + 1, at[1]), "d")]
    while todo:
        (row, column), going = todo.pop()
        if (row, column, going) in seen or row >= len(rows):
            continue
        seen.add((row, column, going))
        if (row, column) in nodes:
            if going == "d":
                found.add(nodes[row, column])
            continue
        sign = rows[row][column : column + 1]
        if sign == "│" and going in "lr":  # crossed
            step = _MOVES[going]
            todo.append(((row + step[0], column + step[1]), going))
            continue
        opens = _OPENINGS.get(sign, "") if sign not in _ARROWS else "lr"
        if sign in _ARROWS and going != _ARROWS[sign]:
            continue
        if _BACK[going] not in opens:
            continue
        for way in opens:
            if way not in (_BACK[going], "u"):
                todo.append(((row + _MOVES[way][0], column + _MOVES[way][1]), way))
    return found


def test_a_wide_topology_stays_readable() -> None:
    topology = Topology(
        *(computation_of(f"f{at}", "in", f"o{at}") for at in range(18)),
        computation_of("gather", [f"o{at}" for at in range(18)], "all"),
        computation_of("last", ["all", "in"]),
    )
    _check_picture(topology)
    lines = drawn(topology).splitlines()
    assert max(map(len, lines)) < 60
    assert len(lines) < 70


def test_a_policy_is_shown_where_it_is_not_the_default() -> None:
    assert shown_policy(Policy()) == ""
    assert shown_policy(Policy(retries=20, delay=1, delay_max="1m")) == ""
    assert shown_policy(Policy(retries=0, then="skip")) == "no retries, then skip"
    assert shown_policy(Policy(retries=1, deaths=1)) == "1 retry, 1 death"
    assert (
        shown_policy(
            Policy(
                delay="2s",
                delay_max="5m",
                timeout="500ms",
                no_retry=(ValueError, KeyError),
                deaths=3,
                dead_letters_max=7,
            )
        )
        == "delay 2s, delay up to 5m, no retry of ValueError KeyError, timeout 500ms, 3 deaths, "
        "up to 7 dead letters"
    )


def test_mermaid_gets_streams_as_cylinders_and_computations_as_boxes() -> None:
    assert mermaid(CHAIN).splitlines() == [
        "flowchart LR",
        '    s0[("orders<br/>4 shards<br/>codec json<br/>retention 7d")]',
        '    s1[("invoices")]',
        '    s2[("index<br/>1 shard")]',
        '    c0["bill<br/>3 retries, then dead-letter"]',
        '    c1["index<br/>batch of 100 or 1s"]',
        '    c2["post<br/>concurrency 2<br/>from latest"]',
        "    s0 --> c0",
        "    c0 --> s1",
        "    s1 --> c1",
        "    c1 --> s2",
        "    s2 --> c2",
    ]
    assert [line.strip() for line in mermaid(TWO_BY_TWO).splitlines() if "-->" in line] == [
        "s0 --> c0", "s1 --> c0", "c0 --> s2", "c0 --> s3", "s3 --> c1",
    ]  # fmt: skip


def test_a_label_of_mermaid_is_not_ended_early() -> None:
    codec = 'a"]; click <b>#quot;\n'
    topology = Topology(computation_of("end", "s"), streams={"s": {"codec": codec}})
    label = mermaid(topology).splitlines()[1]
    assert label == ('    s0[("s<br/>codec a#34;#93;#59; click #60;b#62;#35;quot#59;#10;")]')
