"""What a dispatcher knows of a duty beside its state, and what a group must hear of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core.computations.attempts import Attempts
from headrace.core.computations.dispatch import Duty
from headrace.core.ports import Grant
from headrace.lanes.protocol import Report


@dataclass(slots=True)
class DutyRecord:
    """Changed under the dispatcher's lock."""

    grant: Grant
    attempts: Attempts
    small_steps_to: int = 0
    """The offset before which work goes on in small steps."""
    handled_ms: int = 0
    """The timestamp of the last record handled."""
    timers: dict[str, float] = field(default_factory=dict)
    """By key, in seconds since 1970: they go with the shard from lane to lane."""
    _rewound_to: int = -1
    _rewinds: int = 0

    def update(self, report: Report) -> None:
        """Keep what the report of a slice says."""
        if report.attempts is not None:
            self.attempts = Attempts.decoded(report.attempts)
        self.handled_ms = report.at_ms or self.handled_ms
        if report.timers is not None:
            self.timers = report.timers

    def rewind(self, to: int) -> int:
        """The duty goes back to this offset; how often it has done so before, in a row."""
        self._rewinds = self._rewinds + 1 if self._rewound_to == to else 0
        self._rewound_to = to
        return self._rewinds


class GroupCall(NamedTuple):
    """Something that the group must hear of."""

    duty: Duty
    grant: Grant
    report: Report | None
    """None: the lane was lost."""
