"""Crash anywhere: for each fail point of lanes and replicas one replica is killed right there while
records go through three stages with state, and nothing may come of it.

Here nothing is compared with a reference: what must come out follows from what went in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import penstock
from penstock.codec.registry import find_codec
from penstock.core.model import Record
from penstock.failpoints import POINTS
from penstock.run.hub import Hub
from penstock.run.settings import RunSettings
from penstock.run.stream import Stream
from penstock.testing.prove import stages
from penstock.testing.prove.crew import Crew
from penstock.testing.prove.evidence import Found, log_of
from penstock.testing.prove.judging import Case, Judgement, judged
from penstock.testing.prove.load import Load
from penstock.testing.prove.sample import made_up
from penstock.testing.prove.scratch import SESSION_S, Scratch
from penstock.testing.prove.state import stored_state
from penstock.testing.prove.watch import Watch

HURT = tuple(name for name in POINTS if name.startswith(("lane.", "replica.")))
AT = {"lane": 8, "replica": 2}
"""At which passage: not the first, so that others have begun too."""
RELEASES = ("replica.before-release", "replica.after-release")
LOAD_S = 0.5
"""The records of one point come in so much time."""
WITHIN_S = 60.0
CATCH_UP_S = 600.0
TICK_S = 0.02
STEADY, VICTIM, THIRD = 0, 1, 2
PLACE = "penstock.testing.prove.stages:topology"


class Verdict(NamedTuple):
    """Of one run over several points."""

    died: list[str]
    """The points where a replica was really killed."""
    records: int
    streams: dict[str, Judgement]
    state: dict[str, bool]
    """Whether it is what a fold over the input makes."""
    ended: list[str]
    """Replicas that ended without having been told to."""
    seconds: float

    @property
    def clean(self) -> bool:
        fine = all(each.clean and not each.different for each in self.streams.values())
        return fine and all(self.state.values()) and not self.ended


def verdict(
    place: Path,
    points: Sequence[str],
    records: int,
    *,
    seed: str,
    action: str = "kill",
    tell: Callable[[str], object] = lambda line: None,
    extra: dict[str, str] | None = None,
) -> Verdict:
    """Kill one replica after the other, each at one of the points while so many records come."""
    began_s = time.monotonic()
    scratch = Scratch(place, stages.topology, RunSettings())
    with penstock.open(scratch.hub) as hub:
        scratch.make_streams(hub, {})
        crew = Crew(scratch, [PLACE], 3 * SESSION_S)
        run = _Run(hub, crew, seed, records, action, extra or {})
        with _ending(crew):
            run.start()
            for point in points:
                tell(f"{time.monotonic() - began_s:6.1f} s  {point}:{action}")
                run.hurt(point)
            run.catch_up()
            crew.end_all()
        total = run.appended
        judgements = judgements_of(hub)
        ended = [f"{name} ({code}): {said}" for name, code, said in crew.ended]
        return Verdict(
            run.died, total, judgements, state_of(hub), ended, time.monotonic() - began_s
        )


@contextmanager
def _ending(crew: Crew) -> Iterator[None]:
    try:
        yield
    finally:
        crew.kill_all()


class _Run:
    def __init__(
        self, hub: Hub, crew: Crew, seed: str, records: int, action: str, extra: dict[str, str]
    ) -> None:
        self.died: list[str] = []
        self.appended = 0
        self._hub = hub
        self._crew = crew
        self._seed = seed
        self._records = records
        self._action = action
        self._extra = extra
        self._watch = Watch(hub, stages.topology)
        self._loads = 0

    def start(self) -> None:
        self._crew.start(STEADY, extra=self._extra)
        self._until(self._watch.everything_begun, "work begins")

    def hurt(self, point: str) -> None:
        crew, watch = self._crew, self._watch
        at = AT[point.partition(".")[0]]
        fail = f"{point}:{self._action}@{1 if point in RELEASES else at}"
        load = self._load()
        load.start()
        try:
            victim = crew.start(VICTIM, fail, self._extra)
            if point in RELEASES:
                self._until(lambda: watch.at_work(victim.name), "it works")
                crew.start(THIRD, extra=self._extra)  # it has to give some of its shards up
            if self._action == "kill":
                self._until(lambda: victim.code is not None, f"{victim.name} dies at {point}")
                self.died += [point] if victim.code == -9 else []
            else:
                self._until(victim.stands_still, f"{victim.name} is stopped at {point}")
                self.died.append(point)
                self._until(lambda: not watch.at_work(victim.name), "others have its shards")
                crew.resume(victim)
            self._until(lambda: load.is_over, "all is appended")
        finally:
            load.stop()
        self.appended += load.total
        for slot in (VICTIM, THIRD):
            if slot in crew.lives:
                crew.end(crew.lives[slot])

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
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                raise AssertionError(
                    f"not within {within_s:g} s: {what}; lag {self._watch.lag}, "
                    f"{self._watch.stopped()}, {self._crew.ended}"
                )
            self._crew.tick()
            self._watch.look(time.monotonic())
            time.sleep(TICK_S)


# What must have come out


def judgements_of(hub: Hub) -> dict[str, Judgement]:
    """Of every stream but the source."""
    logs = {name: log_of(hub.stream(name), blind=True) for name in stages.STREAMS}
    found = {}
    origins = {
        (shard, offset): f"{stages.ORDERS}:{shard}+{offset}"
        for shard, rows in logs[stages.ORDERS].items()
        for offset in range(len(rows))
    }
    for steps, name in enumerate(stages.STREAMS[1:], 1):
        expected = {
            0: [Found(origin + "/0" * steps, b"") for origin in origins.values()],
        }
        before = stages.STREAMS[steps - 1]
        found[name] = judged(
            Case(found=logs[name], expected={"": expected}, inputs={before: logs[before]})
        )
    return found


def state_of(hub: Hub) -> dict[str, bool]:
    """Whether each computation remembers what a fold over the source makes."""
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
