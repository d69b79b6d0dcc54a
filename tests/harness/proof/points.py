"""Kills a replica at each fail point of lanes and replicas, while records go through three stages
with state. Nothing may be lost, doubled or out of order.

There is no reference run: the expected outputs follow from the input.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import headrace
from headrace.codec.registry import find_codec
from headrace.core.computations.settings import RunSettings
from headrace.core.model import Record
from headrace.hub.hub import Hub
from headrace.process.failpoints import POINTS
from headrace.streams.stream import Stream
from headrace.tools.proof import stages
from headrace.tools.proof.evidence import Found, origins_of, size
from headrace.tools.proof.judge import Case, Judgement, judged
from headrace.tools.proof.load import Load
from headrace.tools.proof.progress import ProgressWatch
from headrace.tools.proof.replicas import ReplicaProcess, Replicas
from headrace.tools.proof.sample import made_up
from headrace.tools.proof.scratch import Scratch
from headrace.tools.proof.state import stored_state

HURT = tuple(name for name in POINTS if name.startswith(("lane.", "replica.")))
AT = {"lane": 8, "replica": 2}
"""At which passage of the point: not the first, so that other work has begun too."""
BEGINS = ("replica.before-begin", "replica.after-begin")
RELEASES = ("replica.before-release", "replica.after-release")
LOAD_S = 0.5
"""In how much time the records of one point come."""
TRIES = 5
TAKEN_S_MAX = 8.0
WITHIN_S = 60.0
CATCH_UP_S = 600.0
BACKLOG = 50_000
"""While more records than this are on their way, more replicas are killed at the same point."""
TICK_S = 0.05
STEADY, VICTIM, THIRD = 0, 1, 2
PLACE = "headrace.tools.proof.stages:topology"


class PointsVerdict(NamedTuple):
    """The verdict on one run over several points."""

    died: list[str]
    """The points at which a replica was killed, or stopped."""
    deaths: int
    """How many replicas were killed or stopped."""
    records: int
    streams: dict[str, Judgement]
    state: dict[str, bool]
    """Whether the state of each computation equals a fold over the input."""
    ended: list[str]
    """Replicas that ended by themselves."""
    seconds: float

    @property
    def clean(self) -> bool:
        fine = all(each.clean and not each.different for each in self.streams.values())
        return fine and all(self.state.values()) and not self.ended


def kill_at_points(
    place: Path,
    points: Sequence[str],
    records: int,
    *,
    seed: str,
    action: str = "kill",
    tell: Callable[[str], object] = lambda line: None,
    extra: dict[str, str] | None = None,
) -> PointsVerdict:
    """Kill one replica after the other, each at one of the points while ``records`` records
    come."""
    began_s = time.monotonic()
    # With one lane, a stopped replica hardly ever holds the write lock.
    settings = RunSettings(lanes=1) if action == "stop" else RunSettings()
    scratch = Scratch(place, stages.topology, settings)
    with headrace.open(scratch.hub) as hub:
        scratch.make_streams(hub, {})
        replicas = Replicas(scratch, [PLACE, "--engine", "local"], CATCH_UP_S, restarting=False)
        run = _PointsRun(hub, replicas, seed, records, action, extra or {})
        with _ending(replicas):
            run.start()
            for point in points:
                tell(f"{time.monotonic() - began_s:6.1f} s  {point}:{action}")
                run.hurt(point)
            run.catch_up()
            replicas.end_all()
        total = run.appended
        judgements = judgements_of(hub)
        ended = [f"{name} ({code}): {said}" for name, code, said in replicas.ended]
        state = state_of(hub)
        seconds = time.monotonic() - began_s
        return PointsVerdict(run.died, run.deaths, total, judgements, state, ended, seconds)


@contextmanager
def _ending(replicas: Replicas) -> Iterator[None]:
    try:
        yield
    finally:
        replicas.kill_all()


class _PointsRun:
    def __init__(
        self,
        hub: Hub,
        replicas: Replicas,
        seed: str,
        records: int,
        action: str,
        extra: dict[str, str],
    ) -> None:
        self.died: list[str] = []
        self.deaths = 0
        self.appended = 0
        self._hub = hub
        self._replicas = replicas
        self._seed = seed
        self._records = records
        self._action = action
        self._extra = extra
        self._watch = ProgressWatch(hub, stages.topology)
        self._loads = 0

    def start(self) -> None:
        self._replicas.start(STEADY, extra=self._extra)
        self._until(self._watch.everything_begun, "work begins")

    def hurt(self, point: str) -> None:
        """Kill a replica at the point while records come, and more replicas while many records are
        on their way."""
        for _ in range(TRIES):
            hurt = self._hurt(point, self._load())
            self.deaths += hurt
            if hurt:
                self.died.append(point)
                break
        while self._watch.lag > BACKLOG:
            self.deaths += self._hurt(point, None)

    def _hurt(self, point: str, load: Load | None) -> bool:
        """Whether a replica was killed at the point; or stopped there until others had done its
        work."""
        replicas, watch = self._replicas, self._watch
        at = 1 if point in RELEASES else AT[point.partition(".")[0]]
        victim = replicas.start(VICTIM, f"{point}:{self._action}@{at}", self._extra)
        if point not in BEGINS:
            self._until(
                lambda: watch.at_work(victim.name) or _is_hurt(victim), f"{victim.name} works"
            )
        if load is not None:
            load.start()
        try:
            if point in RELEASES:
                replicas.start(
                    THIRD, extra=self._extra
                )  # the victim has to give up some of its shards
            self._until(
                lambda: _is_hurt(victim) or (load is None and not watch.lag),
                f"{victim.name} is hurt at {point}",
            )
            hurt = victim.code == -signal.SIGKILL
            if self._action == "stop":
                # Others must have done its work: only then a commit of it would come twice. They
                # cannot if it was stopped with the write lock.
                done = self._within(lambda: _is_over(load) and watch.lag == 0, TAKEN_S_MAX)
                hurt = done and victim.stands_still()
                replicas.resume(victim)
            self._until(lambda: _is_over(load), "all is appended")
        finally:
            if load is not None:
                load.stop()
                self.appended += load.total
        for slot in (VICTIM, THIRD):
            if slot in replicas.running:
                replicas.end(replicas.running[slot])
        return hurt

    def catch_up(self) -> None:
        self._until(lambda: self._watch.lag == 0, "caught up", CATCH_UP_S)

    def _load(self) -> Load:
        self._loads += 1
        stream = self._hub.stream(stages.ORDERS)
        seed = f"{self._seed} {self._loads}"
        source = made_up(stream.name, find_codec(stream.info.codec), (), seed)
        return Load(
            {stream.name: stream},
            {stream.name: source},
            self._records,
            LOAD_S,
            producer=f"load-{self._loads}",
        )

    def _until(self, condition: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
        if not self._within(condition, within_s):
            raise AssertionError(
                f"not within {within_s:g} s: {what}; lag {self._watch.lag}, "
                f"{self._watch.stopped()}, {self._replicas.ended}"
            )

    def _within(self, condition: Callable[[], bool], within_s: float) -> bool:
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                return False
            self._replicas.tick()
            self._watch.look(time.monotonic())
            time.sleep(TICK_S)
        return True


def _is_over(load: Load | None) -> bool:
    return load is None or load.is_over


def _is_hurt(replica: ReplicaProcess) -> bool:
    return replica.code is not None or replica.stands_still()


# The expected outputs


def judgements_of(hub: Hub) -> dict[str, Judgement]:
    """The judgement of every stream but the source. Keys stay in their shards all the way, so each
    shard can be judged by itself."""
    found: dict[str, Judgement] = {}
    for shard in hub.stream(stages.ORDERS).info.shards:
        before = origins_of(hub.stream(stages.ORDERS), shard.index)
        source = range(size(before))
        for steps, (above, name) in enumerate(pairwise(stages.STREAMS), 1):
            steps_made = "/0" * steps
            log = origins_of(hub.stream(name), shard.index)
            made = [
                Found(f"{stages.ORDERS}:{shard.index}+{offset}{steps_made}", b"")
                for offset in source
            ]
            case = Case(found=log, expected={"": {0: made}}, inputs={above: before})
            one = judged(case)
            found[name] = one if name not in found else _both(found[name], one)
            before = log
    return found


def _both(one: Judgement, other: Judgement) -> Judgement:
    return Judgement(
        found=one.found + other.found,
        expected=one.expected + other.expected,
        lost=(one.lost or 0) + (other.lost or 0),
        doubled=(one.doubled or 0) + (other.doubled or 0),
        out_of_order=(one.out_of_order or 0) + (other.out_of_order or 0),
        unexpected=one.unexpected + other.unexpected,
        notes=[*one.notes, *other.notes],
        examples=[*one.examples, *other.examples],
    )


def state_of(hub: Hub) -> dict[str, bool]:
    """Whether the state of each computation equals a fold over the source."""
    source = hub.stream(stages.ORDERS)
    expected: dict[str, stages.Fold] = {}
    for record in _all(source):
        before = expected.get(record.key or "", [0, 0, 0])
        value = record.value
        expected[record.key or ""] = stages.folded(before, value["amount"], value["id"])
    found = {}
    for each in stages.topology.computations:
        stored = stored_state(hub, each.name, each.inputs)
        entries = [entry for shard in stored.values() for entry in shard.items()]
        found[each.name] = len(entries) == len(expected) and dict(entries) == expected
    return found


def _all(stream: Stream) -> Iterator[Record]:
    for shard in stream.info.shards:
        yield from stream.read(shard.index)
