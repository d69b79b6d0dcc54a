"""Effects of handlers, written to a file so that the test sees them from every process; and wait
points, at which handlers wait until the test releases them."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.model import Record
from headrace.lanes.context import Context

WAIT_S_MAX = 60.0
LOOK_S = 0.003

EFFECTS, WAIT_POINTS = "effects", "wait_points"
"""The options of a run that hold the path of the effects file and the directory of wait points."""


class Effect(NamedTuple):
    """One thing that a handler did: one line of the effects file."""

    what: str
    computation: str
    record: str
    """The id of the record; empty if the effect is about no record."""
    shard: int
    offset: int
    replica: str
    lane: int
    pid: int
    thread: int
    at_s: float
    """Monotonic seconds: the same clock for all processes of a machine."""
    facts: dict[str, Any]


def write_effect(ctx: Context, what: str, record: Record | None = None, **facts: Any) -> None:
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
        os.write(place, line)  # one write: lines of several processes do not mix
    finally:
        os.close(place)


def effects_so_far(ctx: Context) -> list[Effect]:
    """The effects of all handlers up to now."""
    return Effects(Path(ctx.options[EFFECTS])).all()


def wait_at(ctx: Context, point: str) -> None:
    """Wait until the test releases the wait point."""
    until_s = time.monotonic() + WAIT_S_MAX
    places = [Path(ctx.options[WAIT_POINTS]) / name for name in (point, ALL)]
    while not any(place.exists() for place in places) and time.monotonic() < until_s:
        time.sleep(LOOK_S)


ALL = "all"


class Effects:
    """The test's view of the effects file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Effect]:
        if not self.path.exists():
            return []
        # The last line may be half written: a write across the end of a page can be seen in parts.
        whole = self.path.read_text().rpartition("\n")[0]
        return [Effect(*json.loads(line)) for line in whole.splitlines()]

    def of(self, what: str, **facts: Any) -> list[Effect]:
        """The effects of one kind whose fields have these values."""
        return [
            effect
            for effect in self.all()
            if effect.what == what and all(getattr(effect, key) == facts[key] for key in facts)
        ]

    def count(self, what: str, **facts: Any) -> int:
        return len(self.of(what, **facts))

    def spans(self) -> list[tuple[Effect, float, float]]:
        """For each call that ended: its first effect, when it began and when it ended."""
        found = []
        begun: dict[tuple[int, int], Effect] = {}
        for effect in sorted(self.all(), key=lambda effect: effect.at_s):
            thread = effect.pid, effect.thread
            if effect.what == "begin":
                begun[thread] = effect
            elif effect.what == "end":
                began = begun.pop(thread)
                found.append((began, began.at_s, effect.at_s))
        return found

    def most_at_once(self, computation: str | None = None) -> int:
        """The largest number of calls that ran at the same time."""
        steps = []
        for effect, began_s, ended_s in self.spans():
            if computation in (None, effect.computation):
                steps += [(began_s, 1), (ended_s, -1)]
        most = now = 0
        for _, step in sorted(steps):
            now += step
            most = max(most, now)
        return most


class WaitPoints:
    """The test's view of the wait points: a handler waits at each until the test releases it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def release(self, point: str) -> None:
        (self.directory / point).touch()

    def release_all(self) -> None:
        self.release(ALL)
