"""How the replicas of a proof are run, and how patient one must be with them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tools.proof.scratch import SESSION_S


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    options: tuple[str, ...]
    """Of ``headrace run``."""
    session_s: float = SESSION_S
    tick_s: float = 0.02
    """Between two looks."""
    begin_s_max: float = 60.0
    """All are at work by then."""
    victim_s_max: float = 10.0
    """So long a deed waits for two replicas at work: where nobody works, nothing can go wrong."""
    still_s_max: float = 30.0
    """If nothing has moved for so long after the last deed, it will not be caught up."""


LOCAL = EngineChoice(options=("--engine", "local"))
PROCESSES = EngineChoice(options=("--engine", "local", "--processes"))
SPARK = EngineChoice(
    options=("--engine", "spark"),
    session_s=3.0,  # several Javas that start take all cores for a while
    tick_s=0.1,
    begin_s_max=240.0,
    victim_s_max=60.0,
    still_s_max=120.0,
)
