"""Runs one proof: replicas, load, deeds, catching up, and the certificate."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.codec.registry import find_codec
from headrace.core.computations.computation import Computation
from headrace.core.computations.settings import RunSettings
from headrace.core.model import StreamInfo
from headrace.hub.hub import Hub
from headrace.lanes.loading import Loaded
from headrace.tools.proof.certificate import Certificate
from headrace.tools.proof.collect import CollectedEvidence, collect_evidence
from headrace.tools.proof.engine_choice import LOCAL, EngineChoice
from headrace.tools.proof.load import Load
from headrace.tools.proof.plan import Deed, DeedKind, drawn
from headrace.tools.proof.progress import ProgressWatch
from headrace.tools.proof.reference import Reference, references
from headrace.tools.proof.replicas import ReplicaProcess, Replicas
from headrace.tools.proof.sample import Example, made_up
from headrace.tools.proof.scratch import Scratch

CATCH_UP_S_MAX = 900.0
REST_S = 1.0
"""How long the load goes on after the last deed."""
REFERENCE_S = 60.0
RECORDS_PER_S_MIN = 200
"""A reference that is slower is given up."""
STOP_TRIES = 10
WRITTEN_S_MAX = 1.0
"""If no append succeeds for this long, the stopped replica holds the write lock."""
STOPPED_SESSIONS = 20
"""After this many sessions a replica stopped by a fail point goes on: it may hold a lock."""
SAMPLE = "the handler refuses the generated records: give it records of yours with --sample FILE"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is proved, and how."""

    loaded: Loaded
    settings: RunSettings
    again: str
    seed: str
    kills: int = 20
    records: int = 10_000
    replicas: int = 3
    engine: EngineChoice = LOCAL
    script: Sequence[Deed] | None = None
    """Deeds that replace the plan drawn from the seed. A killed replica is not started again
    then."""
    rest_s: float = REST_S
    samples: Mapping[str, Sequence[Example]] = field(default_factory=dict)
    """Sample records by source; those under the empty name are for all other sources."""
    real: Mapping[str, StreamInfo] = field(default_factory=dict)
    """The streams of the user's own hub."""
    fails: Sequence[str] = ()
    """Fail points of the first replicas, in their order."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the replicas."""


class DoneDeed(NamedTuple):
    """A deed that was done, and to which replica."""

    at_s: float
    """The time of the monotonic clock."""
    kind: DeedKind
    name: str
    """The name of the replica."""
    for_s: float

    def __str__(self) -> str:
        if self.kind == "stop":
            return f"SIGSTOP {self.name} for {self.for_s:g} s"
        return f"kill -9 {self.name}" if self.kind == "kill" else f"start {self.name}"


@dataclass
class ProofProgress:
    """How far a proof is, for the command that shows it."""

    stage: str
    deeds_all: int
    records: int
    records_all: int
    lag: int
    replicas: Replicas
    watch: ProgressWatch
    did: list[DoneDeed] = field(default_factory=list)

    @property
    def deeds(self) -> int:
        return len(self.did)

    @property
    def last(self) -> str:
        return str(self.did[-1]) if self.did else ""


Tell = Callable[[ProofProgress], object]


