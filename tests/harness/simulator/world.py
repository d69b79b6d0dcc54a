"""Virtual time, and the simulated processes."""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

Call = Callable[[], None]

STORY_LINES = 60
LONG_PAUSE_S = 10.0


class World:
    """One clock, one random generator, one story: everything is a function of the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.digest = 0
        """Changes with every note: equal digests mean equal histories."""
        self.counts: Counter[str] = Counter()
        self._due: list[tuple[float, int, Call]] = []
        self._entered = 0
        self._stories: dict[Any, deque[tuple[float, tuple[Any, ...]]]] = {}

    def at(self, time_s: float, call: Call) -> None:
        self._entered += 1
        heapq.heappush(self._due, (time_s, self._entered, call))

    def after(self, delay_s: float, call: Call) -> None:
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._due)
            call()
        self.now_s = until_s

    def now_ms(self) -> int:
        """The wall clock."""
        return int(self.now_s * 1000)

    def chance(self, share: float) -> bool:
        return share > 0 and self.dice.random() < share

    def about(self, seconds: float) -> float:
        """A random time with this average; it is often much shorter."""
        return self.dice.expovariate(1 / seconds)

    def note(self, concerned: Any, *facts: Any) -> None:
        """Add a line to the story of a shard, or with None to the story of the group."""
        self.digest = zlib.crc32(repr((self.now_s, facts)).encode(), self.digest)
        story = self._stories.get(concerned)
        if story is None:
            story = self._stories[concerned] = deque(maxlen=STORY_LINES)
        story.append((self.now_s, facts))

    def story(self, concerned: Any) -> list[str]:
        """The notes about a shard and about the group, in order, as text."""
        lines = [*self._stories.get(concerned, ())]
        if concerned is not None:
            begin_s = lines[0][0] if lines else 0.0
            lines += [line for line in self._stories.get(None, ()) if line[0] >= begin_s]
        lines.sort(key=lambda line: line[0])
        return [f"{time_s:10.3f} s  {' '.join(map(str, facts))}" for time_s, facts in lines]


class Node:
    """A simulated process. It can die, be paused between any two of its events, be slow, and has a
    clock of its own."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.slowness = 1.0
        self.alive = True
        self.life = 0
        self.doom: Call | None = None
        """Called right before the next write: it kills the process."""
        self.paused_until_s = 0.0
        self.pauses = 0
        self.woke_s = 0.0
        """When the process began, or woke from a pause too long to have watched others
        meanwhile."""
        self._paused_at_s = self._woke_before_s = 0.0
        self._clock_begin_s = world.dice.random() * 1e6

    def clock_s(self) -> float:
        """The monotonic clock of the process: it begins anywhere and runs at its own rate."""
        return self._clock_begin_s + self.world.now_s * self.rate

    def later(self, delay_s: float, call: Call, life: int | None = None) -> None:
        """Call after a delay, unless that life of the process is over; while it is paused, once it
        wakes up."""
        wanted = self.life if life is None else life

        def fire() -> None:
            if self.life != wanted or not self.alive:
                return
            if self.world.now_s < self.paused_until_s:
                self.world.at(min(self.paused_until_s, self.world.now_s + 2.0), fire)
                return
            call()

        self.world.after(delay_s * self.slowness / self.rate, fire)

    def pause(self, seconds: float) -> None:
        self.pauses += 1
        if self.world.now_s >= self.paused_until_s:
            self._paused_at_s, self._woke_before_s = self.world.now_s, self.woke_s
        until_s = max(self.paused_until_s, self.world.now_s + seconds)
        if until_s - self.world.now_s > LONG_PAUSE_S:
            self.woke_s = until_s
        self.paused_until_s = until_s

    def wake(self) -> None:
        """End a pause at once."""
        if self.world.now_s < self.paused_until_s:
            long = self.world.now_s - self._paused_at_s > LONG_PAUSE_S
            self.woke_s = self.world.now_s if long else self._woke_before_s
            self.paused_until_s = self.world.now_s

    def kill(self) -> None:
        self.life += 1
        self.doom = None
        self.woke_s = self.world.now_s
        self.alive = False
        self.paused_until_s = 0.0
