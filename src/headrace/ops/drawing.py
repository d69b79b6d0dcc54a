"""Pictures of a topology: as plain text, and as a Mermaid flowchart.

The plain one is a graph of rails that runs down, as ``git log --graph`` draws it. A stream is a
circle, a computation an arrow through which records go:

    ○    shop/orders
    ├─╮
    │ ▼  [left]
    │ ○  shop/a
    ▼ │  [right]
    ○ │  shop/b
    ├─╯
    ▼    [join]
    ○    shop/all

From a stream or a computation one rail goes to all nodes that follow it: it ends at the last of
them, and branches off to the others. Where a branch joins another rail, an arrow shows its way.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.computations.computation import Computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology
from headrace.core.quantities import seconds, shown_duration

_GLYPHS = {"stream": "○", "computation": "▼"}
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
    _UP | _LEFT: "╯",
    _UP | _RIGHT: "╰",
    _UP | _LEFT | _RIGHT: "┴",
    _DOWN | _LEFT: "╮",
    _DOWN | _RIGHT: "╭",
    _DOWN | _LEFT | _RIGHT: "┬",
    _LEFT | _RIGHT: "─",
}


class _Node(NamedTuple):
    kind: str
    name: str


class _Row(NamedTuple):
    rails: str
    label: str = ""
    notes: str = ""


def drawn(topology: Topology) -> str:
    """The topology as lines of text, upstream first."""
    rows: list[_Row] = []
    rails: list[_Node | None] = []
    follow = _follow(topology)
    for node in _in_order(topology):
        column = _lead_to(node, follow, rails, rows)
        rows.append(_row(topology, node, rails, column))
        rails[column] = node if follow[node] else None
        while rails and rails[-1] is None:
            rails.pop()
    wide = max(len(row.rails) for row in rows)
    label = max(len(row.label) for row in rows)
    return "\n".join(
        f"{row.rails:{wide}}  {row.label:{label}}  {row.notes}".rstrip() for row in rows
    )


def mermaid(topology: Topology) -> str:
    """The topology as a flowchart for Mermaid."""
    ids = {}
    follow = _follow(topology)
    lines = ["flowchart LR"]
    for at, stream in enumerate(topology.streams):
        ids[_Node("stream", stream)] = f"s{at}"
        lines.append(f"    s{at}[({_label(stream, _stream_notes(topology, stream))})]")
    for at, each in enumerate(topology.computations):
        ids[_Node("computation", each.name)] = f"c{at}"
        lines.append(f"    c{at}[{_label(each.name, _computation_notes(each))}]")
    for node in _in_order(topology):
        lines += [f"    {ids[node]} --> {ids[to]}" for to in follow[node]]
    return "\n".join(lines)


def shown_policy(policy: Policy) -> str:
    """The settings of a policy that differ from ``Policy()``; empty if none does."""
    usual, shown = Policy(), []
    if policy.retries != usual.retries:
        shown.append(
            {0: "no retries", 1: "1 retry"}.get(policy.retries, f"{policy.retries} retries")
        )
    if policy.delay_s != usual.delay_s:
        shown.append(f"delay {shown_duration(policy.delay_s)}")
    if policy.delay_s_max != usual.delay_s_max:
        shown.append(f"delay up to {shown_duration(policy.delay_s_max)}")
    if policy.no_retry:
        shown.append(f"no retry of {' '.join(kind.__name__ for kind in policy.no_retry)}")
    if policy.then != usual.then:
        shown.append(f"then {policy.then}")
    if policy.timeout_s is not None:
        shown.append(f"timeout {shown_duration(policy.timeout_s)}")
    if policy.deaths != usual.deaths:
        shown.append("1 death" if policy.deaths == 1 else f"{policy.deaths} deaths")
    if policy.dead_letters_max != usual.dead_letters_max:
        shown.append(f"up to {policy.dead_letters_max} dead letters")
    return ", ".join(shown)


def _in_order(topology: Topology) -> list[_Node]:
    """All nodes: a stream comes right before its first reader or right behind its last writer."""
    order: list[_Node] = []
    sources = set(topology.sources)
    left = {stream: len(topology.writers(stream)) for stream in topology.streams}
    for each in topology.computations:
        for stream in each.inputs:
            if stream in sources:
                sources.remove(stream)
                order.append(_Node("stream", stream))
        order.append(_Node("computation", each.name))
        for stream in each.outputs:
            left[stream] -= 1
            if not left[stream]:
                order.append(_Node("stream", stream))
    return order


def _follow(topology: Topology) -> dict[_Node, list[_Node]]:
    """The nodes to which records go from each node, in the order in which they are drawn."""
    order = _in_order(topology)
    place = {node: at for at, node in enumerate(order)}
    found: dict[_Node, list[_Node]] = {node: [] for node in order}
    for each in topology.computations:
        node = _Node("computation", each.name)
        for stream in each.inputs:
            found[_Node("stream", stream)].append(node)
        for stream in each.outputs:
            found[node].append(_Node("stream", stream))
    for targets in found.values():
        targets.sort(key=place.__getitem__)
    return found


def _lead_to(
    node: _Node,
    follow: dict[_Node, list[_Node]],
    rails: list[_Node | None],
    rows: list[_Row],
) -> int:
    """Draw the rails that lead to a node; the column of the node."""
    coming = [at for at, of in enumerate(rails) if of is not None and node in follow[of]]
    ending = [at for at in coming if follow[_on(rails, at)][-1] == node]
    passing = [at for at in coming if at not in ending]
    column = ending[0] if ending else _free(rails, passing)
    if len(ending) > 1:
        rows.append(_Row(_merge(rails, ending, column)))
    for at in ending:
        rails[at] = None
    for at in passing:
        joins = bool(ending) or at != passing[0]
        rows.append(_Row(_branch(rails, at, column, joins)))
    if not coming and rows and rows[-1].rails[2 * column : 2 * column + 1].strip():
        rows.append(_Row(_marks(rails)))  # a gap: the node does not follow the one above it
    return column


def _free(rails: list[_Node | None], coming: list[int]) -> int:
    """A column without a rail, if possible to the right of the rails that lead to it."""
    least = min(coming, default=0)
    for at in range(least, len(rails)):
        if rails[at] is None:
            return at
    rails.append(None)
    return len(rails) - 1


def _merge(rails: list[_Node | None], ending: list[int], column: int) -> str:
    """The row in which rails end in the rail of the column."""
    lines = dict.fromkeys(ending, _UP) | {column: _UP | _DOWN}
    return _across(rails, lines)


def _branch(rails: list[_Node | None], at: int, column: int, joins: bool) -> str:
    """The row in which a rail branches off to the column and goes on. If the branch joins another
    rail there, an arrow shows its direction."""
    row = _across(rails, {at: _UP | _DOWN, column: _UP | _DOWN if joins else _DOWN})
    if not joins:
        return row
    arrow, place = ("▸", 2 * column - 1) if at < column else ("◂", 2 * column + 1)
    return row[:place] + arrow + row[place + 1 :]


def _across(rails: list[_Node | None], lines: dict[int, int]) -> str:
    """A row with these columns connected; the rails between are crossed, not joined."""
    first, last = min(lines), max(lines)
    row = ""
    for at, of in enumerate(rails):
        line = lines.get(at, 0)
        if line:
            line |= (_LEFT if at > first else 0) | (_RIGHT if at < last else 0)
        elif of is not None:
            line = _UP | _DOWN
        elif first < at < last:
            line = _LEFT | _RIGHT
        row += _LINES.get(line, " ") + ("─" if first <= at < last else " ")
    return row.rstrip()


def _row(topology: Topology, node: _Node, rails: list[_Node | None], column: int) -> _Row:
    marks = _marks(rails)
    marks = f"{marks[: 2 * column]:{2 * column}}{_GLYPHS[node.kind]}{marks[2 * column + 1 :]}"
    if node.kind == "stream":
        return _Row(marks, node.name, ", ".join(_stream_notes(topology, node.name)))
    return _Row(marks, f"[{node.name}]", ", ".join(_computation_notes(topology[node.name])))


def _marks(rails: list[_Node | None]) -> str:
    return " ".join(" " if of is None else "│" for of in rails).rstrip()


def _on(rails: list[_Node | None], at: int) -> _Node:
    node = rails[at]
    assert node is not None, f"no rail in column {at}"
    return node


def _stream_notes(topology: Topology, stream: str) -> list[str]:
    notes = []
    for key, value in topology.declared.get(stream, {}).items():
        if key == "shards":
            notes.append("1 shard" if value == 1 else f"{value} shards")
        elif key == "retention":
            notes.append(f"retention {shown_duration(seconds(value, what='retention'))}")
        else:
            notes.append(f"{key.replace('_', ' ')} {value}")
    return notes


def _computation_notes(each: Computation) -> list[str]:
    notes = []
    if each.kind == "batch":
        notes.append(f"batch of {each.capacity} or {shown_duration(each.threshold_s)}")
    if each.concurrency is not None:
        notes.append(f"concurrency {each.concurrency}")
    if each.start != "earliest":
        notes.append(f"from {each.start}")
    if each.policy is not None and (policy := shown_policy(each.policy)):
        notes.append(policy)
    return notes


def _label(name: str, notes: list[str]) -> str:
    return '"' + "<br/>".join(map(_escaped, [name, *notes])) + '"'


def _escaped(text: str) -> str:
    """A label for Mermaid: characters that could end it are written as entities."""
    return "".join(
        char if char.isalnum() or char in " ._/,:-" else f"#{ord(char)};" for char in text
    )