class ProofRun:
    def __init__(self, order: Order, place: Path, tell: Tell = lambda progress: None) -> None:
        self._order = order
        self._engine = order.engine
        self._topology = order.loaded.topology
        session_s = order.engine.session_s
        if order.script is None:
            self._plan = drawn(order.seed, order.kills, order.replicas, session_s)
        else:
            self._plan = list(order.script)
        self._scratch = Scratch(place, self._topology, order.settings, session_s)
        self._tell = tell
        self._began_s = time.monotonic()

    def certificate(self) -> Certificate:
        with headrace.open(self._scratch.hub) as hub:
            notes = self._scratch.make_streams(hub, self._order.real)
            watch = ProgressWatch(hub, self._topology)
            load = self._load(hub)
            replicas = Replicas(
                self._scratch,
                [self._order.loaded.reference, *self._engine.options],
                STOPPED_SESSIONS * self._engine.session_s,
                restarting=self._order.script is None,
            )
            self._progress = ProofProgress(
                "starting", len(self._plan), 0, self._order.records, 0, replicas, watch
            )
            try:
                caught_up = self._run(replicas, watch, load)
                self._progress.stage = "ending"
                self._tell(self._progress)
                replicas.end_all()
                if left := replicas.left_behind():
                    notes.append(f"{len(left)} processes of killed replicas did not end")
            finally:
                replicas.kill_all()
                load.stop()
            if load.failure is not None:
                raise load.failure
            watch.look(time.monotonic())
            collected = self._judge(hub, watch, load)
        return self._written(collected, load, replicas, caught_up, notes)

    # While it runs

    def _load(self, hub: Hub) -> Load:
        order = self._order
        streams = {name: hub.stream(name) for name in self._topology.sources}
        sources = {}
        for name, stream in streams.items():
            sample = order.samples.get(name, order.samples.get("", ()))
            sources[name] = made_up(name, find_codec(stream.info.codec), sample, order.seed)
        for_s = (self._plan[-1].at_s if self._plan else 0.0) + order.rest_s
        return Load(streams, sources, order.records, for_s)

    def _run(self, replicas: Replicas, watch: ProgressWatch, load: Load) -> bool:
        fails = dict(enumerate(self._order.fails))
        for slot in range(self._order.replicas):
            replicas.start(slot, fails.get(slot, ""), dict(self._order.extra))

        def begun_or_broken() -> bool:
            there = all(watch.is_member(replica.name) for replica in replicas.running.values())
            begun = there and watch.everything_begun()
            return begun or len(replicas.ended) >= self._order.replicas

        self._until(replicas, watch, load, begun_or_broken, self._engine.begin_s_max)
        if not watch.everything_begun():
            return False
        self._progress.stage = "disturbing"
        has_script = self._order.script is not None
        load.start()
        began_s = time.monotonic()
        for done, deed in enumerate(self._plan, 1):
            load.allow(done / (len(self._plan) + has_script))
            while time.monotonic() < began_s + deed.at_s:
                self._tick(replicas, watch, load)
            if watch.stopped():
                break
            self._do(deed, replicas, watch, load)
        if has_script:
            load.allow(1.0)  # the last part comes after all deeds, as slowly as before
        else:
            load.hurry()
        self._progress.stage = "catching up"
        end_s = time.monotonic() + CATCH_UP_S_MAX
        while not (load.is_over and watch.lag == 0 and not _waits(replicas)):
            now_s = time.monotonic()
            still_s = now_s - max(watch.moved_s, self._last_deed_s)
            if now_s > end_s or still_s > self._engine.still_s_max or load.failure is not None:
                return False
            if load.is_over and watch.lag == 0:
                replicas.wake_zombies()  # others did their work: a commit of theirs would double it
            self._tick(replicas, watch, load)
        return True

    _last_deed_s = 0.0

    def _do(self, deed: Deed, replicas: Replicas, watch: ProgressWatch, load: Load) -> None:
        replica = (
            self._added(deed, replicas)
            if deed.kind == "start"
            else self._victim(deed, replicas, load)
        )
        if replica is None:
            return
        if deed.kind == "kill":
            replicas.kill(replica)
        elif deed.kind == "stop":
            self._stop(replica, deed, replicas, load)
        now_s = time.monotonic()
        self._progress.did.append(DoneDeed(now_s, deed.kind, replica.name, deed.for_s))
        self._last_deed_s = now_s + deed.for_s
        if deed.kind == "start":
            is_there = partial(watch.at_work, replica.name)
            self._until(replicas, watch, load, is_there, self._engine.begin_s_max)
            self._last_deed_s = time.monotonic()

    def _stop(self, replica: ReplicaProcess, deed: Deed, replicas: Replicas, load: Load) -> None:
        watch = self._progress.watch
        for _ in range(STOP_TRIES):
            before = load.total
            replicas.stop(replica, deed.for_s)

            def is_written(before: int = before) -> bool:
                return load.total > before or load.is_held or load.is_over

            if deed.locked or self._until(replicas, watch, load, is_written, WRITTEN_S_MAX):
                return
            replicas.resume(replica)
            self._until(replicas, watch, load, is_written, self._engine.still_s_max)

    def _added(self, deed: Deed, replicas: Replicas) -> ReplicaProcess:
        return replicas.start(deed.slot, extra=dict(self._order.extra))

    def _victim(self, deed: Deed, replicas: Replicas, load: Load) -> ReplicaProcess | None:
        """A replica that works, if possible while another one works too."""
        watch, engine = self._progress.watch, self._engine

        def working() -> list[ReplicaProcess]:
            free = [replica for replica in replicas.running.values() if not _still(replica)]
            return [replica for replica in free if watch.at_work(replica.name)]

        least = min(2, self._order.replicas)
        if not self._until(
            replicas, watch, load, lambda: len(working()) >= least, engine.victim_s_max
        ):
            self._until(replicas, watch, load, lambda: bool(working()), engine.begin_s_max)
        chosen = sorted(
            working(), key=lambda replica: (replica.slot - deed.slot) % self._order.replicas
        )
        return chosen[0] if chosen else None

    def _until(
        self,
        replicas: Replicas,
        watch: ProgressWatch,
        load: Load,
        condition: Callable[[], bool],
        within_s: float,
    ) -> bool:
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            self._tick(replicas, watch, load)
        return True

    def _tick(self, replicas: Replicas, watch: ProgressWatch, load: Load) -> None:
        replicas.tick()
        watch.look(time.monotonic())
        self._progress.records, self._progress.lag = load.total, watch.lag
        self._tell(self._progress)
        time.sleep(self._engine.tick_s)

    # Afterwards

    def _judge(self, hub: Hub, watch: ProgressWatch, load: Load) -> CollectedEvidence:
        self._progress.stage = "comparing"
        self._tell(self._progress)
        within_s = REFERENCE_S + self._order.records / RECORDS_PER_S_MIN
        reference = self._order.loaded.reference

        def undisturbed(each: Sequence[Computation], attempt: int) -> dict[str, Reference]:
            return references(self._scratch, reference, each, within_s, attempt)

        return collect_evidence(hub, self._topology, watch, load.appended, undisturbed)

    def _written(
        self,
        collected: CollectedEvidence,
        load: Load,
        replicas: Replicas,
        caught_up: bool,
        notes: list[str],
    ) -> Certificate:
        order = self._order
        done = Counter(did.kind for did in self._progress.did)
        if done.total() < len(self._plan):
            notes.append(
                f"only {done.total()} of {len(self._plan)} disturbances: no replica was at work"
            )
        if not caught_up:
            notes.append("what was still to be done counts as lost")
        if collected.stopped:
            notes.append(SAMPLE)
        return Certificate(
            seed=order.seed,
            again=order.again,
            records=load.total,
            replicas=order.replicas + done["start"],
            kills=done["kill"],
            stops=done["stop"],
            seconds=round(time.monotonic() - self._began_s, 1),
            caught_up=caught_up,
            streams=collected.streams,
            state=collected.state,
            stopped=collected.stopped,
            ended=replicas.ended,
            failures=collected.failures,
            notes=notes,
        )


def _still(replica: ReplicaProcess) -> bool:
    return replica.resume_s is not None or replica.stands_still()


def _waits(replicas: Replicas) -> bool:
    """Whether a replica is still stopped: it may yet do something wrong."""
    return any(_still(replica) for replica in replicas.running.values())
