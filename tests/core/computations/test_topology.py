from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.computations.computation import Computation, computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadName, BadTopology
from headrace.ops.drawing import drawn, mermaid, shown_policy

Streams = str | list[str]


def _handler(record: Any) -> None: ...


def _made(name: str, inputs: Streams, outputs: Streams = (), **settings: Any) -> Computation:  # type: ignore[assignment]
    return computation(inputs=inputs, outputs=outputs, name=name, **settings)(_handler)


def _names(topology: Topology) -> list[str]:
    return [each.name for each in topology.computations]


CHAIN = Topology(
    _made("bill", "orders", "invoices", policy=Policy(retries=3, then="dead-letter")),
    computation.batch(inputs="invoices", outputs="index", name="index", capacity=100)(_handler),
    _made("post", "index", concurrency=2, start="latest"),
    streams={"orders": {"shards": 4, "codec": "json", "retention": "168h"}, "index": {"shards": 1}},
)
DIAMOND = Topology(
    _made("left", "orders", "a"), _made("right", "orders", "b"), _made("join", ["a", "b"], "all")
)
TWO_BY_TWO = Topology(_made("both", ["x", "y"], ["p", "q"]), _made("last", "q"))


# Order


def test_what_is_upstream_comes_first_whatever_the_order_given() -> None:
    a, b, c = _made("a", "s0", "s1"), _made("b", "s1", "s2"), _made("c", "s2")
    for given_order in ([a, b, c], [c, b, a], [b, c, a]):
        assert _names(Topology(*given_order)) == ["a", "b", "c"]


def test_what_does_not_depend_on_each_other_stays_as_given() -> None:
    assert _names(Topology(_made("z", "s"), _made("a", "s"), _made("m", "t"))) == ["z", "a", "m"]


@settings(max_examples=50)
@given(st.integers(2, 10), st.randoms(use_true_random=False))
def test_every_reader_comes_behind_every_writer(count: int, dice: random.Random) -> None:
    """Of any acyclic wiring, given in any order."""
    made = [
        _made(
            f"c{at}",
            dice.sample([f"s{k}" for k in range(at + 1)], dice.randint(1, min(3, at + 1))),
            dice.sample(
                [f"s{k}" for k in range(at + 1, count + 2)], dice.randint(0, min(2, count + 1 - at))
            ),
        )
        for at in range(count)
    ]
    dice.shuffle(made)
    topology = Topology(*made)
    place = {each.name: at for at, each in enumerate(topology.computations)}
    assert sorted(place) == sorted(each.name for each in made)
    for stream in topology.streams:
        for writer in topology.writers(stream):
            for reader in topology.readers(stream):
                assert place[writer.name] < place[reader.name]
    assert set(topology.sources) == {s for s in topology.streams if not topology.writers(s)}
    assert set(topology.sinks) == {s for s in topology.streams if not topology.readers(s)}
    _check_picture(topology)


def test_a_cycle_is_refused_and_named_in_the_direction_of_the_records() -> None:
    with pytest.raises(BadTopology) as refused:
        Topology(_made("a", "s1", "s2"), _made("b", "s2", "s3"), _made("c", "s3", "s1"))
    steps = str(refused.value).removeprefix("the computations go in a circle: ").split(" -> ")
    assert steps[0] == steps[-1]
    assert sorted(steps[1:]) == ["a", "b", "c", "s1", "s2", "s3"]
    follows = {"s1": "a", "a": "s2", "s2": "b", "b": "s3", "s3": "c", "c": "s1"}
    assert [follows[step] for step in steps[:-1]] == steps[1:]


def test_a_computation_that_reads_its_own_output_is_a_cycle() -> None:
    with pytest.raises(BadTopology, match="in a circle"):
        Topology(_made("a", ["s", "t"], "s"))


def test_a_computation_and_a_stream_may_have_one_name() -> None:
    topology = Topology(_made("orders", "in", "orders"), _made("last", "orders"))
    assert _names(topology) == ["orders", "last"]


# What is there


def test_streams_are_listed_with_their_readers_and_writers() -> None:
    assert DIAMOND.streams == ("orders", "a", "b", "all")
    assert (DIAMOND.sources, DIAMOND.sinks) == (("orders",), ("all",))
    assert [each.name for each in DIAMOND.readers("orders")] == ["left", "right"]
    assert [each.name for each in DIAMOND.writers("b")] == ["right"]
    assert DIAMOND.writers("orders") == ()
    assert TWO_BY_TWO.sources == ("x", "y")
    assert TWO_BY_TWO.sinks == ("p",)


