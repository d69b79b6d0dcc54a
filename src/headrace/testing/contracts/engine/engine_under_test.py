"""The engine under test: how a contract runs a topology on it, and how it reads the results."""

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
from headrace.testing.contracts.backend_under_test import BackendUnderTest
from headrace.testing.contracts.engine import samples
from headrace.testing.contracts.engine.effects import EFFECTS, WAIT_POINTS, Effects, WaitPoints

Engine = Callable[..., Running]
"""A function like `headrace.start` that runs a topology on the engine under test."""

Run = Callable[..., Running]
"""Starts a topology of `samples` with a short session, and stops it after the test. ``policy``
holds for all computations of the topology."""


Logged = Callable[[], str]
"""Returns the log of this process and of lane processes since the last call."""

Arm = Callable[[str], None]
"""Arms fail points. The text has the format of ``HEADRACE_FAIL``."""


class EngineUnderTest(BackendUnderTest):
    LOST_LANES_ARE_DEAD = False
    """True for an engine whose lanes are processes: a lane that is given up is dead at once. A lane
    that is a thread goes on as a zombie, and its commits are refused; the contract then waits for
    it."""

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("give a fixture `engine`: a function like headrace.start")

    @pytest.fixture
    def effects(self, tmp_path: Path) -> Effects:
        return Effects(tmp_path / "effects")

    @pytest.fixture
    def wait_points(self, tmp_path: Path) -> WaitPoints:
        return WaitPoints(tmp_path / "wait_points")

    @pytest.fixture
    def logged(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> Iterator[Logged]:
        with caplog.at_level(logging.INFO, "headrace"):
            yield lambda: caplog.text + capfd.readouterr().err

    @pytest.fixture
    def arm(self) -> Iterator[Arm]:
        """Arm fail points of this process; they are disarmed after the test."""
        before = failpoints.armed_now()
        yield lambda text: failpoints.arm(failpoints.armed(text))
        failpoints.arm(before)

    @pytest.fixture
    def arm_lanes(self, arm: Arm) -> Arm:
        """Arm fail points of the lanes. An engine with lanes outside this process overrides it."""
        return arm

    @pytest.fixture
    def run(
        self, engine: Engine, hub: Hub, effects: Effects, wait_points: WaitPoints
    ) -> Iterator[Run]:
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
                    WAIT_POINTS: str(wait_points.directory),
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
        wait_points.release_all()
        for running in started:
            running.stop("2s")


def reference(topology: Topology) -> str:
    """The reference by which another process loads the topology."""
    for name, found in vars(samples).items():
        if found is topology:
            return f"{samples.__file__}:{name}"
    raise AssertionError(f"{topology} is not one of the samples")


def orders(hub: Hub, shards: int = 1, each: int = 0, name: str = samples.ORDERS) -> Stream:
    """A new stream with ``each`` records in every shard."""
    stream = hub.create_stream(name, shards=shards, codec="json")
    fill(stream, each)
    return stream


def fill(stream: Stream, each: int, shards: Iterator[int] | range | None = None) -> None:
    for shard in range(stream.shards) if shards is None else shards:
        if each:
            stream.append_many(((None, None) for _ in range(each)), shard=shard)


def read(hub: Hub, name: str = samples.BILLS) -> list[Record]:
    """All records of a stream, shard by shard."""
    stream = hub.stream(name)
    return [record for shard in range(stream.shards) for record in stream.read(shard)]


def values(hub: Hub, name: str = samples.BILLS) -> list[Any]:
    return [record.value for record in read(hub, name)]


def origins(hub: Hub, name: str = samples.BILLS) -> dict[int, list[int]]:
    """The offsets of the input records that have an output, by shard, in the order of the
    outputs."""
    found: dict[int, list[int]] = defaultdict(list)
    for value in values(hub, name):
        if "from" in value:
            shard, _, offset = value["from"].rpartition(":")[2].partition("+")
            found[int(shard)].append(int(offset))
    return dict(found)


def whole(shards: int, each: int) -> dict[int, list[int]]:
    """What `origins` returns when each of the ``each`` records per shard has one output, in
    order."""
    return {shard: list(range(each)) for shard in range(shards)}


def checkpoints(hub: Hub, group: str = "serve", stream: str | None = None) -> dict[int, int | None]:
    groups = hub.groups
    positions = groups.positions(groups.load(group), stream)
    return {shard.index: position.checkpoint for shard, position in positions.items()}


def held(hub: Hub, group: str = "serve") -> dict[str, list[int]]:
    """The shards that each replica holds and that are not moving, by replica."""
    found: dict[str, list[int]] = defaultdict(list)
    for shard, standing in sorted(hub.groups.load(group).shards.items()):
        if standing.state == "held" and standing.owner is not None:
            found[standing.owner].append(shard.index)
    return dict(found)


def stored_state(
    hub: Hub, group: str = "serve", stream: str = samples.ORDERS, shard: int = 0
) -> dict[str, Any]:
    """The committed state of a shard, as the home of groups stores it."""
    rows = hub.home.state(group, hub.log.stream(stream), shard).entries()
    return {name.decode(): msgspec.msgpack.decode(data) for name, data in rows}


class ManualClock:
    """A clock that moves only when the test sets ``now_s``."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s
