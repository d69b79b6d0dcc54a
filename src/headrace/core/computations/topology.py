"""A topology: computations that are wired by the streams they read and write, without a cycle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from headrace.core.computations.computation import Computation
from headrace.core.errors import BadTopology
from headrace.core.names import checked_name
from headrace.core.nearest import did_you_mean

STREAM_SETTINGS = ("shards", "codec", "routing", "retention", "retention_bytes")


class Topology:
    """Computations, wired by the streams that they read and write.

    >>> from headrace import Topology, computation
    >>> @computation(inputs="shop/orders", outputs="shop/invoices")
    ... def bill(record, out): ...
    >>> @computation(inputs="shop/invoices")
    ... def post(record): ...
    >>> topology = Topology(post, bill, streams={"shop/orders": {"shards": 4, "codec": "json"}})
    >>> [each.name for each in topology.computations]
    ['bill', 'post']
    >>> topology.sources
    ('shop/orders',)
    """

    def __init__(
        self,
        *computations: Computation | type[Any],
        streams: Mapping[str, Mapping[str, Any]] | None = None,
        name: str = "topology",
    ) -> None:
        """``streams`` has the settings of streams that do not exist yet: shards, codec, routing,
        retention, retention_bytes."""
        # A decorated class is a computation, but type checkers still see the class.
        self.computations = _ordered(_checked(computations))
        """Upstream computations come first; otherwise in the order given."""
        self.name = checked_name(name)
        self.declared = {checked_name(s): _settings(s, made) for s, made in (streams or {}).items()}
        """The settings of streams that do not exist yet, by name."""
        _check_declared(self)

    def __getitem__(self, name: str) -> Computation:
        for each in self.computations:
            if each.name == name:
                return each
        known = [each.name for each in self.computations]
        raise BadTopology(
            f"no computation {name!r} in this topology: there are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )

    def __repr__(self) -> str:
        return f"<Topology {', '.join(each.name for each in self.computations)}>"

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream that is read or written, in the order of the computations."""
        found: dict[str, None] = {}
        for each in self.computations:
            found |= dict.fromkeys((*each.inputs, *each.outputs))
        return tuple(found)

    @property
    def sources(self) -> tuple[str, ...]:
        """The streams that no computation writes."""
        written = {stream for each in self.computations for stream in each.outputs}
        return tuple(stream for stream in self.streams if stream not in written)

    @property
    def sinks(self) -> tuple[str, ...]:
        """The streams that no computation reads."""
        read = {stream for each in self.computations for stream in each.inputs}
        return tuple(stream for stream in self.streams if stream not in read)

    def writers(self, stream: str) -> tuple[Computation, ...]:
        return tuple(each for each in self.computations if stream in each.outputs)

    def readers(self, stream: str) -> tuple[Computation, ...]:
        return tuple(each for each in self.computations if stream in each.inputs)


def _checked(given: tuple[Computation | type[Any], ...]) -> tuple[Computation, ...]:
    if not given:
        raise BadTopology("a topology needs computations: Topology(bill, index)")
    computations: list[Computation] = []
    for each in given:
        if not isinstance(each, Computation):
            shown = getattr(each, "__qualname__", None) or repr(each)
            raise BadTopology(f"{shown} is no computation: decorate it with @computation(…)")
        if any(each.name == other.name for other in computations):
            raise BadTopology(f"two computations are called {each.name!r}: each needs its own name")
        computations.append(each)
    _check_letters(computations)
    return tuple(computations)


def _check_letters(computations: Sequence[Computation]) -> None:
    letters = {each.dead_letters: each.name for each in computations}
    for each in computations:
        for stream in each.outputs:
            if stream in letters:
                raise BadTopology(
                    f"{each.name!r} writes {stream!r}: those are the dead letters of "
                    f"{letters[stream]!r}"
                )
        if each.dead_letters in each.inputs:
            raise BadTopology(
                f"{each.name!r} reads its own dead letters: give them to another computation"
            )


def _check_declared(topology: Topology) -> None:
    letters = [each.dead_letters for each in topology.computations]
    for stream in topology.declared:
        if stream not in topology.streams and stream not in letters:
            raise BadTopology(
                f"stream {stream!r} is declared, but nothing here reads or writes it: there are "
                f"{', '.join(topology.streams)}{did_you_mean(stream, topology.streams)}"
            )


def _ordered(computations: tuple[Computation, ...]) -> tuple[Computation, ...]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for each in computations:
        node = _node(each.name)
        sorter.add(node, *each.inputs)
        for stream in each.outputs:
            sorter.add(stream, node)
    try:
        sorter.prepare()
    except CycleError as error:
        circle = " -> ".join(step.removeprefix(_node("")) for step in error.args[1])
        raise BadTopology(f"the computations go in a circle: {circle}") from None
    by_node = {_node(each.name): each for each in computations}
    found: list[Computation] = []
    while sorter.is_active():
        ready = sorter.get_ready()
        found += [by_node[node] for node in by_node if node in ready]
        sorter.done(*ready)
    return tuple(found)


def _node(computation: str) -> str:
    """The node of a computation in the graph; a stream's node is its name, which may be the
    same."""
    return f"computation:{computation}"


def _settings(stream: str, made: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(made, Mapping):
        raise BadTopology(f"stream {stream!r}: {made!r}: settings like {{'shards': 4}}")
    for key in made:
        if key not in STREAM_SETTINGS:
            raise BadTopology(
                f"stream {stream!r}: unknown setting {key!r}; known are "
                f"{', '.join(STREAM_SETTINGS)}{did_you_mean(key, STREAM_SETTINGS)}"
            )
    return dict(made)
