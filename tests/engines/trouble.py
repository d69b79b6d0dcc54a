"""Orders that make trouble, the bills that must come of them, and what the system knows of
processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import headrace
from headrace.core.computations.settings import RunSettings
from headrace.groups.admin import Groups
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from tests.engines import handlers_trouble
from tests.engines.handlers_trouble import noted, topology

REFERENCE = f"{handlers_trouble.__file__}:topology"
FAST: dict[str, Any] = {"session": "3s", "heartbeat": "200ms"}
DEADLY = {"deaths": 3, "then": "dead-letter"}

# Orders and bills


def fill(hub: Hub, plain: int, trouble: dict[int, Any] | None = None) -> None:
    """So many plain records in each shard; one that makes trouble is the sixth of its shard."""
    stream = hub.stream("orders")
    for shard in range(len(stream.info.shards)):
        rows: list[Any] = [None] * plain
        if trouble is not None and shard in trouble:
            rows.insert(5, trouble[shard])
        stream.append_many([(row, None) for row in rows], shard=shard)


def bills(hub: Hub) -> list[tuple[int, int]]:
    return [tuple(record.value["from"]) for record in hub.stream("bills").read(0)]


def all_but(hub: Hub, *missing: tuple[int, int]) -> Counter[tuple[int, int]]:
    """One bill for each order but these."""
    stream = hub.stream("orders")
    shards = range(len(stream.info.shards))
    ids = {(shard, offset) for shard in shards for offset in range(stream.bounds(shard).end)}
    return Counter(ids - set(missing))


def in_order(hub: Hub) -> bool:
    """Whether the bills of each shard came as its orders did."""
    last: dict[int, int] = {}
    for shard, offset in bills(hub):
        if offset <= last.get(shard, -1):
            return False
        last[shard] = offset
    return True


def is_settled(hub: Hub) -> bool:
    """Whether every checkpoint is behind the last order."""
    groups = Groups(hub.backend)
    return all(position.lag == 0 for position in groups.positions(groups.load("serve")).values())


def times(effects: Path, shard: int, offset: int) -> list[tuple[int, float]]:
    """By which process, and when, it was handled."""
    return [(pid, at_s) for pid, s, o, at_s in noted(effects) if (s, o) == (shard, offset)]


def pause_s(effects: Path, shards: set[int], since_s: float) -> float:
    """The longest time from then on in which none of these shards had a record handled, for each
    of them."""
    longest = 0.0
    for shard in shards:
        at = [t for _, s, _, t in noted(effects) if s == shard and t >= since_s]
        longest = max([longest, *(b - a for a, b in pairwise(at))])
    return longest


def members(hub: Hub) -> list[str]:
    if "serve" not in hub.groups.names():
        return []
    return sorted(hub.groups.load("serve").members)


# Processes


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def children(parent: int) -> list[int]:
    return _families().get(parent, [])


def descendants(parent: int) -> list[int]:
    families, found = _families(), [parent]
    for pid in found:
        found += families.get(pid, [])
    return found[1:]


def workers(parent: int) -> list[int]:
    """The processes that Spark runs Python in, for that one."""
    daemons = [pid for pid in descendants(parent) if b"spark.lanes.daemon" in _command_line(pid)]
    return [pid for pid in daemons if int(_field(pid, 1) or 0) in daemons and not is_gone(pid)]


def lanes_on_spark(parent: int) -> set[int]:
    """Those of the workers that are lanes now: they lead a process group."""
    return {pid for pid in workers(parent) if _field(pid, 2) == str(pid)}


def state(pid: int) -> str:
    return _field(pid, 0)


def is_gone(pid: int) -> bool:
    return state(pid) in ("", "Z")


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


Start = Callable[..., Running]
"""Starts the topology of `handlers_trouble` with a short session."""


@contextmanager
def starting(hub: Hub, effects: Path, **where: Any) -> Iterator[Start]:
    """What it has started is stopped at the end."""
    started: list[Running] = []

    def start(*, policy: dict[str, Any] | None = None, work_s: float = 0, **more: Any) -> Running:
        settings = RunSettings(policies={"default": {"delay": "50ms", **(policy or {})}})
        told = {"effects": str(effects), "work_s": work_s, **more.pop("options", {})}
        usual = {"lanes": 2, **where, "reference": REFERENCE, "settings": settings}
        running = headrace.start(topology, hub, options=told, **{**FAST, **usual, **more})
        started.append(running)
        return running

    yield start
    for running in started:
        running.stop("2s")


def command(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,
    )


def _families() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        parent = _field(int(name), 1) if name.isdigit() else ""
        if parent:
            found.setdefault(int(parent), []).append(int(name))
    return found


def _command_line(pid: int) -> bytes:
    return read(f"/proc/{pid}/cmdline")


def _field(pid: int, number: int) -> str:
    stat = read(f"/proc/{pid}/stat").decode().rpartition(")")[2].split()
    return stat[number] if stat else ""