def test_a_computation_is_found_by_its_name() -> None:
    assert DIAMOND["join"].inputs == ("a", "b")
    with pytest.raises(BadTopology, match=r"no computation 'jion' .*: there are left, right, join"):
        DIAMOND["jion"]
    assert repr(DIAMOND) == "<Topology left, right, join>"


def test_stream_settings_are_kept_as_given() -> None:
    told = {"shards": 4, "codec": "json"}
    topology = Topology(_made("a", "s"), streams={"s": told, "a.dead-letters": {"shards": 1}})
    told["shards"] = 5
    assert topology.declared == {
        "s": {"shards": 4, "codec": "json"},
        "a.dead-letters": {"shards": 1},
    }


# Refusals


def test_a_topology_needs_computations() -> None:
    with pytest.raises(BadTopology, match="needs computations"):
        Topology()
    with pytest.raises(BadTopology, match="is no computation: decorate it with @computation"):
        Topology(_handler)  # type: ignore[arg-type]


def test_names_are_given_once() -> None:
    with pytest.raises(BadTopology, match="two computations are called 'a'"):
        Topology(_made("a", "s"), _made("a", "t"))
    with pytest.raises(BadName):
        Topology(_made("a", "s"), name="two words")


def test_dead_letters_have_no_other_writer_and_another_reader() -> None:
    a = _made("a", "s")
    with pytest.raises(BadTopology, match=r"'b' writes 'a.dead-letters': .* dead letters of 'a'"):
        Topology(a, _made("b", "t", "a.dead-letters"))
    with pytest.raises(BadTopology, match="'a' reads its own dead letters"):
        Topology(_made("a", ["s", "a.dead-letters"]))
    assert _names(Topology(a, _made("b", "a.dead-letters"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("streams", "says"),
    [
        ({"s": {"shard": 4}}, "stream 's': unknown setting 'shard'; known are shards, codec"),
        ({"s": 4}, "stream 's': 4: settings like {'shards': 4}"),
        ({"S": {"shards": 4}}, "'S' is declared, but nothing here reads or writes it: there are s"),
        ({"b.dead-letters": {}}, "nothing here reads or writes it"),
    ],
)
def test_stream_settings_that_cannot_be_meant_are_refused(streams: Any, says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        Topology(_made("a", "s"), streams=streams)


def test_a_declared_stream_needs_a_name() -> None:
    with pytest.raises(BadName):
        Topology(_made("a", "s"), streams={"a b": {}})


# Pictures


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


def test_what_is_not_connected_does_not_look_so() -> None:
    assert drawn(Topology(_made("a", "x", "y"), _made("b", "p"))).splitlines() == [
        "○  x",
        "▼  [a]",
        "○  y",
        "",
        "○  p",
        "▼  [b]",
    ]


def test_rails_that_cross_are_not_joined() -> None:
    """The rail of y is crossed by the one that leads from x to b; a reads y alone."""
    topology = Topology(_made("split", "x", ["y", "z"]), _made("late", ["x", "z"]), _made("a", "y"))
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
    assert drawn(Topology(_made("a", ["x", "y"]), _made("b", "x"))).splitlines() == [
        "○    x",
        "│ ○  y",
        "├▸┤",
        "│ ▼  [a]",
        "▼    [b]",
    ]
    assert drawn(Topology(_made("a", ["x", "y"]), _made("b", ["x", "y"]))).splitlines() == [
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
        *(_made(f"f{at}", "in", f"o{at}") for at in range(3)), _made("all", ["o0", "o2"])
    )
    assert "├─│─╮" in drawn(many).splitlines()


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
        *(_made(f"f{at}", "in", f"o{at}") for at in range(18)),
        _made("gather", [f"o{at}" for at in range(18)], "all"),
        _made("last", ["all", "in"]),
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


def test_nothing_ends_a_label_of_mermaid_early() -> None:
    codec = 'a"]; click <b>#quot;\n'
    topology = Topology(_made("end", "s"), streams={"s": {"codec": codec}})
    label = mermaid(topology).splitlines()[1]
    assert label == ('    s0[("s<br/>codec a#34;#93;#59; click #60;b#62;#35;quot#59;#10;")]')
