from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.computations.topology import Topology
from headrace.core.errors import BadName, BadTopology
from tests.core.computations.topologies import (
    DIAMOND,
    TWO_BY_TWO,
    any_computations,
    computation_of,
    handler,
    names,
)

# Order


def test_upstream_computations_come_first_whatever_the_order_given() -> None:
    a, b, c = (
        computation_of("a", "s0", "s1"),
        computation_of("b", "s1", "s2"),
        computation_of("c", "s2"),
    )
    for given_order in ([a, b, c], [c, b, a], [b, c, a]):
        assert names(Topology(*given_order)) == ["a", "b", "c"]


def test_independent_computations_stay_in_the_order_given() -> None:
    assert names(
        Topology(computation_of("z", "s"), computation_of("a", "s"), computation_of("m", "t"))
    ) == ["z", "a", "m"]


@settings(max_examples=50)
@given(st.integers(2, 10), st.randoms(use_true_random=False))
def test_every_reader_comes_behind_every_writer(count: int, dice: random.Random) -> None:
    """Of any acyclic wiring, given in any order."""
    made = any_computations(count, dice)
    topology = Topology(*made)
    place = {each.name: at for at, each in enumerate(topology.computations)}
    assert sorted(place) == sorted(each.name for each in made)
    for stream in topology.streams:
        for writer in topology.writers(stream):
            for reader in topology.readers(stream):
                assert place[writer.name] < place[reader.name]
    assert set(topology.sources) == {s for s in topology.streams if not topology.writers(s)}
    assert set(topology.sinks) == {s for s in topology.streams if not topology.readers(s)}


def test_a_cycle_is_refused_and_named_in_the_direction_of_the_records() -> None:
    with pytest.raises(BadTopology) as refused:
        Topology(
            computation_of("a", "s1", "s2"),
            computation_of("b", "s2", "s3"),
            computation_of("c", "s3", "s1"),
        )
    steps = str(refused.value).removeprefix("the computations go in a circle: ").split(" -> ")
    assert steps[0] == steps[-1]
    assert sorted(steps[1:]) == ["a", "b", "c", "s1", "s2", "s3"]
    follows = {"s1": "a", "a": "s2", "s2": "b", "b": "s3", "s3": "c", "c": "s1"}
    assert [follows[step] for step in steps[:-1]] == steps[1:]


def test_a_computation_that_reads_its_own_output_is_a_cycle() -> None:
    with pytest.raises(BadTopology, match="in a circle"):
        Topology(computation_of("a", ["s", "t"], "s"))


def test_a_computation_and_a_stream_may_have_one_name() -> None:
    topology = Topology(computation_of("orders", "in", "orders"), computation_of("last", "orders"))
    assert names(topology) == ["orders", "last"]


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
    topology = Topology(
        computation_of("a", "s"), streams={"s": told, "a.dead-letters": {"shards": 1}}
    )
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
        Topology(handler)  # type: ignore[arg-type]


def test_names_are_given_once() -> None:
    with pytest.raises(BadTopology, match="two computations are called 'a'"):
        Topology(computation_of("a", "s"), computation_of("a", "t"))
    with pytest.raises(BadName):
        Topology(computation_of("a", "s"), name="two words")


def test_dead_letters_have_no_other_writer_and_another_reader() -> None:
    a = computation_of("a", "s")
    with pytest.raises(BadTopology, match=r"'b' writes 'a.dead-letters': .* dead letters of 'a'"):
        Topology(a, computation_of("b", "t", "a.dead-letters"))
    with pytest.raises(BadTopology, match="'a' reads its own dead letters"):
        Topology(computation_of("a", ["s", "a.dead-letters"]))
    assert names(Topology(a, computation_of("b", "a.dead-letters"))) == ["a", "b"]


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
        Topology(computation_of("a", "s"), streams=streams)


def test_a_declared_stream_needs_a_name() -> None:
    with pytest.raises(BadName):
        Topology(computation_of("a", "s"), streams={"a b": {}})
