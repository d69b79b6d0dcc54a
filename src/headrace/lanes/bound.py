"""Everything a lane needs to work for a computation: the same in every process that runs it."""

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
from headrace.core.ports import Backend
from headrace.lanes.loading import fingerprint
from headrace.lanes.outputs import Target
from headrace.streams.sharding import Sharding


@dataclass(frozen=True, kw_only=True)
class BoundComputation:
    computation: Computation
    policy: Policy
    concurrency: int | None
    options: Mapping[str, Any]
    targets: Mapping[str, Target]
    dead_letters: Target | None
    code: str
    """Which code it is."""

    @property
    def wants_closing(self) -> bool:
        """Whether it has something to do before a shard goes."""
        return self.computation.is_class and hasattr(self.computation.handler, "close")

    @property
    def calls_itself(self) -> bool:
        """Whether it may want to be called without a record."""
        return self.computation.is_class and hasattr(self.computation.handler, "on_timer")


def bound_computations(
    backend: Backend,
    topology: Topology,
    settings: RunSettings,
    codes: Mapping[str, str] | None = None,
) -> dict[str, BoundComputation]:
    """By name, in the order of the topology; ``codes`` tells which code they are, where that
    cannot be found out."""
    known = codes or {}
    return {
        each.name: _bound(backend, each, settings, known.get(each.name))
        for each in topology.computations
    }


def _bound(
    backend: Backend, computation: Computation, settings: RunSettings, code: str | None
) -> BoundComputation:
    try:
        letters = _target(backend, computation.dead_letters)
    except UnknownStream:
        letters = None
    return BoundComputation(
        computation=computation,
        policy=settings.policy(computation),
        concurrency=settings.concurrency(computation),
        options=settings.options,
        targets=targets_of(backend, computation),
        dead_letters=letters,
        code=fingerprint(computation) if code is None else code,
    )


def targets_of(backend: Backend, computation: Computation) -> dict[str, Target]:
    """The streams it appends to, as they are now; `UnknownStream` if one is gone."""
    return {name: _target(backend, name) for name in computation.outputs}


def _target(backend: Backend, name: str) -> Target:
    info = backend.stream(name)
    return Target(info, find_codec(info.codec), Sharding(info))
