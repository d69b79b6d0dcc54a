"""Collects and judges what a proof has left: streams, dead letters, state and stopped shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.core.computations.computation import Computation
from headrace.core.computations.topology import Topology
from headrace.hub.hub import Hub
from headrace.tools.proof.certificate import StateLine, StreamLine, stream_line
from headrace.tools.proof.evidence import Log, log_of, size
from headrace.tools.proof.judge import Case, Judgement, judged, same
from headrace.tools.proof.progress import ProgressWatch, Stopped
from headrace.tools.proof.reference import Reference, letters_of
from headrace.tools.proof.state import StoredState, stored_state

UNSTEADY = (
    "two undisturbed runs do not make the same outputs either: they depend on the clock, on random "
    "numbers or on values kept outside of state"
)

Undisturbed = Callable[[Sequence[Computation], int], dict[str, Reference]]
"""Makes the references of some computations, for the first or the second time."""


@dataclass(frozen=True)
class CollectedEvidence:
    streams: list[StreamLine]
    state: list[StateLine]
    stopped: list[Stopped]
    failures: list[str]
    """Why a computation could not be compared with its reference."""


def collect_evidence(
    hub: Hub,
    topology: Topology,
    watch: ProgressWatch,
    appended: Mapping[str, int],
    undisturbed: Undisturbed,
) -> CollectedEvidence:
    """Compare the hub with the references. A computation that is not clean gets a second reference:
    perhaps its outputs are never the same."""
    comparison = _Comparison(hub, topology, watch, appended, undisturbed(topology.computations, 1))
    streams, state = comparison.lines(), comparison.states()
    doubted = _doubted(topology, streams, state)
    if doubted:
        comparison.compare_with(undisturbed(doubted, 2))
        streams, state = comparison.lines(), comparison.states()
    failures = [
        f"{name}: {made.failure}" for name, made in comparison.references.items() if made.failure
    ]
    return CollectedEvidence(streams, state, comparison.stopped(), failures)


def _doubted(
    topology: Topology, streams: Sequence[StreamLine], state: Sequence[StateLine]
) -> list[Computation]:
    wrong = {each.stream for each in streams if not each.clean}
    forgot = {each.computation for each in state if each.equal is False}
    return [
        each
        for each in topology.computations
        if each.name in forgot or wrong.intersection((*each.outputs, each.dead_letters))
    ]


@dataclass
class _Comparison:
    hub: Hub
    topology: Topology
    watch: ProgressWatch
    appended: Mapping[str, int]
    references: Mapping[str, Reference]
    unsteady: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of a computation and one of its outputs that two references make differently."""
    unsteady_state: set[str] = field(default_factory=set)
    """Computations whose state two references make differently."""

    def __post_init__(self) -> None:
        self._logs = {name: log_of(self.hub.stream(name)) for name in self.topology.streams}
        self._letters = {each.name: letters_of(self.hub, each) for each in self._computations}

    @property
    def _computations(self) -> tuple[Computation, ...]:
        return self.topology.computations

    def compare_with(self, again: Mapping[str, Reference]) -> None:
        """Find what two references make differently."""
        for name, second in again.items():
            first = self.references[name]
            if first.failure or second.failure:
                continue
            for stream, log in second.outputs.items():
                if not same(first.outputs[stream], log):
                    self.unsteady.add((name, stream))
            if not same(first.letters, second.letters):
                self.unsteady.add((name, self.topology[name].dead_letters))
            if first.state != second.state:
                self.unsteady_state.add(name)

    def lines(self) -> list[StreamLine]:
        sources = self.topology.sources
        found = [self._source(name) for name in sources]
        found += [self._output(name) for name in self.topology.streams if name not in sources]
        return found + [
            self._dead_letters(each)
            for each in self._computations
            if size(self._letters[each.name]) or size(self.references[each.name].letters)
        ]

    def states(self) -> list[StateLine]:
        found = []
        for each in self._computations:
            made, stored = (
                self.references[each.name],
                stored_state(self.hub, each.name, each.inputs),
            )
            if stored or made.state:
                unsteady = each.kind == "batch" or each.name in self.unsteady_state
                found.append(state_line(each.name, stored, made, steady=not unsteady))
        return found

    def stopped(self) -> list[Stopped]:
        """The shards that are stopped in the proof, and those stopped only in a reference."""
        found = self.watch.stopped()
        known = {each.record for each in found}
        return found + [
            replace(each, reason=f"undisturbed: {each.reason}")
            for made in self.references.values()
            for each in made.stopped
            if each.record not in known
        ]

    def _source(self, name: str) -> StreamLine:
        given, held = self.appended[name], size(self._logs[name])
        judgement = Judgement(
            found=held,
            expected=given,
            lost=max(given - held, 0),
            doubled=max(held - given, 0),
            compared="count",
        )
        return stream_line(name, "source", given, judgement)

    def _output(self, name: str) -> StreamLine:
        writers = self.topology.writers(name)
        expected = {each.name: self.references[each.name].outputs.get(name, {}) for each in writers}
        gaps = self.watch.longest_gap_s(name), self.watch.longest_shard_gap_s(name)
        case = self._case(writers, name, self._logs[name], expected)
        return stream_line(name, "output", self._read(writers), judged(case), *gaps)

    def _dead_letters(self, each: Computation) -> StreamLine:
        expected = {each.name: self.references[each.name].letters}
        case = self._case([each], each.dead_letters, self._letters[each.name], expected)
        case = replace(case, batch=False)  # each letter is about one record
        return stream_line(each.dead_letters, "dead letters", self._read([each]), judged(case))

    def _case(
        self, writers: Sequence[Computation], name: str, found: Log, expected: Mapping[str, Log]
    ) -> Case:
        reasons = [
            f"no reference: {self.references[each.name].failure}"
            for each in writers
            if self.references[each.name].failure
        ]
        reasons += [UNSTEADY for each in writers if (each.name, name) in self.unsteady]
        return Case(
            found=found,
            expected=expected,
            inputs={stream: self._logs[stream] for each in writers for stream in each.inputs},
            batch=any(each.kind == "batch" for each in writers),
            only_counted=reasons[0] if reasons else "",
        )

    def _read(self, writers: Sequence[Computation]) -> int:
        streams = {stream for each in writers for stream in each.inputs}
        return sum(size(self._logs[stream]) for stream in streams)


def state_line(
    computation: str, stored: StoredState, made: Reference, *, steady: bool
) -> StateLine:
    """The stored state against the state of the reference."""
    equal: bool | None = stored == made.state
    notes = []
    if made.failure:
        equal = None
    elif not equal and not steady:
        equal = None
        notes.append("it differs between undisturbed runs too, or depends on where batches end")
    elif not equal:
        shards = [s for s in sorted({*stored, *made.state}) if stored.get(s) != made.state.get(s)]
        notes.append(f"differs from an undisturbed run at {', '.join(map(str, shards))}")
    entries = sum(map(len, stored.values()))
    return StateLine(computation=computation, entries=entries, equal=equal, notes=notes)
