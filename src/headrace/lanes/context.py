"""``ctx`` of a handler: where the handler works, and what it may ask for beside its record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from headrace.core.errors import BadSetting
from headrace.core.model import ShardId
from headrace.core.quantities import Duration, instant_ms, seconds
from headrace.lanes.state import State

TIMERS_MAX = 1_000
TIMER_CHARS_MAX = 255


class Context:
    """A lane has one context for each shard that it works on."""

    def __init__(
        self,
        *,
        computation: str,
        shard: ShardId,
        replica: str,
        lane: int,
        options: Mapping[str, Any],
        state: State,
    ) -> None:
        self.computation = computation
        self.shard = shard
        self.replica = replica
        self.lane = lane
        self.options = options
        """The options given by ``--option`` and in ``headrace.toml``."""
        self.state = state
        self.timers: dict[str, float] = {}
        """The times of the timers by key, in seconds of the wall clock."""
        self.on_checkpoint: Callable[[], None] = lambda: None
        self._kept: dict[str, float] = {}
        """The timers as they are stored."""
        self._undo: list[tuple[int, str, float | None]] = []
        """Each change: the row that caused it, the key, and the time that was set before."""
        self._row: Callable[[], int] = lambda: 0

    def checkpoint(self) -> None:
        """Commit as soon as the record in hand is done, instead of with the rest of its slice."""
        self.on_checkpoint()

    def set_timer(self, key: str, at: datetime | Duration) -> None:
        """Have ``on_timer(key, out)`` called once, at this time or after this long. A timer that is
        set again replaces the earlier one. Timers are forgotten when the shard goes elsewhere."""
        if not isinstance(key, str) or not 0 < len(key) <= TIMER_CHARS_MAX or not _is_text(key):
            raise BadSetting(
                f"timer {str(key)[:50]!r}: its key is a text of 1 to {TIMER_CHARS_MAX} characters"
            )
        if len(self.timers) >= TIMERS_MAX and key not in self.timers:
            raise BadSetting(f"timer {key!r}: a shard has at most {TIMERS_MAX} timers")
        if isinstance(at, datetime):
            self._set(key, instant_ms(at, what="timer") / 1000)
        else:
            self._set(key, time.time() + seconds(at, what="timer"))

    def cancel_timer(self, key: str) -> None:
        self._set(key, None)

    def __repr__(self) -> str:
        return f"<Context {self.computation} {self.shard}>"

    # For the lane

    def begin(self, timers: Mapping[str, float]) -> None:
        """A slice begins, with these timers."""
        self.timers = dict(timers)
        self.committed()

    def follow(self, row: Callable[[], int]) -> None:
        self._row = row

    def due(self) -> list[str]:
        """The keys of the timers whose time has come, in the order of time."""
        now_s = time.time()
        return [
            key for at_s, key in sorted((at, k) for k, at in self.timers.items()) if at_s <= now_s
        ]

    def take_back(self, row: int) -> None:
        """Undo what this row of the batch in hand and the rows behind it have set."""
        while self._undo and self._undo[-1][0] >= row:
            _, key, before = self._undo.pop()
            self._put(key, before)

    def seal(self) -> None:
        """The batch in hand is done."""
        self._undo.clear()

    def committed(self) -> None:
        """The timers are stored as they are now."""
        self._kept = dict(self.timers)
        self._undo.clear()

    def drop(self) -> None:
        """Forget all changes that are not stored."""
        self.timers = dict(self._kept)
        self._undo.clear()

    def _set(self, key: str, at_s: float | None) -> None:
        self._undo.append((self._row(), key, self.timers.get(key)))
        self._put(key, at_s)

    def _put(self, key: str, at_s: float | None) -> None:
        if at_s is None:
            self.timers.pop(key, None)
        else:
            self.timers[key] = at_s


def _is_text(key: str) -> bool:
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True
