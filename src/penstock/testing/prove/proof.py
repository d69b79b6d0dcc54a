"""One proof: replicas, load, deeds, rest, and the certificate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import penstock
from penstock.codec.registry import find_codec
from penstock.core.computation import Computation
from penstock.core.model import StreamInfo
from penstock.runtime.hub import Hub
from penstock.runtime.loading import Loaded
from penstock.runtime.settings import RunSettings
from penstock.testing.prove.certificate import Certificate
from penstock.testing.prove.crew import Crew, Life
from penstock.testing.prove.hearing import Hearing, heard
from penstock.testing.prove.load import Load
from penstock.testing.prove.plan import Deed, drawn
from penstock.testing.prove.reference import Reference, references
from penstock.testing.prove.sample import Example, made_up
from penstock.testing.prove.scratch import SESSION_S, Scratch
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
REFERENCE_S = 60.0
RECORDS_PER_S_MIN = 200
"""A reference that is slower than this is given up."""
STOPPED_S = 20 * SESSION_S
"""At the latest one that a fail point has stopped goes on: it may hold a lock."""
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
            arguments = [self._order.loaded.reference, "--engine", "local"]
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
            hearing = self._judge(hub, watch, load)
        return self._written(hearing, load, crew, caught_up, notes)

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

        def begun_or_broken() -> bool:
            return watch.everything_begun() or len(crew.ended) >= self._order.replicas

        self._until(crew, watch, load, begun_or_broken, BEGIN_S_MAX)
        if not watch.everything_begun():
            return False
        self._progress.stage = "disturbing"
        load.start()
        began_s = time.monotonic()
        for done, deed in enumerate(self._plan, 1):
            load.allow(done / len(self._plan))
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
            if load.is_over and watch.lag == 0:
                crew.wake_zombies()  # others have done their work: what they commit comes twice
            self._tick(crew, watch, load)
        return True

    _last_deed_s = 0.0

    def _do(self, deed: Deed, crew: Crew, watch: Watch, load: Load) -> None:
        def working() -> list[Life]:
            free = [life for life in crew.lives.values() if not _still(life)]
            return [life for life in free if watch.at_work(life.name)]

        least = min(2, self._order.replicas)
        if not self._until(crew, watch, load, lambda: len(working()) >= least, VICTIM_S_MAX):
            self._until(crew, watch, load, lambda: bool(working()), BEGIN_S_MAX)
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

    def _judge(self, hub: Hub, watch: Watch, load: Load) -> Hearing:
        self._progress.stage = "comparing"
        self._tell(self._progress)
        within_s = REFERENCE_S + self._order.records / RECORDS_PER_S_MIN
        reference = self._order.loaded.reference

        def undisturbed(each: Sequence[Computation], attempt: int) -> dict[str, Reference]:
            return references(self._scratch, reference, each, within_s, attempt)

        return heard(hub, self._topology, watch, load.appended, undisturbed)

    def _written(
        self, hearing: Hearing, load: Load, crew: Crew, caught_up: bool, notes: list[str]
    ) -> Certificate:
        order = self._order
        done = sum(self._done.values())
        if done < order.kills:
            notes.append(f"only {done} of {order.kills} disturbances: nobody was at work")
        if not caught_up:
            notes.append("what was still to be done counts as lost")
        if hearing.stopped:
            notes.append(SAMPLE)
        return Certificate(
            seed=order.seed,
            again=order.again,
            records=load.total,
            replicas=order.replicas,
            kills=self._done["kill"],
            stops=self._done["stop"],
            seconds=round(time.monotonic() - self._began_s, 1),
            caught_up=caught_up,
            streams=hearing.streams,
            state=hearing.state,
            stopped=hearing.stopped,
            ended=crew.ended,
            failures=hearing.failures,
            notes=notes,
        )


def _still(life: Life) -> bool:
    return life.resume_s is not None or life.stands_still()


def _waits(crew: Crew) -> bool:
    """Whether somebody is still stopped: it may yet do something wrong."""
    return any(_still(life) for life in crew.lives.values())
