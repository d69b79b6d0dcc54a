"""One proof: replicas, load, deeds, rest, and the certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import penstock
from penstock.codec.registry import find_codec
from penstock.core.computation import Computation
from penstock.core.model import StreamInfo
from penstock.run.hub import Hub
from penstock.run.loading import Loaded
from penstock.run.settings import RunSettings
from penstock.testing.prove.certificate import Certificate, Line, StateLine, line
from penstock.testing.prove.crew import Crew, Life
from penstock.testing.prove.evidence import Log, log_of, size
from penstock.testing.prove.judging import Case, Judgement, judged, same
from penstock.testing.prove.load import Load
from penstock.testing.prove.plan import Deed, drawn
from penstock.testing.prove.reference import Reference, letters_of, references
from penstock.testing.prove.sample import Example, made_up
from penstock.testing.prove.scratch import SESSION_S, Scratch
from penstock.testing.prove.state import State, stored_state
from penstock.testing.prove.watch import Watch

TICK_S = 0.02
BEGIN_S_MAX = 60.0
VICTIM_S_MAX = 10.0
"""So long a deed waits for two replicas at work: where nobody works, nothing can go wrong."""
STILL_S_MAX = 30.0
"""If nothing has moved for so long after the last deed, it will not be caught up."""
CATCH_UP_S_MAX = 900.0
REST_S = 1.0
"""Load goes on for so long behind the last deed."""
STOPPED_S = 3 * SESSION_S
SAMPLE = "the handler does not take the made-up records: give it some of yours with --sample FILE"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be proved, and how."""

    loaded: Loaded
    settings: RunSettings
    again: str
    seed: str
    kills: int = 20
    records: int = 10_000
    replicas: int = 3
    processes: bool = False
    samples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    """By source; under an empty name for all others."""
    real: Mapping[str, StreamInfo] = field(default_factory=dict)
    """The streams of the user's own hub."""
    fails: Sequence[str] = ()
    """Fail points that the first replicas have."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """For the replicas' environment."""


@dataclass
class Progress:
    """For who watches."""

    stage: str
    deeds: int
    deeds_all: int
    records: int
    records_all: int
    lag: int
    last: str


Tell = Callable[[Progress], object]


