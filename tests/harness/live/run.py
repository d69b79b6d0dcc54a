"""One live run: processes, faults, rest, and the verdict on the evidence."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import headrace
from headrace.core.errors import UnknownGroup
from headrace.testing.children import dice
from tests.harness.live.checker import LiveVerdict, bound_s, judged
from tests.harness.live.disk import Disk, small_disk
from tests.harness.live.evidence import Evidence, lines_of
from tests.harness.live.history import History
from tests.harness.live.load import GROUP, SHARDS, STREAM, name_of
from tests.harness.live.nemesis import Impatience, LiveChaos, Nemesis, Zombies
from tests.harness.live.processes import LiveProcesses, Settings

MEMBERS = ("m1", "m2", "m3", "m4")
PRODUCERS = ("p1", "p2")
SESSION_S = 1.0
HEARTBEAT_S = 0.25
TICK_S = 0.01
START_S_MAX = 60.0
REST_HEARTBEATS = 10
DISK_BYTES = 24 * 2**20
DISK_BYTES_PER_S = 2**20

Plan = Literal["chaos", "zombies", "impatience"]
SABOTAGE = {"fencing": "member", "early-ack": "producer"}


class LiveRun:
    def __init__(
        self, place: Path, seed: str, seconds: float, *, plan: Plan = "chaos", sabotage: str = ""
    ) -> None:
        self.evidence = place / "evidence"
        self.evidence.mkdir()
        self._place = place
        self._seed = seed
        self._seconds = seconds
        self._plan = plan
        self._sabotage = {SABOTAGE[sabotage]: sabotage} if sabotage else {}
        self._notes = Evidence(self.evidence, "harness")

    def run(self) -> LiveVerdict:
        nbytes = DISK_BYTES + int(self._seconds * DISK_BYTES_PER_S)
        with small_disk(self._place / "disk", nbytes) as disk:
            self._run(disk)
        return judged(History(lines_of(self.evidence)))

    def _run(self, disk: Disk) -> None:
        settings = Settings(disk.hub, self.evidence, SESSION_S, HEARTBEAT_S, self._sabotage)
        self._notes.tell("run", seed=self._seed, session=SESSION_S, heartbeat=HEARTBEAT_S)
        processes = LiveProcesses(settings, self._notes, dice("live processes", self._seed))
        with headrace.open(disk.hub) as hub:
            hub.create_stream(STREAM, shards=SHARDS)
            try:
                self._live(processes, disk, hub)
            finally:
                processes.end_all()
            self._tell_final(hub)

    def _live(self, processes: LiveProcesses, disk: Disk, hub: headrace.Hub) -> None:
        for slot in (*MEMBERS, *PRODUCERS):
            processes.start(slot)
        self._until(processes, lambda: self._ready(processes), START_S_MAX, "begin")
        nemesis = self._nemesis(processes, disk, dice("live nemesis", self._seed))
        end_s = time.monotonic() + self._seconds
        while time.monotonic() < end_s:
            nemesis.tick()
            processes.tick()
            time.sleep(TICK_S)
        self._notes.tell("quiet")
        nemesis.heal()
        processes.heal()
        self._until(
            processes,
            lambda: processes.settled and self._ready(processes),
            2 * START_S_MAX,
            "healed",
        )
        self._for(processes, self._rest_s(bound_s(History([]))))
        processes.restarting = False
        self._end(processes, PRODUCERS)
        self._notes.tell("produced")
        self._until(processes, lambda: self._lag(hub) == 0, START_S_MAX, "consumed")
        self._for(processes, self._rest_s(REST_HEARTBEATS * HEARTBEAT_S))
        owned = [standing.owner for standing in hub.groups.load(GROUP).shards.values()]
        names = [process.name for process in processes.running.values()]
        self._notes.tell("shares", members={name: owned.count(name) for name in names})
        self._notes.tell("over")
        self._end(processes, MEMBERS)

    def _nemesis(self, processes: LiveProcesses, disk: Disk, random: random.Random) -> Nemesis:
        match self._plan:
            case "chaos":
                return LiveChaos(processes, disk, self._notes, random, SESSION_S)
            case "zombies":
                return Zombies(processes, self.evidence)
            case "impatience":
                return Impatience(processes, self.evidence)

    def _ready(self, processes: LiveProcesses) -> bool:
        """Whether all processes run and work."""
        complete = len(processes.running) == len(MEMBERS) + len(PRODUCERS)
        return complete and all(map(processes.ready, processes.running.values()))

    def _until(
        self, processes: LiveProcesses, condition: Callable[[], bool], within_s: float, stage: str
    ) -> None:
        """Wait for a condition and write its time as evidence; the checker judges if it never
        came."""
        end_s = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end_s:
                self._notes.tell("late", stage=stage)
                return
            processes.tick()
            time.sleep(TICK_S)
        self._notes.tell(stage)

    def _for(self, processes: LiveProcesses, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            processes.tick()
            time.sleep(TICK_S)

    def _rest_s(self, seconds: float) -> float:
        """How long the run rests: only chaos must come to rest, other plans look for one fault."""
        return seconds if self._plan == "chaos" else 0.0

    def _end(self, processes: LiveProcesses, slots: tuple[str, ...]) -> None:
        for slot in slots:
            if slot in processes.running:
                processes.term(processes.running[slot])
        while any(slot in processes.running for slot in slots):
            processes.tick()
            time.sleep(TICK_S)

    def _lag(self, hub: headrace.Hub) -> int:
        try:
            positions = hub.groups.positions(hub.groups.load(GROUP))
        except UnknownGroup:
            return -1
        return sum(position.lag for position in positions.values())

    def _tell_final(self, hub: headrace.Hub) -> None:
        stream = hub.stream(STREAM)
        positions = hub.groups.positions(hub.groups.load(GROUP))
        checkpoints = {shard.index: position.next for shard, position in positions.items()}
        for shard in range(SHARDS):
            bounds = stream.bounds(shard)
            values = []
            expected = bounds.start
            for record in stream.read(shard):
                gap = "" if record.offset == expected else f"gap before {record.offset} "
                values.append(gap + name_of(record.data))
                expected = record.offset + 1
            self._notes.tell(
                "final",
                shard=shard,
                start=bounds.start,
                end=bounds.end,
                checkpoint=checkpoints.get(shard, 0),
                values=values,
            )
