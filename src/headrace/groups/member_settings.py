"""What a member says of itself, checked: its name, its session and its heartbeat."""

from __future__ import annotations

import logging
import os
import secrets
import socket

from headrace.core.errors import BadSetting
from headrace.core.quantities import Duration, seconds
from headrace.core.session import HEARTBEAT_S_MIN, SESSION_S_MIN, check_heartbeat

log = logging.getLogger("headrace")


def default_name() -> str:
    """A name that no other member has: host, process and a random part."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(3)}"


def session_of(session: Duration, heartbeat: Duration) -> dict[str, float]:
    """``session_s`` and ``heartbeat_s`` of `MemberSettings`, or `BadSetting`."""
    session_s, heartbeat_s = seconds(session, what="session"), seconds(heartbeat, what="heartbeat")
    if session_s < SESSION_S_MIN:
        raise BadSetting(f"session {session}: at least {SESSION_S_MIN} s")
    if heartbeat_s < HEARTBEAT_S_MIN:
        raise BadSetting(f"heartbeat {heartbeat}: at least {HEARTBEAT_S_MIN} s")
    check_heartbeat(session_s, heartbeat_s)
    if heartbeat_s > session_s / 3:
        log.warning(
            "heartbeat %s is more than a third of the session %s: two late ones end it",
            heartbeat, session,
        )  # fmt: skip
    return {"session_s": session_s, "heartbeat_s": heartbeat_s}