class Proof:
    def __init__(self, order: Order, place: Path, tell: Tell = lambda progress: None) -> None:
        self._order = order
        self._topology = order.loaded.topology
        self._plan = drawn(order.seed, order.kills, order.replicas, SESSION_S)
        self._scratch = Scratch(place, self._topology, order.settings)
        self._tell = tell
        self._progress = Progress("starting", 0, order.kills, 0, order.records, 0, "")
        self._began_s = time.monotonic()
        self._done = {"kill": 0, "stop": 0}

    def certificate(self) -> Certificate:
        with penstock.open(self._scratch.hub) as hub:
            notes = self._scratch.make_streams(hub, self._order.real)
            watch = Watch(hub, self._topology)
            load = self._load(hub)
            arguments = [self._order.loaded.reference]
            arguments += ["--processes"] if self._order.processes else []
            crew = Crew(self._scratch, arguments, STOPPED_S)
            try:
                caught_up = self._run(crew, watch, load)
                crew.end_all()
            finally:
                load.stop()
                crew.kill_all()
            if load.failure is not None:
                raise load.failure
            watch.look(time.monotonic())
            return self._judge(hub, watch, load, crew, caught_up, notes)

    # While it runs

    def _load(self, hub: Hub) -> Load:
        order = self._order
        streams = {name: hub.stream(name) for name in self._topology.sources}
        sources = {}
        for name, stream in streams.items():
            sample = order.samples.get(name, order.samples.get("", ()))
            sources[name] = made_up(name, find_codec(stream.info.codec), sample, order.seed)
        for_s = (self._plan[-1].at_s if self._plan else 0.0) + REST_S
        return Load(streams, sources, order.records, for_s)

    def _run(self, crew: Crew, watch: Watch, load: Load) -> bool:
        fails = dict(enumerate(self._order.fails))
        for slot in range(self._order.replicas):
            crew.start(slot, fails.get(slot, ""), dict(self._order.extra))
        if not self._until(crew, watch, load, watch.everything_begun, BEGIN_S_MAX):
            return False
        self._progress.stage = "disturbing"
        load.start()
        began_s = time.monotonic()
        for deed in self._plan:
            while time.monotonic() < began_s + deed.at_s:
                self._tick(crew, watch, load)
            if watch.stopped():
                break
            self._do(deed, crew, watch, load)
        load.hurry()
        self._progress.stage = "catching up"
        end_s = time.monotonic() + CATCH_UP_S_MAX
        while not (load.is_over and watch.lag == 0 and not _waits(crew)):
            now_s = time.monotonic()
            still_s = now_s - max(watch.moved_s, self._last_deed_s)
            if now_s > end_s or still_s > STILL_S_MAX or load.failure is not None:
                return False
            self._tick(crew, watch, load)
        return True

    _last_deed_s = 0.0

    def _do(self, deed: Deed, crew: Crew, watch: Watch, load: Load) -> None:
        def working() -> list[Life]:
            free = [life for life in crew.lives.values() if not _still(life)]
            return [life for life in free if watch.at_work(life.name)]

        least = min(2, self._order.replicas)
        self._until(crew, watch, load, lambda: len(working()) >= least, VICTIM_S_MAX)
        chosen = sorted(working(), key=lambda life: (life.slot - deed.slot) % self._order.replicas)
        if not chosen:
            return
        life = chosen[0]
        if deed.kind == "kill":
            crew.kill(life)
            self._progress.last = f"kill -9 {life.name}"
        else:
            crew.stop(life, deed.for_s)
            self._progress.last = f"SIGSTOP {life.name} for {deed.for_s:g} s"
        self._done[deed.kind] += 1
        self._progress.deeds += 1
        self._last_deed_s = time.monotonic() + deed.for_s

    def _until(
        self, crew: Crew, watch: Watch, load: Load, condition: Callable[[], bool], within_s: float
    ) -> bool:
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            self._tick(crew, watch, load)
        return True

    def _tick(self, crew: Crew, watch: Watch, load: Load) -> None:
        crew.tick()
        watch.look(time.monotonic())
        self._progress.records, self._progress.lag = load.total, watch.lag
        self._tell(self._progress)
        time.sleep(TICK_S)

    # When all is over

    def _judge(
        self,
        hub: Hub,
        watch: Watch,
        load: Load,
        crew: Crew,
        caught_up: bool,
        notes: list[str],
    ) -> Certificate:
        self._progress.stage = "comparing"
        self._tell(self._progress)
        order = self._order
        logs = {name: log_of(hub.stream(name)) for name in self._topology.streams}
        letters = {each.name: letters_of(hub, each) for each in self._topology.computations}
        made = self._references(self._topology.computations, 1)
        notes += [f"{name}: no reference: {each.failure}" for name, each in made.items()
                  if each.failure]  # fmt: skip
        stopped = watch.stopped()
        if stopped or any(each.stopped for each in made.values()):
            notes.append(SAMPLE)
        evidence = _Evidence(hub, watch, load, logs, letters, made)
        streams, state = self._lines(evidence), self._states(evidence)
        if doubted := self._doubted(streams, state):
            again = self._references(doubted, 2)
            for each in doubted:
                first, second = made[each.name], again[each.name]
                evidence.unsteady |= {
                    (each.name, name)
                    for name in each.outputs
                    if not same(first.outputs.get(name, {}), second.outputs.get(name, {}))
                }
                if first.state != second.state:
                    evidence.unsteady_state.add(each.name)
            streams, state = self._lines(evidence), self._states(evidence)
        return Certificate(
            seed=order.seed,
            again=order.again,
            records=load.total,
            replicas=order.replicas,
            kills=self._done["kill"],
            stops=self._done["stop"],
            seconds=round(time.monotonic() - self._began_s, 1),
            caught_up=caught_up,
            streams=streams,
            state=state,
            stopped=stopped + [
                replace(known, reason=f"undisturbed too: {known.reason}")
                for each in made.values()
                for known in each.stopped
                if known.record not in [one.record for one in stopped]
            ],
            ended=crew.ended,
            notes=notes,
        )  # fmt: skip

    def _references(
        self, computations: Sequence[Computation], attempt: int
    ) -> dict[str, Reference]:
        within_s = 60.0 + self._order.records / 200
        return references(
            self._scratch, self._order.loaded.reference, computations, within_s, attempt
        )

    def _source(self, name: str, log: Log, load: Load) -> Line:
        given, held = load.appended[name], size(log)
        judgement = Judgement(
            found=held,
            expected=given,
            lost=max(given - held, 0),
            doubled=max(held - given, 0),
            compared="count",
        )
        return line(name, "source", given, judgement)

    def _lines(self, told: _Evidence) -> list[Line]:
        topology = self._topology
        lines = [self._source(name, told.logs[name], told.load) for name in topology.sources]
        lines += [
            self._output(name, told) for name in topology.streams if name not in topology.sources
        ]
        return lines + [
            self._letters(each, told)
            for each in topology.computations
            if size(told.letters[each.name]) or size(told.made[each.name].letters)
        ]

    def _doubted(self, streams: Sequence[Line], state: Sequence[StateLine]) -> list[Computation]:
        """Those whose outputs or state are not as they should be: perhaps they never are."""
        wrong = {each.stream for each in streams if not each.clean}
        forgot = {each.computation for each in state if each.equal is False}
        return [
            each
            for each in self._topology.computations
            if each.name in forgot or wrong.intersection((*each.outputs, each.dead_letters))
        ]

    def _output(self, name: str, told: _Evidence) -> Line:
        writers = self._topology.writers(name)
        inputs = {stream: told.logs[stream] for each in writers for stream in each.inputs}
        case = Case(
            found=told.logs[name],
            expected={each.name: told.made[each.name].outputs.get(name, {}) for each in writers},
            inputs=inputs,
            batch=any(each.kind == "batch" for each in writers),
            steady=not any((each.name, name) in told.unsteady for each in writers),
        )
        read = sum(size(log) for log in inputs.values())
        gaps = told.watch.longest_gap_s(name), told.watch.longest_shard_gap_s(name)
        return line(name, "output", read, judged(case), *gaps)

    def _letters(self, each: Computation, told: _Evidence) -> Line:
        inputs = {stream: told.logs[stream] for stream in each.inputs}
        expected = {each.name: told.made[each.name].letters}
        case = Case(found=told.letters[each.name], expected=expected, inputs=inputs)
        read = sum(size(log) for log in inputs.values())
        return line(each.dead_letters, "dead letters", read, judged(case))

    def _states(self, told: _Evidence) -> list[StateLine]:
        found = []
        for each in self._topology.computations:
            made = told.made[each.name]
            stored = stored_state(told.hub, each.name, each.inputs)
            if stored or made.state:
                unsteady = each.kind == "batch" or each.name in told.unsteady_state
                found.append(state_line(each.name, stored, made, steady=not unsteady))
        return found


