"""Allocators: which member of a group should own which shard.

An allocator is a pure, stable function of the members, the shards and their owners of now: whoever
asks, in whatever process, gets the same answer. `dealt` asks it, and takes no answer unchecked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain, cycle
from math import inf
from operator import itemgetter
from types import MappingProxyType

from penstock.core.errors import BadAllocation, BadSetting, UnknownAllocator
from penstock.core.model import ShardId

TEXT_CHARS_MAX = 100
REASON_CHARS_MAX = 200

_STEP_MAX = 1e9
"""A member lighter than a billionth of the heaviest counts as that: any sum stays finite."""

_CAPPED = re.compile(r"capped\(([1-9][0-9]{0,8})\)", re.ASCII)


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

Deal = Callable[[Members, Shards, Owners], Assignment]
"""From members by name, shards in order, and owners of now. Every shard has a member subscribing
to it, and so does every owner to what it owns."""

KielFunction = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Collection[int]]]]
"""From members and ``topic:partition`` texts, both sorted, to member -> topic -> partitions."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """A way to deal shards. The members of a group agree on its name and version."""

    name: str
    version: str = "1"
    deal: Deal | None = field(default=None, compare=False, repr=False)
    """None: known by name only in this process, which cannot deal then."""
    replicas: int | None = field(default=None, compare=False)
    """No member holds more than ``ceil(shards / replicas)``, even if shards stay without owner."""

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("version", self.version)):
            if not (
                isinstance(text, str) and 0 < len(text) <= TEXT_CHARS_MAX and text.isprintable()
            ):
                raise BadSetting(
                    f"bad allocator {what} {_line(repr(text))}: "
                    f"1 to {TEXT_CHARS_MAX} printable characters"
                )
        if not (self.deal is None or callable(self.deal)):
            raise BadSetting(f"allocator {self.name}: deal is a function or None")
        many = self.replicas
        if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
            raise BadSetting(f"allocator {self.name}: bad replicas {many!r}: a whole number from 1")


def capped(replicas: int) -> Allocator:
    """Balanced, but nobody takes more than the share of one in so many, even while fewer run."""
    return Allocator(f"capped({replicas})", deal=partial(_capped, replicas), replicas=replicas)


def kiel(function: KielFunction, name: str, version: str = "1") -> Allocator:
    """An allocation function written for kiel, asked in its own words."""

    def deal(members: Members, shards: Shards, _: Owners) -> Assignment:
        rows = function([member.name for member in members], sorted(map(str, shards)))
        return {
            member: [ShardId(topic, index) for topic, ids in topics.items() for index in ids]
            for member, topics in rows.items()
        }

    return Allocator(name, version, deal)


def named(name: str) -> Allocator:
    """The shipped allocator of that name."""
    if name in _SHIPPED:
        return _SHIPPED[name]
    if found := _CAPPED.fullmatch(name):
        return capped(int(found[1]))
    raise UnknownAllocator(name, [*_SHIPPED, "capped(3)"])


def dealt(
    allocator: Allocator, members: Members, shards: Shards, current: Owners
) -> dict[ShardId, str]:
    """The member each shard should belong to, as the allocator says; an answer that cannot be
    carried out is `BadAllocation`. Shards nobody subscribes to stay without owner."""
    members = tuple(sorted(members, key=lambda member: member.name))
    streams = {member.name: member.streams for member in members}
    subscribed = frozenset(chain.from_iterable(streams.values()))
    shards = tuple(sorted(dict.fromkeys(s for s in shards if s.stream in subscribed)))
    owned = {s: current[s] for s in shards if s.stream in streams.get(current.get(s, ""), ())}
    owners = _answer(allocator, members, shards, owned)
    if not _is_proven(allocator):
        again = _answer(allocator, members, shards, owned)
        for shard in shards:
            if (one := owners.get(shard)) != (other := again.get(shard)):
                raise _bad(allocator, f"not stable: gave {shard} to {one}, asked again to {other}")
    _check_shares(allocator, members, shards, owners)
    return {shard: owners[shard] for shard in shards if shard in owners}


def _answer(
    allocator: Allocator, members: Members, shards: Shards, owned: Owners
) -> dict[ShardId, str]:
    if allocator.deal is None:
        raise _bad(allocator, "is not known in this process")
    try:
        said = allocator.deal(members, shards, MappingProxyType(dict(owned)))
        return _owners(allocator, said, members, shards)
    except BadAllocation:
        raise
    except Exception as error:
        raise _bad(allocator, f"raised {type(error).__name__}: {error}") from error


def _owners(
    allocator: Allocator, said: object, members: Members, shards: Shards
) -> dict[ShardId, str]:
    if not isinstance(said, Mapping):
        raise _bad(allocator, f"gave {said!r}, not a mapping of members to shards")
    streams = {member.name: member.streams for member in members}
    known: dict[object, ShardId] = {shard: shard for shard in shards}
    owners: dict[ShardId, str] = {}
    for name, mine in said.items():
        if name not in streams:
            raise _bad(allocator, f"gave shards to {name!r}, who is no member")
        if not isinstance(mine, Collection) or isinstance(mine, str | bytes):
            raise _bad(allocator, f"gave {name} {mine!r}, not a collection of shards")
        for item in mine:
            if not isinstance(item, tuple) or tuple(map(type, item)) != (str, int):
                raise _bad(allocator, f"gave {name} {item!r}, not a shard")
            if (shard := known.get(item)) is None:
                raise _bad(allocator, f"gave {name} {ShardId(*item)}, an unknown shard")
            if shard in owners:
                raise _bad(allocator, f"gave {shard} twice, to {owners[shard]} and to {name}")
            if shard.stream not in streams[name]:
                raise _bad(allocator, f"gave {shard} to {name}, who does not subscribe to it")
            owners[shard] = name
    return owners


def _check_shares(allocator: Allocator, members: Members, shards: Shards, owners: Owners) -> None:
    cap = _cap(len(shards), allocator.replicas or 1)
    counts = Counter(owners.values())
    for name, count in counts.items():
        if count > cap:
            raise _bad(allocator, f"gave {name} {count} shards, above its cap of {cap}")
    takers = {stream: m.name for m in members if counts[m.name] < cap for stream in m.streams}
    for shard in shards:
        if shard not in owners and shard.stream in takers:
            raise _bad(allocator, f"gave {shard} to nobody; {takers[shard.stream]} could take it")


def _bad(allocator: Allocator, why: str) -> BadAllocation:
    return BadAllocation(allocator.name, _line(why))


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"


def _is_proven(allocator: Allocator) -> bool:
    deal = allocator.deal
    return (deal.func if isinstance(deal, partial) else deal) in _PROVEN


def _cap(shards: int, replicas: int) -> int:
    return -(-shards // replicas)


def _round_robin(members: Members, shards: Shards, _: Owners) -> Assignment:
    hands: dict[str, list[ShardId]] = {member.name: [] for member in members}
    turns = cycle(members)
    for shard in sorted(shards, key=str):
        hands[next(m.name for m in turns if shard.stream in m.streams)].append(shard)
    return hands


def _single(members: Members, shards: Shards, current: Owners) -> Assignment:
    held = Counter(current.values())
    line = sorted(members, key=lambda member: (-held[member.name], member.name))
    owners = {s: next(m.name for m in line if s.stream in m.streams) for s in shards}
    if owners != current:
        # Where subscriptions differ, another one may hold most now: who is active then stays so.
        return _single(members, shards, owners)
    hands: dict[str, list[ShardId]] = {member.name: [] for member in members}
    for shard, name in owners.items():
        hands[name].append(shard)
    return hands


def _balanced(members: Members, shards: Shards, current: Owners) -> Assignment:
    return _capped(1, members, shards, current)


def _capped(replicas: int, members: Members, shards: Shards, current: Owners) -> Assignment:
    equals = [replace(member, capacity=1.0) for member in members]
    return _shared(equals, shards, current, _cap(len(shards), replicas))


def _weighted(members: Members, shards: Shards, current: Owners) -> Assignment:
    return _shared(members, shards, current, len(shards))


def _shared(members: Members, shards: Shards, current: Owners, cap: int) -> Assignment:
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


balanced = Allocator("balanced", deal=_balanced)
round_robin = Allocator("round_robin", deal=_round_robin)
single = Allocator("single", deal=_single)
weighted = Allocator("weighted", deal=_weighted)

_SHIPPED = {shipped.name: shipped for shipped in (balanced, round_robin, single, weighted)}
_PROVEN = (_balanced, _capped, _round_robin, _single, _weighted)
