"""What a proof collects when it is over: a topology that ran, with streams tampered with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import headrace
from headrace import Policy, Topology, computation
from headrace.core.computations.computation import Computation
from headrace.core.computations.settings import RunSettings
from headrace.hub.hub import Hub
from headrace.tools.proof.certificate import StreamLine
from headrace.tools.proof.collect import CollectedEvidence, collect_evidence
from headrace.tools.proof.progress import ProgressWatch
from headrace.tools.proof.reference import Reference, gathered, made_alone

RECORDS = 300
WITHIN_S = 30.0
QUICK = RunSettings(policies={"default": {"retries": 0}})

turn = itertools.count()


@computation(inputs="orders", outputs=["left", "right"])
def split(record: Any, out: Any) -> None:
    out.append("left", record.value, key=record.key)
    out.append("right", record.value, key=record.key)


@computation(inputs=["left", "right"], outputs="joined")
def join(record: Any, out: Any, state: Any) -> None:
    state[record.key] = state.get(record.key, 0) + 1
    out.append("joined", record.value, key=record.key)


@computation(inputs="orders", outputs="some")
def dice(record: Any, out: Any, state: Any) -> None:
    """Makes other outputs each time."""
    state["turn"] = next(turn)
    if next(turn) % 7 < 3:
        out.append("some", record.value, key=record.key)


@computation(inputs="orders", outputs="fine", policy=Policy(retries=0, then="dead-letter"))
def picky(record: Any, out: Any) -> None:
    if record.value % 100 == 0:
        raise ValueError("a round one")
    out.append("fine", record.value)


@computation.batch(inputs="orders", outputs="counts", capacity=50, threshold="5ms")
def count(records: Any, out: Any) -> None:
    out.append("counts", len(records))


@computation(inputs="orders")
def refuse(record: Any) -> None:
    raise KeyError("city")


@pytest.fixture(autouse=True)
def _origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ORIGINS", "1")


@pytest.fixture
def hub() -> Iterator[Hub]:
    with headrace.open("memory:") as hub:
        yield hub


def ran(hub: Hub, topology: Topology) -> None:
    for name in topology.streams:
        hub.create_stream(name, shards=2, codec="json")
    hub.stream("orders").append_many((n, f"k{n % 10}") for n in range(RECORDS))
    with headrace.start(topology, hub, settings=QUICK) as running:
        assert running.wait(WITHIN_S, until_caught_up=True)


def undisturbed(hub: Hub) -> Callable[[Sequence[Computation], int], dict[str, Reference]]:
    def made(computations: Sequence[Computation], attempt: int) -> dict[str, Reference]:
        found = {}
        for each in computations:
            with headrace.open("memory:") as own:
                done = made_alone(hub, own, each, QUICK, WITHIN_S)
                found[each.name] = gathered(own, each, caught_up=done, within_s=WITHIN_S)
        return found

    return made


def collected(hub: Hub, topology: Topology) -> CollectedEvidence:
    watch = ProgressWatch(hub, topology)
    watch.look(0.0)
    return collect_evidence(hub, topology, watch, {"orders": RECORDS}, undisturbed(hub))


def lines(hub: Hub, topology: Topology) -> dict[str, StreamLine]:
    return {line.stream: line for line in collected(hub, topology).streams}


def test_records_that_come_through_two_computations_are_clean(hub: Hub) -> None:
    topology = Topology(split, join)
    ran(hub, topology)
    found = collected(hub, topology)
    assert all(line.clean for line in found.streams), found
    assert [line.stream for line in found.streams] == ["orders", "left", "right", "joined"]
    assert [line.records_out for line in found.streams] == [RECORDS, RECORDS, RECORDS, 2 * RECORDS]
    assert [state.equal for state in found.state] == [True]
    assert not found.failures
    assert not found.stopped


def test_a_doubled_record_counts_only_in_the_stream_where_it_was_doubled(hub: Hub) -> None:
    """The next step has read it twice, and is right to make two outputs of it."""
    topology = Topology(split, join)
    ran(hub, Topology(split, join))
    left = hub.stream("left")
    again = next(iter(left.read(0)))
    left.append(again.value, key=again.key, headers=again.headers)
    with headrace.start(topology, hub, settings=QUICK) as running:
        assert running.wait(WITHIN_S, until_caught_up=True)
    found = lines(hub, topology)
    assert found["left"].doubled == 1
    assert found["joined"].clean
    assert found["right"].clean


def test_a_missing_record_is_lost(hub: Hub) -> None:
    ran(hub, Topology(split))
    right = hub.stream("right")
    with headrace.open("memory:") as copy:
        for name in ("orders", "left", "right"):
            copy.create_stream(name, shards=2, codec="json")
            for shard in range(2):
                batch = hub.stream(name).read_arrow(shard).read_all()
                kept = batch.slice(1) if (name, shard) == ("right", 0) else batch
                copy.stream(name).append_arrow(kept, shard=shard)
        found = lines(copy, Topology(split))
    assert right.bounds(0).end > 1
    assert (found["right"].lost, found["left"].lost) == (1, 0)
    assert not found["right"].clean


def test_random_outputs_are_only_counted(hub: Hub) -> None:
    ran(hub, Topology(dice))
    found = collected(hub, Topology(dice))
    _, some = found.streams
    assert (some.lost, some.doubled, some.compared) == (None, 0, "count")
    assert "two undisturbed runs" in " ".join(some.notes)
    assert some.clean
    assert [state.equal for state in found.state] == [None]


def test_dead_letters_are_compared_too(hub: Hub) -> None:
    ran(hub, Topology(picky))
    found = lines(hub, Topology(picky))
    assert found["picky.dead-letters"].records_out == RECORDS // 100
    assert all(line.clean for line in found.values()), found
    letters = hub.stream("picky.dead-letters")
    again = next(iter(letters.read(0)))
    letters.append(again.value, headers=again.headers)
    assert lines(hub, Topology(picky))["picky.dead-letters"].doubled == 1


def test_the_notes_say_that_batches_are_compared_by_content(hub: Hub) -> None:
    ran(hub, Topology(count))
    found = lines(hub, Topology(count))["counts"]
    assert found.clean
    assert found.out_of_order is None
    assert "batches" in " ".join(found.notes)


def test_a_stopped_shard_is_shown_with_the_reason(hub: Hub) -> None:
    ran(hub, Topology(refuse))
    found = collected(hub, Topology(refuse))
    assert {each.record for each in found.stopped} == {"orders:0+0", "orders:1+0"}
    assert all("KeyError" in each.reason for each in found.stopped)


def test_the_failures_say_that_a_reference_is_missing(hub: Hub) -> None:
    topology = Topology(split)
    ran(hub, topology)
    watch = ProgressWatch(hub, topology)
    watch.look(0.0)
    none = {"split": Reference({}, {}, {}, [], "no such module")}
    found = collect_evidence(
        hub, topology, watch, {"orders": RECORDS}, lambda computations, attempt: none
    )
    assert found.failures == ["split: no such module"]
    assert [line.lost for line in found.streams] == [0, None, None]
