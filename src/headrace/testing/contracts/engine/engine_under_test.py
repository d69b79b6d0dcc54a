"""What the contracts of engines share: a topology at work, and what came of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.model import Record
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.process import failpoints
from headrace.streams.stream import Stream
from headrace.testing.contracts.backend_under_test import Subject
from headrace.testing.contracts.engine import samples
from headrace.testing.contracts.engine.effects import EFFECTS, GATES, Effects, Gates

Engine = Callable[..., Running]
"""`headrace.start` with what makes it this engine."""

Run = Callable[..., Running]
"""Starts a topology of `samples` with a short session; stopped after the test. ``policy`` holds for
all of its computations."""


Told = Callable[[], str]
"""What was logged since the last call, here or in lanes that are processes."""

Arm = Callable[[str], None]
"""Has something die at a fail point, as ``HEADRACE_FAIL`` says it."""


class AtWork(Subject):
    KILLS = False
    """Whether a lane that is given up is dead at once; else it may still go on, in vain."""

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("give a fixture `engine`: a function like headrace.start")

    @pytest.fixture
    def effects(self, tmp_path: Path) -> Effects:
        return Effects(tmp_path / "effects")

    @pytest.fixture
    def gates(self, tmp_path: Path) -> Gates:
        return Gates(tmp_path / "gates")

    @pytest.fixture
    def told(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> Iterator[Told]:
        with caplog.at_level(logging.INFO, "headrace"):
            yield lambda: caplog.text + capfd.readouterr().err

    @pytest.fixture
    def arm(self, monkeypatch: pytest.MonkeyPatch) -> Arm:
        return lambda what: monkeypatch.setattr(failpoints, "_armed", failpoints.armed(what))

    @pytest.fixture
    def arm_lanes(self, arm: Arm) -> Arm:
        """The same for lanes; where they are no threads of this process, it is said otherwise."""
        return arm

    @pytest.fixture
    def run(self, engine: Engine, hub: Hub, effects: Effects, gates: Gates) -> Iterator[Run]:
        started: list[Running] = []

        def run(
            topology: Topology,
            *,
            options: dict[str, Any] | None = None,
            policy: dict[str, Any] | None = None,
            policies: dict[str, dict[str, Any]] | None = None,
            **settings: Any,
        ) -> Running:
            usual: dict[str, Any] = {
                "session": "3s",
                "heartbeat": "200ms",
                "reference": reference(topology),
                "options": {
                    EFFECTS: str(effects.path),
                    GATES: str(gates.directory),
                    **(options or {}),
                },
                "settings": RunSettings(
                    policies={"default": policy or {}, **(policies or {})},
                    streams={"default": {"codec": "json", "shards": 1}},
                ),
            }
            started.append(engine(topology, hub, **{**usual, **settings}))
            return started[-1]

        yield run
        gates.open_all()
        for running in started:
            running.stop("2s")


def reference(topology: Topology) -> str:
    """How another process finds it."""
    for name, found in vars(samples).items():
        if found is topology:
            return f"{samples.__file__}:{name}"
    raise AssertionError(f"{topology} is none of the samples")


def orders(hub: Hub, shards: int = 1, each: int = 0, name: str = samples.ORDERS) -> Stream:
    """A stream with so many records in each shard."""
    stream = hub.create_stream(name, shards=shards, codec="json")
    fill(stream, each)
    return stream


def fill(stream: Stream, each: int, shards: Iterator[int] | range | None = None) -> None:
    for shard in range(stream.shards) if shards is None else shards:
        if each:
            stream.append_many(((None, None) for _ in range(each)), shard=shard)


def read(hub: Hub, name: str = samples.BILLS) -> list[Record]:
    """All its records, shard by shard."""
    stream = hub.stream(name)
    return [record for shard in range(stream.shards) for record in stream.read(shard)]


def values(hub: Hub, name: str = samples.BILLS) -> list[Any]:
    return [record.value for record in read(hub, name)]


def origins(hub: Hub, name: str = samples.BILLS) -> dict[int, list[int]]:
    """Of which records there are outputs: offsets by shard, in the order of the outputs."""
    found: dict[int, list[int]] = defaultdict(list)
    for value in values(hub, name):
        if "from" in value:
            shard, _, offset = value["from"].rpartition(":")[2].partition("+")
            found[int(shard)].append(int(offset))
    return dict(found)


def whole(shards: int, each: int) -> dict[int, list[int]]:
    """What `origins` are when each record of so many made one output, in order."""
    return {shard: list(range(each)) for shard in range(shards)}


def checkpoints(hub: Hub, group: str = "serve", stream: str | None = None) -> dict[int, int | None]:
    groups = hub.groups
    positions = groups.positions(groups.load(group), stream)
    return {shard.index: position.checkpoint for shard, position in positions.items()}


def held(hub: Hub, group: str = "serve") -> dict[str, list[int]]:
    """Which shards each replica holds, for good."""
    found: dict[str, list[int]] = defaultdict(list)
    for shard, standing in sorted(hub.groups.load(group).shards.items()):
        if standing.state == "held" and standing.owner is not None:
            found[standing.owner].append(shard.index)
    return dict(found)


def stored_state(
    hub: Hub, group: str = "serve", stream: str = samples.ORDERS, shard: int = 0
) -> dict[str, Any]:
    """The committed state, whatever engine committed it."""
    rows = hub.home.state(group, hub.log.stream(stream), shard).entries()
    return {name.decode(): msgspec.msgpack.decode(data) for name, data in rows}


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s
