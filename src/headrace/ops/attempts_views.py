"""Views of a record that fails: which one, how often, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.computations.attempts import NO_RECORD, Attempts
from headrace.core.model import RecordId, ShardId
from headrace.groups.positions import Position
from headrace.ops.times import utc

REASON_CHARS_SHOWN = 200


def worth_showing(
    attempts: Attempts | None, position: Position | None, stopped: bool
) -> Attempts | None:
    """The attempts, if they matter: None while all goes well, or when the group has read on."""
    if attempts is None or not (attempts.failed or attempts.deaths or attempts.reason):
        return None
    if stopped:
        return attempts
    is_past = position is not None and attempts.offset < position.next
    return attempts if (attempts.failed or attempts.deaths) and not is_past else None


def attempts_view(shard: ShardId, attempts: Attempts | None) -> dict[str, Any] | None:
    if attempts is None:
        return None
    record = str(RecordId(shard.stream, shard.index, attempts.offset))
    return {
        "record": None if attempts.offset == NO_RECORD else record,
        "failed": attempts.failed,
        "deaths": attempts.deaths,
        "at": utc(attempts.at_ms) if attempts.at_ms else None,
        "reason": attempts.reason or None,
    }


def because(trouble: Mapping[str, Any]) -> str:
    """A view of attempts as text: because orders:2+17 failed 3 times (ValueError: no price)."""
    record = trouble["record"] or "a call that is about no record (init, on_timer)"
    failed, deaths = trouble["failed"], trouble["deaths"]
    times = "once" if failed == 1 else f"{failed} times"
    died = "1 process died" if deaths == 1 else f"{deaths} processes died"
    if failed and deaths:
        what = f"{record} failed {times}, and {died} there"
    elif failed:
        what = f"{record} failed {times}"
    else:
        what = f"{died} at {record}" if deaths else f"of {record}"
    reason = brief(trouble["reason"])
    return f"because {what}" + (f" ({reason})" if reason else "")


def brief(reason: str | None, chars: int = REASON_CHARS_SHOWN) -> str:
    """The first line of a reason, cut to that many characters."""
    first = (reason or "").strip().partition("\n")[0]
    return first if len(first) <= chars else f"{first[: chars - 1]}…"
