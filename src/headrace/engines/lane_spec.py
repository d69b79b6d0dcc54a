"""What a lane outside the replica's process must know to do its work."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import msgspec

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import BadSetting
from headrace.engines.engine import LaneWork

log = logging.getLogger("headrace")

ERRAND_BYTES_MAX = 1024 * 1024
"""As much as a pipe takes without anybody reading."""

in_lane = False
"""This process is a lane."""


class LaneSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values: it goes to another process, or another machine."""

    hub: str
    """Where the hub is, as `headrace.open` takes it."""
    reference: str | None
    """Names the topology; None: it comes along by another way."""
    settings: dict[str, Any]
    replica: str
    path: list[str]
    """Where modules are looked for, in the replica's process."""
    level: int
    """Of what is logged."""
    failing: str = ""
    """Where it shall go wrong, as ``HEADRACE_FAIL`` says it."""
    codes: dict[str, str]
    """Which code each computation is."""
    machine: str | None = None
    """The machine that it must run on; None: any."""
    lease_s: float | None = None
    """If nothing is heard of the replica for so long, it is of no use any more."""
    parent: int = 0
    """The replica's process, where that starts it."""
    address: str = ""
    secret: bytes = b""
    lane: int = 0

    def to_line(self) -> bytes:
        line = msgspec.json.encode(self) + b"\n"
        if len(line) > ERRAND_BYTES_MAX:
            raise BadSetting(
                "the settings are too long for lanes outside this process: at most "
                f"{ERRAND_BYTES_MAX} bytes, options included"
            )
        return line

    @classmethod
    def from_line(cls, line: bytes) -> LaneSpec:
        return msgspec.json.decode(line, type=cls)

    def run_settings(self) -> RunSettings:
        return RunSettings(**self.settings)


def lane_spec_for(wanted: LaneWork, hub: str) -> LaneSpec:
    """For lanes that open that hub themselves."""
    return LaneSpec(
        hub=hub,
        reference=wanted.reference,
        settings=_plain_settings(wanted.settings),
        replica=wanted.replica,
        path=[place for place in sys.path if isinstance(place, str)],
        level=log.getEffectiveLevel(),
        codes={name: kit.code for name, kit in wanted.kits.items()},
        parent=os.getpid(),
    )


def _plain_settings(settings: RunSettings) -> dict[str, Any]:
    """As they will be in another process; `BadSetting` for what would not be the same there."""
    # How Spark is started, its lanes need not know, and there may be secrets in it.
    told = asdict(replace(settings, spark={}))
    for section, values in told.items():
        if not _is_plain(values):
            for key, value in values.items() if isinstance(values, Mapping) else ():
                if not _is_plain(value):
                    raise BadSetting(
                        f"{section}: {key} = {value!r} cannot be told to lanes that are no threads "
                        "of this process: use text, numbers, true or false, lists, and tables with "
                        "names of text"
                    )
    return told


def _is_plain(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
