"""The scene of the demonstration: who holds which shards, rates, lag, and the story so far."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

from headrace.core.computations.dispatch import Duty
from headrace.core.model import ShardId
from headrace.ops.ranges import shown_shards
from headrace.tools.demo.narrator import Held, Narrator, StoryLine
from headrace.tools.proof.proof import ProofProgress

RATE_S = 1.0
"""The shortest time over which a rate is measured."""

ReplicaState = Literal["starting", "waiting", "at work", "stopped", "killed", "ended"]

STAGES = {
    "starting": "the replicas start",
    "disturbing": "all replicas are there, and records come",
    "catching up": "nothing more is done to them; records still come",
    "ending": "nothing is left to do: all replicas are told to end",
    "comparing": "each stage works once more, undisturbed; what came out is compared with that",
}


@dataclass(frozen=True)
class ReplicaRow:
    name: str
    state: ReplicaState
    shards: dict[str, str]
    """The shards that the replica holds, as ranges, by computation."""
    records_per_s: float


@dataclass(frozen=True)
class StageRow:
    computation: str
    records_per_s: float
    lag: int


@dataclass(frozen=True)
class Scene:
    at_s: float
    stage: str
    records: int
    records_all: int
    replicas: list[ReplicaRow]
    stages: list[StageRow]
    story: list[StoryLine]

    @classmethod
    def empty(cls, records: int) -> Scene:
        return cls(0.0, "starting", 0, records, [], [], [])

    def with_story(self, story: list[StoryLine]) -> Scene:
        return replace(self, story=story)


class SceneMaker:
    """Makes a scene of the progress of a proof, each time it is asked."""

    def __init__(self, computations: list[str]) -> None:
        self._computations = computations
        self._began_s = time.monotonic()
        self._stage = ""
        self._story = Narrator()
        self._next: dict[Duty, int] = {}
        self._looked_s = self._began_s
        self._rates: defaultdict[str, float] = defaultdict(float)
        """Records per second, by replica and by computation."""

    def look(self, progress: ProofProgress, now_s: float) -> Scene:
        held = self._held(progress)
        self._measure(progress, held, now_s)
        running = {replica.name: replica for replica in progress.replicas.running.values()}
        stopped = [name for name, replica in running.items() if replica.resume_s is not None]
        self._story.look(now_s, held, stopped, progress.did)
        if progress.stage != self._stage:
            self._stage = progress.stage
            if self._stage in STAGES:
                self._story.say(now_s, STAGES[self._stage])
        return Scene(
            now_s - self._began_s,
            progress.stage,
            progress.records,
            progress.records_all,
            [self._replica(name, progress, held) for name in progress.replicas.names],
            [
                StageRow(name, self._rates[name], progress.watch.lag_of(name))
                for name in self._computations
            ],
            [event._replace(at_s=event.at_s - self._began_s) for event in self._story.events],
        )

    def _held(self, progress: ProofProgress) -> Held:
        found: dict[str, set[Duty]] = {name: set() for name in progress.replicas.names}
        for computation, group in progress.watch.groups.items():
            for owner, shards in group.by_owner.items():
                found.setdefault(owner, set()).update(Duty(computation, s) for s in shards)
        return {name: frozenset(duties) for name, duties in found.items()}

    def _measure(self, progress: ProofProgress, held: Held, now_s: float) -> None:
        """Measure rates. Progress of a shard counts for the replica that holds it now."""
        since_s = now_s - self._looked_s
        if since_s < RATE_S:
            return
        owners = {duty: name for name, duties in held.items() for duty in duties}
        self._rates = defaultdict(float)
        for computation, positions in progress.watch.positions.items():
            for shard, position in positions.items():
                duty = Duty(computation, shard)
                rate = (position.next - self._next.get(duty, position.next)) / since_s
                self._rates[computation] += rate
                self._rates[owners.get(duty, "")] += rate
                self._next[duty] = position.next
        self._looked_s = now_s

    def _replica(self, name: str, progress: ProofProgress, held: Held) -> ReplicaRow:
        shards: dict[str, list[ShardId]] = {each: [] for each in self._computations}
        for computation, shard in sorted(held[name]):
            shards[computation].append(shard)
        shown = {each: shown_shards(mine).rpartition(":")[2] for each, mine in shards.items()}
        return ReplicaRow(name, _state(name, progress, held), shown, self._rates[name])


def _state(name: str, progress: ProofProgress, held: Held) -> ReplicaState:
    replica = next((one for one in progress.replicas.running.values() if one.name == name), None)
    if replica is None:
        killed = any(did.kind == "kill" and did.name == name for did in progress.did)
        return "killed" if killed else "ended"
    if replica.resume_s is not None:
        return "stopped"
    if held[name]:
        return "at work"
    return "waiting" if progress.watch.is_member(name) else "starting"
