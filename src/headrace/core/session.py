"""How long a member may be silent, and how often it gives a sign of life."""

from __future__ import annotations

from headrace.core.errors import BadSetting

SESSION_S_MIN = 0.5
HEARTBEAT_S_MIN = 0.05


def check_heartbeat(session_s: float, heartbeat_s: float) -> None:
    """Refuse a heartbeat that is too rare for its session: one late heartbeat would end the
    session."""
    if heartbeat_s > session_s / 2:
        raise BadSetting(
            f"heartbeat {heartbeat_s:g} s is more than half of the session {session_s:g} s: one "
            "late heartbeat would end it; use a third"
        )
