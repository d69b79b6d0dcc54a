"""Where lanes live: the one thing that engines decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.ports import Backend
from headrace.lanes.bound import BoundComputation
from headrace.lanes.protocol import DispatcherPort


class Progress(NamedTuple):
    """How far a lane is."""

    number: int
    """Of the slice."""
    offset: int | None
    """Of the record in hand; None: there is none, it is read or stored."""


class Lanes(Protocol):
    """The lanes of one replica. Called by the replica's own thread."""

    def start(self) -> None:
        """Start all of them."""

    def cut(self, lane: int, number: int) -> None:
        """Have that slice end behind the record in hand."""

    def progress(self, lane: int) -> Progress | None:
        """What is known of it; None if nothing is in hand."""

    def kill(self, lane: int) -> None:
        """Do away with one that does not come back, and start another in its place."""

    def died(self) -> list[int]:
        """Those that ended by themselves since the last call; others are started in their
        places."""

    def join(self, timeout_s: float) -> bool:
        """Whether all have ended by then; those that have not are done away with."""


@dataclass(frozen=True, kw_only=True)
class LaneWork:
    """What lanes shall work on."""

    topology: Topology
    backend: Backend
    kits: Mapping[str, BoundComputation]
    settings: RunSettings
    replica: str
    reference: str | None
    """Names the topology in other processes."""


LaneFactory = Callable[[DispatcherPort, int], Lanes]

Engine = Callable[[LaneWork], LaneFactory]
"""Where lanes shall live; raises what `headrace.start` raises if they cannot live there."""
