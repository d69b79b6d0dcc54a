"""What a consumer has handed out of a shard, what of it is done, and what may be committed."""

from __future__ import annotations

from collections import deque


class HandedOut:
    """The slices that were handed out of one shard under one grant. They are done in any order.

    The checkpoint may only move to `next`: all slices before it are done, the one at it is not."""

    def __init__(self, start: int) -> None:
        self.committed = start
        """The stored checkpoint."""
        self.given = start
        """Where the next slice to be handed out begins."""
        self.next = start
        self._open: deque[int] = deque()
        self._ends: dict[int, int] = {}
        self._done: set[int] = set()
        self._since: float | None = None

    def give(self, end: int) -> tuple[int, int]:
        """Hand out the slice from the end of the last one to ``end``."""
        assert end > self.given, f"nothing to give from {self.given} to {end}"
        start, self.given = self.given, end
        self._open.append(start)
        self._ends[start] = end
        return start, end

    def done(self, start: int, now: float) -> None:
        """The slice that begins at ``start`` is done. Repeated or unknown, this changes nothing."""
        if start not in self._ends:
            return
        self._done.add(start)
        while self._open and self._open[0] in self._done:
            first = self._open.popleft()
            self._done.discard(first)
            self._moved(self._ends.pop(first), now)

    def _moved(self, to: int, now: float) -> None:
        self.next = to
        if self._since is None:
            self._since = now

    def done_to(self, end: int, now: float) -> None:
        """Every record that was handed out before the offset ``end`` is done."""
        while self._open and self._ends[self._open[0]] <= end:
            self.done(self._open[0], now)
        if self._open and self._open[0] < end:
            rest = self._ends.pop(self._open.popleft())
            self._open.appendleft(end)
            self._ends[end] = rest
            self._moved(end, now)

    def take_back(self, to: int) -> None:
        """Records from the offset ``to`` on were not handed out after all."""
        while self._open and self._open[-1] >= to:
            del self._ends[self._open.pop()]
        if self._open and self._ends[self._open[-1]] > to:
            self._ends[self._open[-1]] = to
        self.given = min(self.given, to)

    @property
    def unmarked(self) -> int:
        """How many handed out slices lie behind `next`: not done, or done behind one that is
        not."""
        return len(self._open)

    def due(self, now: float, every_s: float) -> bool:
        """Whether a done slice has waited for its commit for ``every_s``; no other slice need
        follow it."""
        return self._since is not None and now - self._since >= every_s

    def commit(self, end: int, now: float) -> None:
        """The checkpoint is stored at ``end``. A slice done meanwhile waits from now on."""
        self.committed = end
        self._since = None if self.next <= end else now
