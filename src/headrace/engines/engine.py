"""An engine decides where lanes live: in threads, in processes, on Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.ports import Backend
from headrace.lanes.bound import BoundComputation
from headrace.lanes.protocol import DispatcherPort, Progress


class Lanes(Protocol):
    """The lanes of one replica. The replica's own thread calls this."""

    def start(self) -> None:
        """Start all lanes."""

    def cut(self, lane: int, number: int) -> None:
        """Have the lane end the slice of this number behind the record in hand."""

    def progress(self, lane: int) -> Progress | None:
        """How far the lane is, if that is known; None if it has no slice in hand."""

    def kill(self, lane: int) -> None:
        """End a lane that does not come back, and start another in its place."""

    def died(self) -> list[int]:
        """The lanes that ended by themselves since the last call. Others are started in their
        places."""

    def join(self, timeout_s: float) -> bool:
        """Whether all lanes have ended within this time. Those that have not are killed."""


@dataclass(frozen=True, kw_only=True)
class LaneWork:
    """What the lanes of a replica work on."""

    topology: Topology
    backend: Backend
    computations: Mapping[str, BoundComputation]
    """By name."""
    settings: RunSettings
    replica: str
    reference: str | None
    """A text that names the topology in other processes; None: there is none."""


LaneFactory = Callable[[DispatcherPort, int], Lanes]
"""Makes as many lanes as given, for this dispatcher."""


@dataclass(frozen=True)
class Engine:
    name: str
    make: Callable[[LaneWork], LaneFactory]
    """Raises what `headrace.start` raises if lanes for this work cannot live here."""
    shares_a_process: bool
    """Whether all lanes live in one process: a record that kills its process takes all of them
    along."""
