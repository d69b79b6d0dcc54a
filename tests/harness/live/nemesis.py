"""The faults of a live run, for processes and for the disk: drawn from a seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.harness.live.disk import Disk
from tests.harness.live.evidence import Evidence, lines_of
from tests.harness.live.processes import LiveProcess, LiveProcesses

STOPS = (0.5, 0.9, 1.5, 3.0)
"""How long a process is stopped, in sessions."""

PAUSE_S = (0.1, 0.9)
"""The shortest and the longest time between two faults."""

MEMBER_POINTS = (
    "consumer.before-commit:kill@3",
    "consumer.after-commit:kill@3",
    "consumer.revoked:kill@1",
    "consumer.before-commit:stop@3",
    "consumer.after-commit:stop@3",
    "consumer.revoked:stop@1",
    "write.locked:stop@6",
    "write.before-commit:kill@8",
    "write.after-commit:kill@8",
)
PRODUCER_POINTS = (
    "write.locked:kill@9",
    "write.before-commit:kill@9",
    "write.after-commit:kill@9",
    "write.acknowledged:kill@9",
    "write.locked:stop@9",
)
TAKEN_S_MAX = 20.0
LOOK_S = 0.1

SLOW = "write.before-commit:sleep=0.3"
NO_ROOM = "write.before-commit:enospc"


class Nemesis(Protocol):
    def tick(self) -> None:
        """Do the faults that are due."""

    def heal(self) -> None:
        """End the faults that last."""


class LiveChaos:
    """All kinds of faults, at random moments, several at once."""

    def __init__(
        self,
        processes: LiveProcesses,
        disk: Disk,
        evidence: Evidence,
        dice: random.Random,
        session_s: float,
    ) -> None:
        self._processes = processes
        self._disk = disk
        self._evidence = evidence
        self._dice = dice
        self._session_s = session_s
        self._deck: list[Callable[[], None]] = []
        self._next_s = time.monotonic()
        self._later: list[tuple[float, Callable[[], None]]] = []
        processes.fails = {"member": MEMBER_POINTS, "producer": PRODUCER_POINTS}
        processes.stops_s = tuple(share * session_s for share in STOPS[1:])

    def tick(self) -> None:
        now_s = time.monotonic()
        for item in [item for item in self._later if item[0] <= now_s]:
            self._later.remove(item)
            item[1]()
        if now_s >= self._next_s:
            self._next_s = now_s + self._dice.uniform(*PAUSE_S)
            if not self._deck:
                self._deck = self._shuffled()
            self._deck.pop()()

    def heal(self) -> None:
        self._later.clear()
        self._room()

    def _shuffled(self) -> list[Callable[[], None]]:
        """Every kind of fault in random order; common ones occur more than once."""
        deck = [
            *[self._kill_member] * 3,
            *[self._stop_member] * 4,
            *[self._term_member] * 3,
            *[self._kill_producer] * 2,
            self._stop_producer,
            self._term_producer,
            self._twin,
            self._fill,
            self._slow,
            *[self._zombie] * 2,
            self._all_at_once,
        ]
        self._dice.shuffle(deck)
        return deck

    def _some(self, kind: str, *, ready: bool = False) -> LiveProcess | None:
        """A process without a fault; mostly one that works, sometimes one that starts. The last
        working member is spared: without a working member nothing can go wrong."""
        active = [
            process
            for process in self._processes.running.values()
            if process.kind == kind and process.active
        ]
        working = [process for process in active if self._processes.ready(process)]
        if kind == "member" and len(working) < 2:
            return None
        chosen = working if ready or self._dice.random() < 0.85 else active
        return self._dice.choice(chosen) if chosen else None

    def _kill_member(self) -> None:
        if process := self._some("member"):
            self._processes.kill(process)

    def _kill_producer(self) -> None:
        if process := self._some("producer"):
            self._processes.kill(process)

    def _stop_member(self) -> None:
        if process := self._some("member"):
            self._processes.stop(process, self._dice.choice(STOPS) * self._session_s)

    def _stop_producer(self) -> None:
        if process := self._some("producer"):
            self._processes.stop(process, self._dice.choice(STOPS) * self._session_s)

    def _term_member(self) -> None:
        if process := self._some("member"):
            self._processes.term(process)

    def _term_producer(self) -> None:
        if process := self._some("producer"):
            self._processes.term(process)

    def _twin(self) -> None:
        if process := self._some("member", ready=True):
            self._processes.twin(process)

    def _zombie(self) -> None:
        """Restart a member with a fail point that stops it with handled, uncommitted records."""
        if process := self._some("member"):
            self._processes.term(process, Zombies.POINT)

    def _slow(self) -> None:
        self._for_a_while(self._dice.choice(["member", "producer"]), SLOW)

    def _fill(self) -> None:
        self._evidence.tell("full")
        if not self._disk.mounted:
            self._for_a_while("producer", NO_ROOM)
            return
        self._disk.fill()
        self._later.append((time.monotonic() + self._dice.uniform(0.7, 2.0), self._room))

    def _room(self) -> None:
        self._disk.free()
        self._evidence.tell("room")

    def _for_a_while(self, kind: str, fail: str) -> None:
        process = self._some(kind)
        if process is None:
            return
        self._processes.term(process, fail)

        def over() -> None:
            now = self._processes.running.get(process.slot)
            if now is not None and now.fail == fail and now.active:
                self._processes.term(now, "")

        self._later.append((time.monotonic() + self._dice.uniform(1.5, 3), over))

    def _all_at_once(self) -> None:
        self._stop_member()
        self._stop_member()
        self._kill_member()
        self._dice.choice([self._stop_producer, self._kill_producer])()


class Zombies:
    """One member after the other is stopped with handled, uncommitted records until others have its
    shards."""

    POINT = "consumer.before-commit:stop@2"

    def __init__(self, processes: LiveProcesses, evidence: Path) -> None:
        self._processes = processes
        self._evidence = evidence
        self._slots = [slot for slot in processes.running if slot.startswith("m")]
        self._armed: str | None = None
        self._look_s = 0.0
        processes.stops_s = (TAKEN_S_MAX,)

    def tick(self) -> None:
        if self._armed is None:
            process = self._processes.running.get(self._slots[0])
            if process is not None and process.active:
                self._armed = process.slot
                self._processes.term(process, self.POINT)
            return
        if time.monotonic() < self._look_s:
            return
        self._look_s = time.monotonic() + LOOK_S
        process = self._processes.running.get(self._armed)
        if process is not None and process.resume_s is not None and self._taken(process):
            self._processes.resume(process)
            self._slots = [*self._slots[1:], self._slots[0]]
            self._armed = None

    def _taken(self, process: LiveProcess) -> bool:
        """Whether others have the shards that the process had when it was stopped."""
        epochs: dict[int, int] = {}
        held: dict[int, int] = {}
        for line in lines_of(self._evidence, "m"):
            if line["what"] == "grant":
                epochs[line["shard"]] = max(line["epoch"], epochs.get(line["shard"], 0))
                if line["by"] == process.label:
                    held[line["shard"]] = line["epoch"]
            elif line["what"] in ("release", "lost") and line["by"] == process.label:
                held.pop(line["shard"], None)
        return all(epochs[shard] > epoch for shard, epoch in held.items())

    def heal(self) -> None:
        pass


class Impatience:
    """Producers are killed as soon as they report an acknowledgement, while commits are slow."""

    POINT = "write.before-commit:sleep=0.2"

    def __init__(self, processes: LiveProcesses, evidence: Path) -> None:
        self._processes = processes
        self._evidence = evidence
        self._slots = [slot for slot in processes.running if slot.startswith("p")]
        for slot in self._slots:
            self._processes.term(processes.running[slot], self.POINT)

    def tick(self) -> None:
        for slot in self._slots:
            process = self._processes.running.get(slot)
            if process is None or not process.active:
                continue
            if not process.fail:
                self._processes.term(process, self.POINT)
            elif any(line["what"] == "ack" for line in lines_of(self._evidence, process.label)):
                self._processes.kill(process, self.POINT)

    def heal(self) -> None:
        pass
