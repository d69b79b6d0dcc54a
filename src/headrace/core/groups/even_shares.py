"""Shards shared among members: in proportion to their capacity, with as few moves as possible."""

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
"""A capacity below a billionth of the highest counts as a billionth, so that sums stay finite."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What an allocator sees of a member."""

    name: str
    streams: frozenset[str]
    """The streams that the member subscribes to."""
    capacity: float = 1.0
    """The weight of the member among the others."""

    def __post_init__(self) -> None:
        if not 0 < self.capacity < inf:
            raise BadSetting(f"bad capacity {self.capacity!r} of {self.name}: finite, above 0")


Members = Sequence[Candidate]
Shards = Sequence[ShardId]
Owners = Mapping[ShardId, str]

Assignment = Mapping[str, Collection[ShardId]]
"""The shards of each member. A member that is left out has none."""


def shared(members: Members, shards: Shards, current: Owners, cap: int) -> Assignment:
    """The shards of each member by capacity, at most ``cap``; a shard stays with its owner if it
    can."""
    streams = {shard.stream for shard in shards}
    takers = [member for member in members if not streams.isdisjoint(member.streams)]
    if not all(streams <= member.streams for member in takers):
        shares, ownerless = _kept(shards, current, {member.name: cap for member in takers})
        return _Table(takers, cap).dealt(shares, ownerless)
    quotas = _quotas(takers, min(len(shards), cap * len(takers)), Counter(current.values()))
    shares, ownerless = _kept(shards, current, quotas)
    # The member with the fewest shards takes first, so that the shards of one stream spread.
    seats = sorted((n, name) for name in quotas for n in range(len(shares[name]), quotas[name]))
    for shard, (_, name) in zip(ownerless, seats, strict=False):
        shares[name].append(shard)
    return shares


def _quotas(members: Members, count: int, held: Mapping[str, int]) -> dict[str, int]:
    """How many shards each member gets, by capacity and largest remainder. Among equals, a member
    that holds more gets one more."""
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
    """The shards that their owners may keep, and the rest."""
    shares: dict[str, list[ShardId]] = {name: [] for name in limits}
    ownerless = []
    # By index, then by stream: a member that has too many keeps some of every stream.
    for shard in sorted(shards, key=itemgetter(1, 0)):
        owner = current.get(shard)
        if owner is None or len(shares[owner]) == limits[owner]:
            ownerless.append(shard)
        else:
            shares[owner].append(shard)
    return shares, sorted(ownerless)


class _Table:
    """Shares shards among members whose subscriptions differ. Shards pass along chains of members:
    each member gives the next one a shard that both may hold, so only the counts of the first and
    the last member change.

    Members are numbers here. The last number stands for no member. Each of its shards weighs
    infinitely much, so it gives before all others and takes nothing. A shard's kind is the set of
    the members that may hold it, as bits. The weight of an assignment is the sum of count² /
    capacity over all members.
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
        """The weight of the last shard of each member."""
        self._next = [0.0] * len(self._steps)
        """The weight that one more shard of each member would have."""

    def dealt(self, shares: Mapping[str, Shards], ownerless: Shards) -> Assignment:
        """The assignment, as even as the subscriptions allow: no chain could make it lighter."""
        for number, mine in enumerate((*shares.values(), ownerless)):
            self._count(number, len(mine))
        self._lay(len(shares), ownerless)
        self._level()
        # The shards without an owner are placed. Only now may shards that have one move.
        for number, mine in enumerate(shares.values()):
            self._lay(number, mine)
        self._level()
        piles = zip(shares, self._piles, strict=False)
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
                # The heaviest member cannot give to these members, so no other member can.
                unsettled = [number for number in unsettled if number not in reached]

    def _reached(self, giver: int) -> dict[int, tuple[int, int]]:
        """The end of every chain, nearest first, with the member before it and the kind that this
        one gives."""
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
        """Put shards beneath those of a member: the shard that came last is the first to go."""
        for shard in reversed(shards):
            self._piles[number].setdefault(self._kinds[shard.stream], []).insert(0, shard)

    def _count(self, number: int, by: int) -> None:
        count = self._counts[number] = self._counts[number] + by
        self._last[number] = (2 * count - 1) * self._steps[number]
        self._next[number] = inf if count >= self._cap else (2 * count + 1) * self._steps[number]