@dataclass
class _Evidence:
    """What there is to judge by."""

    hub: Hub
    watch: Watch
    load: Load
    logs: Mapping[str, Log]
    letters: Mapping[str, Log]
    made: Mapping[str, Reference]
    unsteady: set[tuple[str, str]] = field(default_factory=set)
    """Computations and outputs of theirs that are made differently each time."""
    unsteady_state: set[str] = field(default_factory=set)


def state_line(computation: str, stored: State, made: Reference, *, steady: bool) -> StateLine:
    """What is remembered against what should be."""
    equal: bool | None = stored == made.state
    notes = []
    if made.failure:
        equal = None
    elif not equal and not steady:
        equal = None
        notes.append("it is another one each time, undisturbed too, or depends on batches")
    elif not equal:
        shards = [s for s in sorted({*stored, *made.state}) if stored.get(s) != made.state.get(s)]
        notes.append(f"other than undisturbed at {', '.join(map(str, shards))}")
    entries = sum(map(len, stored.values()))
    return StateLine(computation=computation, entries=entries, equal=equal, notes=notes)


def _still(life: Life) -> bool:
    return life.resume_s is not None or life.stands_still()


def _waits(crew: Crew) -> bool:
    """Whether somebody is still stopped: it may yet do something wrong."""
    return any(_still(life) for life in crew.lives.values())
