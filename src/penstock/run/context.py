"""What a handler may know and ask for beside its record: ``ctx``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from penstock.core.errors import BadSetting
from penstock.core.model import ShardId
from penstock.core.quantities import Duration, instant_ms, seconds
from penstock.run.state import State


class Context:
    """One for each shard that a lane works on."""

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
        """What was given by ``--option`` and in ``penstock.toml``."""
        self.state = state
        self.timers: dict[str, float] = {}
        """Wall clock seconds by key."""
        self.on_checkpoint: Callable[[], None] = lambda: None

    def checkpoint(self) -> None:
        """Commit as soon as the record in hand is done, instead of with the rest of its slice."""
        self.on_checkpoint()

    def set_timer(self, key: str, at: datetime | Duration) -> None:
        """Have ``on_timer(key, out)`` called at that time, or after so long: once. Set again, it
        replaces the earlier one. It is forgotten when the shard goes elsewhere."""
        if not isinstance(key, str):
            raise BadSetting(f"timer {key!r}: its key is a text")
        if isinstance(at, datetime):
            self.timers[key] = instant_ms(at, what="timer") / 1000
        else:
            self.timers[key] = time.time() + seconds(at, what="timer")

    def cancel_timer(self, key: str) -> None:
        self.timers.pop(key, None)

    def __repr__(self) -> str:
        return f"<Context {self.computation} {self.shard}>"
