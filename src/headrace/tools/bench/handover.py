"""Measures hand-over under load: members, as real processes, join, leave and are killed.

Members have default settings. Calm windows and rebalances take turns in one run, so that a noisy
machine is noisy for both. Processes are started and hubs opened outside of the windows.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import headrace
from headrace.testing.children import Child, dice, until
from headrace.tools.bench import evidence
from headrace.tools.bench.evidence import Handled, Window
from headrace.tools.bench.measure import Say
from headrace.tools.bench.processes import STREAM, ready_members, start_child

GROUP = "bench"


@dataclass(frozen=True, slots=True)
class HandoverLoad:
    members: int = 3
    shards: int = 12
    per_second: float = 2_000
    rounds: int = 30
    """How many rounds: each has a clean leave, a kill, and a join after either."""
    window_s: float = 0.4
    """The length of a window, calm or after a change."""
    spares: int = 6
    """How many members are made ready at once."""


def measured(place: Path, say: Say, load: HandoverLoad | None = None) -> dict[str, Any]:
    load = load or HandoverLoad()
    directory = place / "handover"
    with headrace.open(directory) as hub, ExitStack() as stack:
        stream = hub.create_stream(STREAM, shards=load.shards)
        team = _Team(directory, place, stack, load.spares)
        for _ in range(load.members):
            team.join()
        appending = start_child(stack, "producer", directory, str(load.per_second))
        windows = _rounds(team, load, say)
        say("reading to the end")
        appending.tell()
        appending.ended()
        ends = {shard: stream.bounds(shard).end for shard in range(load.shards)}
        until(
            lambda: team.has_handled(ends),
            "every record is handled",
            state=lambda: team.missing(ends),
        )
        return evidence.figures(team.handled(), windows, ends)


def _rounds(team: _Team, load: HandoverLoad, say: Say) -> list[Window]:
    chosen = dice("who leaves")
    windows: list[Window] = []

    def watch(
        kind: Literal["calm", "join", "leave", "kill"], change: Callable[[], str] = lambda: ""
    ) -> None:
        start_s, start_ns = time.monotonic(), time.monotonic_ns()
        member = change()
        time.sleep(max(start_s + load.window_s - time.monotonic(), 0))
        windows.append(Window(kind, start_ns, time.monotonic_ns(), member))
        team.settle(load.shards)

    team.settle(load.shards)
    for turn in range(load.rounds):
        say(f"shards change hands: round {turn + 1} of {load.rounds}")
        team.make_ready(2)
        watch("calm")
        watch("leave", lambda: team.leave(chosen.choice(sorted(team.working))))
        watch("join", team.join)
        watch("calm")
        watch("kill", lambda: team.kill(chosen.choice(sorted(team.working))))
        watch("join", team.join)
    return windows


class _Team:
    """The members and their evidence."""

    def __init__(self, directory: Path, place: Path, stack: ExitStack, spares: int) -> None:
        self.working: dict[str, Child] = {}
        self._directory = directory
        self._place = place
        self._stack = stack
        self._spares = spares
        self._ready: list[Child] = []
        self._read: dict[str, int] = {}
        """How far the evidence of each member is read, in bytes; only members with evidence."""
        self._gone: dict[str, Child] = {}
        self._joined = 0
        self._handled: list[Handled] = []
        self._offsets: dict[int, set[int]] = {}
        self._last: dict[int, Handled] = {}

    def make_ready(self, wanted: int) -> None:
        """Have this many started members that wait for the command to join."""
        if len(self._ready) < wanted:
            self._ready += ready_members(self._stack, self._directory, self._spares)

    def join(self) -> str:
        self.make_ready(1)
        self._joined += 1
        name = f"member{self._joined:03}"
        member = self.working[name] = self._ready.pop()
        member.tell(f"work {GROUP} {name} {self._evidence(name)}")
        return name

    def leave(self, name: str) -> str:
        return self._end(name, signal.SIGTERM)

    def kill(self, name: str) -> str:
        return self._end(name, signal.SIGKILL)

    def _end(self, name: str, how: signal.Signals) -> str:
        self._gone[name] = self.working.pop(name)
        self._gone[name].process.send_signal(how)
        return name

    def settle(self, shards: int) -> None:
        """Wait until working members read all shards, in equal shares."""
        until(lambda: self._is_settled(shards), "shares are even again", state=self._shares)

    def handled(self) -> list[Handled]:
        self._read_on()
        return self._handled

    def has_handled(self, ends: dict[int, int]) -> bool:
        self._read_on()
        return all(len(self._offsets.get(shard, ())) >= end for shard, end in ends.items())

    def missing(self, ends: dict[int, int]) -> dict[int, list[int]]:
        """The first records of each shard that no member has handled."""
        return {
            shard: sorted(set(range(end)) - self._offsets.get(shard, set()))[:5]
            for shard, end in ends.items()
        }

    def _is_settled(self, shards: int) -> bool:
        self._read_on()
        counts = self._shares()
        even = max(counts.values(), default=0) - min(counts.values(), default=0) <= 1
        return even and len(self._last) == shards and counts.keys() == self.working.keys()

    def _shares(self) -> Counter[str]:
        return Counter(one.member for one in self._last.values())

    def _read_on(self) -> None:
        for name, member in [*self.working.items(), *self._gone.items()]:
            ended = member.process.poll() is not None
            self._take(name)
            if ended:
                assert name in self._gone, f"{name} has ended by itself: {member.output()}"
                del self._gone[name]

    def _take(self, name: str) -> None:
        file = self._evidence(name)
        if not file.exists():
            return
        new, self._read[name] = evidence.written(file, name, self._read.get(name, 0))
        self._handled += new
        for one in new:
            self._offsets.setdefault(one.shard, set()).add(one.offset)
            last = self._last.get(one.shard)
            if last is None or one.handled_ns > last.handled_ns:
                self._last[one.shard] = one

    def _evidence(self, name: str) -> Path:
        return self._place / f"{name}.handled"
