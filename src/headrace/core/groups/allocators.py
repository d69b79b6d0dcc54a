"""Allocators: which member of a group should own which shard.

An allocator is a pure, stable function of the members, the shards and their current owners: it
gives the same answer in every process. `dealt` asks an allocator and checks every answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, cycle
from types import MappingProxyType

from headrace.core.errors import BadAllocation, BadSetting, UnknownAllocator
from headrace.core.groups.even_shares import Assignment, Members, Owners, Shards, shared
from headrace.core.model import ShardId

TEXT_CHARS_MAX = 100
REASON_CHARS_MAX = 200
REPLICAS_END = 10**9

_CAPPED = re.compile(r"capped\(([1-9][0-9]{0,8})\)", re.ASCII)


Deal = Callable[[Members, Shards, Owners], Assignment]
"""A function from members sorted by name, shards in order, and current owners. Every shard has a
member that subscribes to it, and every owner subscribes to its shards."""

KielFunction = Callable[[list[str], list[str]], Mapping[str, Mapping[str, Collection[int]]]]
"""A function from members and ``topic:partition`` texts, both sorted, to member -> topic ->
partitions."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """A way to deal shards. The members of a group must agree on its name and version."""

    name: str
    version: str = "1"
    deal: Deal | None = field(default=None, compare=False, repr=False)
    """None if this process knows the allocator by name only. Then it cannot deal."""
    replicas: int | None = field(default=None, compare=False)
    """No member holds more than ``ceil(shards / replicas)``, even if shards stay without an
    owner."""

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
        if self.deal is not None and not _is_free(self.name, self.deal):
            raise BadSetting(f"allocator {self.name} is shipped: give yours a name of its own")
        many = self.replicas
        if many is not None and (isinstance(many, bool) or not isinstance(many, int) or many < 1):
            raise BadSetting(f"allocator {self.name}: bad replicas {many!r}: a whole number from 1")


def capped(replicas: int) -> Allocator:
    """Balanced, but no member takes more than its share among ``replicas`` members, even while
    fewer run."""
    if type(replicas) is not int or not 0 < replicas < REPLICAS_END:
        raise BadSetting(f"capped({replicas!r}): a whole number from 1 to {REPLICAS_END - 1}")
    return Allocator(f"capped({replicas})", deal=partial(_capped, replicas), replicas=replicas)


def kiel(function: KielFunction, name: str, version: str = "1") -> Allocator:
    """An allocator that calls an allocation function written for kiel, with kiel's arguments."""

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
    """The member that should own each shard, as the allocator says. Raises `BadAllocation` for an
    answer that cannot be carried out. Shards without a subscriber stay without an owner."""
    members = tuple(sorted(members, key=lambda member: member.name))
    streams = {member.name: member.streams for member in members}
    subscribed = frozenset(chain.from_iterable(streams.values()))
    shards = tuple(sorted(dict.fromkeys(s for s in shards if s.stream in subscribed)))
    owned = {
        s: owner
        for s in shards
        if (owner := current.get(s)) is not None and s.stream in streams.get(owner, ())
    }
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
            raise _bad(allocator, f"gave shards to {name!r}, which is no member")
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
                raise _bad(allocator, f"gave {shard} to {name}, which does not subscribe to it")
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
            raise _bad(
                allocator, f"gave {shard} to no member; {takers[shard.stream]} could take it"
            )


def _bad(allocator: Allocator, why: str) -> BadAllocation:
    return BadAllocation(allocator.name, _line(why))


def _line(text: str) -> str:
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"


def _is_free(name: str, deal: Deal) -> bool:
    """Whether the function may have this name: a shipped name means the same function
    everywhere."""
    if found := _CAPPED.fullmatch(name):
        return isinstance(deal, partial) and (deal.func, deal.args) == (_capped, (int(found[1]),))
    return deal is _DEALS.get(name, deal)


def _is_proven(allocator: Allocator) -> bool:
    deal = allocator.deal
    return (deal.func if isinstance(deal, partial) else deal) in _PROVEN


def _cap(shards: int, replicas: int) -> int:
    return -(-shards // replicas)


def _round_robin(members: Members, shards: Shards, _: Owners) -> Assignment:
    shares: dict[str, list[ShardId]] = {member.name: [] for member in members}
    turns = cycle(members)
    for shard in sorted(shards, key=str):
        shares[next(m.name for m in turns if shard.stream in m.streams)].append(shard)
    return shares


def _single(members: Members, shards: Shards, current: Owners) -> Assignment:
    held = Counter(current.values())
    line = sorted(members, key=lambda member: (-held[member.name], member.name))
    owners = {s: next(m.name for m in line if s.stream in m.streams) for s in shards}
    if owners != current:
        # Where subscriptions differ, another member may hold most now. Repeated, the answer is
        # stable.
        return _single(members, shards, owners)
    shares: dict[str, list[ShardId]] = {member.name: [] for member in members}
    for shard, name in owners.items():
        shares[name].append(shard)
    return shares


def _balanced(members: Members, shards: Shards, current: Owners) -> Assignment:
    return _capped(1, members, shards, current)


def _capped(replicas: int, members: Members, shards: Shards, current: Owners) -> Assignment:
    equals = [replace(member, capacity=1.0) for member in members]
    return shared(equals, shards, current, _cap(len(shards), replicas))


def _weighted(members: Members, shards: Shards, current: Owners) -> Assignment:
    return shared(members, shards, current, len(shards))


_DEALS: dict[str, Deal] = {
    "balanced": _balanced,
    "round_robin": _round_robin,
    "single": _single,
    "weighted": _weighted,
}
_PROVEN = (*_DEALS.values(), _capped)

balanced = Allocator("balanced", deal=_balanced)
round_robin = Allocator("round_robin", deal=_round_robin)
single = Allocator("single", deal=_single)
weighted = Allocator("weighted", deal=_weighted)

_SHIPPED = {shipped.name: shipped for shipped in (balanced, round_robin, single, weighted)}
