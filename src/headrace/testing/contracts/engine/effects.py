"""What handlers tell of themselves while they run, in whatever process: lines appended to a file.
And gates, at which they wait for the test."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.model import Record
from headrace.lanes.context import Context

GATE_S_MAX = 60.0
LOOK_S = 0.003

EFFECTS, GATES = "effects", "gates"
"""The options that say where they are."""


class Effect(NamedTuple):
    """One line."""

    what: str
    computation: str
    record: str
    """Its id; empty if it is about none."""
    shard: int
    offset: int
    replica: str
    lane: int
    pid: int
    thread: int
    at_s: float
    """Monotonic, the same for all processes of a machine."""
    facts: dict[str, Any]


def tell(ctx: Context, what: str, record: Record | None = None, **facts: Any) -> None:
    effect = Effect(
        what,
        ctx.computation,
        "" if record is None else str(record.id),
        ctx.shard.index,
        -1 if record is None else record.offset,
        ctx.replica,
        ctx.lane,
        os.getpid(),
        threading.get_ident(),
        time.monotonic(),
        facts,
    )
    line = json.dumps(effect).encode() + b"\n"
    place = os.open(ctx.options[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(place, line)  # one write, so that lines of several processes do not mix
    finally:
        os.close(place)


def told(ctx: Context) -> list[Effect]:
    """All that was told so far."""
    return Effects(Path(ctx.options[EFFECTS])).all()


def wait_at_gate(ctx: Context, gate: str) -> None:
    """Until the test opens it."""
    until_s = time.monotonic() + GATE_S_MAX
    places = [Path(ctx.options[GATES]) / name for name in (gate, ALL)]
    while not any(place.exists() for place in places) and time.monotonic() < until_s:
        time.sleep(LOOK_S)


ALL = "all"


class Effects:
    """For the test: what was told."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Effect]:
        if not self.path.exists():
            return []
        # The last line may be half written: a write over the end of a page can be seen in parts.
        whole = self.path.read_text().rpartition("\n")[0]
        return [Effect(*json.loads(line)) for line in whole.splitlines()]

    def of(self, what: str, **facts: Any) -> list[Effect]:
        """Those of one kind, with these fields."""
        return [
            effect
            for effect in self.all()
            if effect.what == what and all(getattr(effect, key) == facts[key] for key in facts)
        ]

    def count(self, what: str, **facts: Any) -> int:
        return len(self.of(what, **facts))

    def spans(self) -> list[tuple[Effect, float, float]]:
        """From the begin to the end of each call that ended."""
        found = []
        begun: dict[tuple[int, int], Effect] = {}
        for effect in sorted(self.all(), key=lambda effect: effect.at_s):
            worker = effect.pid, effect.thread
            if effect.what == "begin":
                begun[worker] = effect
            elif effect.what == "end":
                began = begun.pop(worker)
                found.append((began, began.at_s, effect.at_s))
        return found

    def most_at_once(self, computation: str | None = None) -> int:
        """How many calls there were at one time."""
        steps = []
        for effect, began_s, ended_s in self.spans():
            if computation in (None, effect.computation):
                steps += [(began_s, 1), (ended_s, -1)]
        most = now = 0
        for _, step in sorted(steps):
            now += step
            most = max(most, now)
        return most


class Gates:
    """For the test: handlers wait at each until it is opened."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def open(self, gate: str) -> None:
        (self.directory / gate).touch()

    def open_all(self) -> None:
        self.open(ALL)
