"""Records that were handed out and could not be committed any more, until the user commits."""

from __future__ import annotations

from headrace.consumers.held_shard import HeldShard
from headrace.core.errors import Fenced
from headrace.core.model import Bounds

SHARDS_MAX = 100
"""How many shards are remembered, for a user who never commits."""


class UnstoredRecords:
    """Used by `HeldShards` under its lock."""

    def __init__(self) -> None:
        self._bounds: dict[HeldShard, Bounds] = {}

    def add(self, held: HeldShard, start: int, end: int) -> None:
        if start >= end:
            return
        self._bounds[held] = Bounds(start, end)
        if len(self._bounds) > SHARDS_MAX:
            del self._bounds[next(iter(self._bounds))]

    def stored(self, held: HeldShard, end: int) -> None:
        """All before this offset is committed after all."""
        left = self._bounds.pop(held, None)
        if left is not None and end < left.end:
            self._bounds[held] = Bounds(end, left.end)

    def take(self) -> Fenced | None:
        """The error that tells of all that was added since the last call; None if nothing was."""
        lost, self._bounds = self._bounds, {}
        for held, (start, end) in lost.items():
            others = f", and some of {len(lost) - 1} other shards" if len(lost) > 1 else ""
            outcome = (
                f"records {start} to {end - 1}{others} were not committed and come again; "
                "all else that is done is stored"
            )
            return Fenced(held.grant.group, *held.shard, outcome)
        return None
