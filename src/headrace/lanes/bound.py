"""A computation bound to its streams, policy and code: the same in every process that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.codec.registry import find_codec
from headrace.core.computations.computation import Computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import UnknownStream
from headrace.core.ports import Log
from headrace.lanes.fingerprint import fingerprint
from headrace.streams.sharding import Sharding, Target


@dataclass(frozen=True, kw_only=True)
class BoundComputation:
    """Everything a lane needs to work for one computation."""

    computation: Computation
    policy: Policy
    concurrency: int | None
    options: Mapping[str, Any]
    targets: Mapping[str, Target]
    """The output streams, by name."""
    dead_letters: Target | None
    """The stream of dead letters; None: there is no such stream."""
    code: str
    """The version or digest of the code, as `fingerprint` tells it."""

    @property
    def wants_closing(self) -> bool:
        """Whether the handler has a ``close``, to be called before a shard goes."""
        return self.computation.is_class and hasattr(self.computation.handler, "close")

    @property
    def calls_itself(self) -> bool:
        """Whether the handler may set timers, and so be called without a record."""
        return self.computation.is_class and hasattr(self.computation.handler, "on_timer")


def bound_computations(
    records: Log,
    topology: Topology,
    settings: RunSettings,
    codes: Mapping[str, str] | None = None,
) -> dict[str, BoundComputation]:
    """The computations of a topology by name, in its order. ``codes`` gives the code of a
    computation by name, where this process cannot find it out."""
    known = codes or {}
    return {
        each.name: _bound(records, each, settings, known.get(each.name))
        for each in topology.computations
    }


def _bound(
    records: Log, computation: Computation, settings: RunSettings, code: str | None
) -> BoundComputation:
    try:
        dead_letters = _target(records, computation.dead_letters)
    except UnknownStream:
        dead_letters = None
    return BoundComputation(
        computation=computation,
        policy=settings.policy(computation),
        concurrency=settings.concurrency(computation),
        options=settings.options,
        targets=targets_of(records, computation),
        dead_letters=dead_letters,
        code=fingerprint(computation) if code is None else code,
    )


def targets_of(records: Log, computation: Computation) -> dict[str, Target]:
    """The output streams of a computation as they are now; `UnknownStream` if one is gone."""
    return {name: _target(records, name) for name in computation.outputs}


def _target(records: Log, name: str) -> Target:
    info = records.stream(name)
    return Target(info, find_codec(info.codec), Sharding(info))
