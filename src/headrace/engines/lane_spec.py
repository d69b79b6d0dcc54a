"""What a lane outside the replica's process must know to do its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import BadSetting

SPEC_BYTES_MAX = 1024 * 1024
"""How much a pipe takes before the other end reads."""


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values, because they go to another process or another machine."""

    hub: str
    """The address of the hub, as `headrace.open` takes it."""
    reference: str | None
    """A text that names the topology; None: the topology comes another way."""
    settings: dict[str, Any]
    replica: str
    path: list[str]
    """Where the replica's process looks for modules."""
    level: int
    """The level of logging."""
    failing: str = ""
    """The fail points that are armed, in the form of ``HEADRACE_FAIL``."""
    codes: dict[str, str]
    """Which code each computation is, by name."""
    machine: str | None = None
    """The machine that the lane must run on; None: any."""
    lease_s: float | None = None
    """The lane ends if it hears nothing of its replica for this long."""
    parent: int = 0
    """The replica's process, where that starts the lane."""
    address: str = ""
    secret: bytes = b""
    lane: int = 0

    def to_line(self) -> bytes:
        line = msgspec.json.encode(self) + b"\n"
        if len(line) > SPEC_BYTES_MAX:
            raise BadSetting(
                "the settings are too long for lanes outside this process: at most "
                f"{SPEC_BYTES_MAX} bytes, options included"
            )
        return line

    @classmethod
    def from_line(cls, line: bytes) -> LaneSpec:
        return msgspec.json.decode(line, type=cls)

    def run_settings(self) -> RunSettings:
        return RunSettings(**self.settings)


def this_machine() -> str:
    """The same text in all processes on this machine, until the machine is started anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
