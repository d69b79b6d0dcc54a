"""Shards shared out among members: in proportion to their capacity, with as few moves as can be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from math import inf
from operator import itemgetter

from headrace.core.errors import BadSetting
from headrace.core.model import ShardId

_STEP_MAX = 1e9
"""A member lighter than a billionth of the heaviest counts as that: any sum stays finite."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What an allocator sees of a member."""

    name: str
    streams: frozenset[str]
    """Those it subscribes to."""
    capacity: float = 1.0
    """Its weight among the others."""

    def __post_init__(self) -> None:
        if not 0 < self.capacity < inf:
            raise BadSetting(f"bad capacity {self.capacity!r} of {self.name}: finite, above 0")


Members = Sequence[Candidate]
Shards = Sequence[ShardId]
Owners = Mapping[ShardId, str]

Assignment = Mapping[str, Collection[ShardId]]
"""The shards of each member; a member left out has none."""


def shared(members: Members, shards: Shards, current: Owners, cap: int) -> Assignment:
    """By capacity, nobody above the cap, and what can stay stays."""
    streams = {shard.stream for shard in shards}
    takers = [member for member in members if not streams.isdisjoint(member.streams)]
    if not all(streams <= member.streams for member in takers):
        hands, loose = _kept(shards, current, {member.name: cap for member in takers})
        return _Table(takers, cap).dealt(hands, loose)
    quotas = _quotas(takers, min(len(shards), cap * len(takers)), Counter(current.values()))
    hands, loose = _kept(shards, current, quotas)
    # The emptiest hand takes first: so the shards of one stream spread.
    seats = sorted((n, name) for name in quotas for n in range(len(hands[name]), quotas[name]))
    for shard, (_, name) in zip(loose, seats, strict=False):
        hands[name].append(shard)
    return hands


def _quotas(members: Members, count: int, held: Mapping[str, int]) -> dict[str, int]:
    """Proportional to capacity by largest remainder; of equals, who holds more gets one more."""
    whole = sum(Fraction(member.capacity) for member in members)
    shares = {member.name: count * Fraction(member.capacity) / whole for member in members}
    quotas = {name: int(share) for name, share in shares.items()}
    line = sorted(shares, key=lambda n: (quotas[n] - shares[n], quotas[n] - held[n], n))
    for name in line[: count - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def _kept(
    shards: Shards, current: Owners, limits: Mapping[str, int]
) -> tuple[dict[str, list[ShardId]], list[ShardId]]:
    """What the owners of now may keep, and the rest."""
    hands: dict[str, list[ShardId]] = {name: [] for name in limits}
    loose = []
    # By index, then by stream: who has too many keeps some of every stream.
    for shard in sorted(shards, key=itemgetter(1, 0)):
        owner = current.get(shard)
        if owner is None or len(hands[owner]) == limits[owner]:
            loose.append(shard)
        else:
            hands[owner].append(shard)
    return hands, sorted(loose)


class _Table:
    """Where subscriptions differ, shards pass along chains of members: each gives the next one a
    shard that this one may hold too, and only the first and the last feel it.

    Members are numbers here. The last number is nobody, whose every shard weighs infinitely much:
    it gives before all others and takes nothing. A shard's kind is the set of the members that may
    hold it, as bits. What all members together weigh is the sum of their count² / capacity.
    """

    def __init__(self, members: Members, cap: int) -> None:
        heaviest = max(member.capacity for member in members)
        self._steps = [*(min(heaviest / m.capacity, _STEP_MAX) for m in members), inf]
        self._cap = cap
        self._kinds: dict[str, int] = defaultdict(int)
        for number, member in enumerate(members):
            for stream in member.streams:
                self._kinds[stream] |= 1 << number
        self._piles: list[dict[int, list[ShardId]]] = [{} for _ in self._steps]
        self._counts = [0] * len(self._steps)
        self._last = [0.0] * len(self._steps)
        """What the last shard of each weighs."""
        self._next = [0.0] * len(self._steps)
        """What one more would weigh."""

    def dealt(self, hands: Mapping[str, Shards], loose: Shards) -> Assignment:
        """As even as the subscriptions allow: no chain is left that would make it lighter."""
        for number, mine in enumerate((*hands.values(), loose)):
            self._count(number, len(mine))
        self._lay(len(hands), loose)
        self._level()
        # The loose ones did what they could: only now may those move that have an owner.
        for number, mine in enumerate(hands.values()):
            self._lay(number, mine)
        self._level()
        piles = zip(hands, self._piles, strict=False)
        return {name: list(chain.from_iterable(pile.values())) for name, pile in piles}

    def _level(self) -> None:
        unsettled = list(range(len(self._steps)))
        while unsettled:
            giver = max(unsettled, key=self._last.__getitem__)
            reached = self._reached(giver)
            taker = min(reached, key=self._next.__getitem__)
            if self._next[taker] < self._last[giver]:
                self._count(giver, -1)
                self._count(taker, 1)
                while taker != giver:
                    taker = self._pass(*reached[taker], taker)
            else:
                # What the heaviest can reach in vain, all others reach in vain.
                unsettled = [number for number in unsettled if number not in reached]

    def _reached(self, giver: int) -> dict[int, tuple[int, int]]:
        """The end of every chain, nearest first, with the one before it and the kind it gives."""
        reached = {giver: (giver, 0)}
        missing = (1 << len(self._steps) - 1) - 1 & ~(1 << giver)
        line = [giver]
        for number in line:
            for kind in self._piles[number] if missing else ():
                fresh = kind & missing
                missing ^= fresh
                while fresh:
                    taker = fresh.bit_length() - 1
                    fresh ^= 1 << taker
                    reached[taker] = number, kind
                    line.append(taker)
        return reached

    def _pass(self, giver: int, kind: int, taker: int) -> int:
        pile = self._piles[giver][kind]
        self._piles[taker].setdefault(kind, []).append(pile.pop())
        if not pile:
            del self._piles[giver][kind]
        return giver

    def _lay(self, number: int, shards: Shards) -> None:
        """Beneath what lies there: what came last is the first to go."""
        for shard in reversed(shards):
            self._piles[number].setdefault(self._kinds[shard.stream], []).insert(0, shard)

    def _count(self, number: int, by: int) -> None:
        count = self._counts[number] = self._counts[number] + by
        self._last[number] = (2 * count - 1) * self._steps[number]
        self._next[number] = inf if count >= self._cap else (2 * count + 1) * self._steps[number]
