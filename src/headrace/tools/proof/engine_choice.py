"""The engine of a proof: the options of its replicas, and the time limits that suit them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tools.proof.scratch import SESSION_S


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    options: tuple[str, ...]
    """Options of ``headrace run``."""
    session_s: float = SESSION_S
    tick_s: float = 0.02
    """The time between two looks at the replicas."""
    begin_s_max: float = 60.0
    """How long all replicas may take until they work."""
    victim_s_max: float = 10.0
    """How long a deed waits for two working replicas: it shows nothing if no other replica
    works."""
    still_s_max: float = 30.0
    """After the last deed, the proof ends without having caught up if nothing moves for this
    long."""


LOCAL = EngineChoice(options=("--engine", "local"))
PROCESSES = EngineChoice(options=("--engine", "local", "--processes"))
SPARK = EngineChoice(
    options=("--engine", "spark"),
    session_s=3.0,  # several Java processes that start take all cores for a while
    tick_s=0.1,
    begin_s_max=240.0,
    victim_s_max=60.0,
    still_s_max=120.0,
)
