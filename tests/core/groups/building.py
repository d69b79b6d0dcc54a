"""Groups to test with: built by hand in any state, or reached by a sequence of small numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import strategies as st

from headrace.core.groups import machine as group_module
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.even_shares import Assignment, Members, Shards
from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Heartbeat,
    Join,
    Leave,
    Proof,
    Release,
    Resume,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group, Member, ShardStanding
from headrace.core.groups.machine import step
from headrace.core.model import ShardId

NAME = "billing"
STREAM = "orders"
VERSION = 9
"""The version of a group built by hand: so late that every member has seen all that is in it."""

NEXT = VERSION + 1
"""The version of such a group after one step."""

NOW = 10**9
"""The version seen by an observer that has just looked at the group, whatever it is."""

_EDGE = re.compile(r"^    (\S+(?: \S+)*) {2,}(\w+) -> (\w+) ", re.MULTILINE)
EDGES = {found.groups() for found in _EDGE.finditer(group_module.__doc__ or "")}
"""The table in the docstring: edge, state before, state after."""

LINEAGE: dict[int, tuple[int, ...]] = {0: (), 1: (), 2: (), 3: (0,), 4: (0,), 5: (1, 2), 6: (4, 5)}
"""LogHub's picture: 0 was split into 3 and 4, 1 and 2 were merged to 5, then 4 and 5 to 6."""


def at(index: int, stream: str = STREAM) -> ShardId:
    return ShardId(stream, index)


def waiting(epoch: int = 0, parents: tuple[int, ...] = ()) -> ShardStanding:
    return ShardStanding("waiting", epoch, parents=parents)


def free(epoch: int = 0, parents: tuple[int, ...] = (), stopped: bool = False) -> ShardStanding:
    return ShardStanding("free", epoch, parents=parents, stopped=stopped)


def held(
    owner: str, epoch: int = 1, granted: int = VERSION, parents: tuple[int, ...] = ()
) -> ShardStanding:
    return ShardStanding("held", epoch, owner, granted=granted, parents=parents)


def moving(
    owner: str, then: str | None, epoch: int = 1, granted: int = VERSION, stopped: bool = False
) -> ShardStanding:
    return ShardStanding("moving", epoch, owner, then, granted, stopped=stopped)


def done(epoch: int = 1, parents: tuple[int, ...] = ()) -> ShardStanding:
    return ShardStanding("done", epoch, parents=parents)


def member(incarnation: int = 1, timeout_s: float = 10.0) -> Member:
    return Member(incarnation, frozenset({STREAM}), timeout_s=timeout_s)


def built(
    shards: Mapping[int, ShardStanding],
    *members: str,
    order: bool = False,
    allocator: Allocator = balanced,
) -> Group:
    """A group on one stream, its members in their first incarnation."""
    return Group(
        NAME,
        version=VERSION,
        exists=True,
        order=order,
        allocator=allocator,
        members={name: member() for name in members},
        streams={STREAM: 1},
        shards={at(index): standing for index, standing in shards.items()},
    )


def facts(
    *shards: int | ShardFacts, stream: str = STREAM, id: int = 1, seen: int = NOW
) -> StreamFacts:
    """The facts of a stream; a number stands for an open shard with its parents in LogHub's
    picture."""
    rows = (ShardFacts(s, LINEAGE.get(s, ())) if isinstance(s, int) else s for s in shards)
    return StreamFacts(stream, id, tuple(rows), seen)


def finished(index: int, epoch: int) -> ShardFacts:
    return ShardFacts(index, LINEAGE.get(index, ()), finished_at=epoch)


def rows_of(count: int) -> StreamFacts:
    """The facts of a stream of ``count`` shards, none of them the parent of another."""
    return StreamFacts(STREAM, 1, tuple(ShardFacts(index) for index in range(count)), NOW)


def join(
    name: str,
    streams: StreamFacts,
    incarnation: int = 1,
    *,
    allocator: Allocator = balanced,
    order: bool = False,
) -> Join:
    return Join(name, incarnation, (streams,), allocator, order=order)


def stepped(group: Group, *events: Event) -> Group:
    """The group after events that it does not refuse."""
    for event in events:
        group, reply = step(group, event)
        assert not isinstance(reply, Denied), reply
    return group


def answer(
    version: int,
    shards: Mapping[int, int],
    *,
    beat: int = 0,
    timeout_s: float = 10.0,
    fault: str = "",
) -> Granted:
    """The answer to a member of a group on one stream."""
    return Granted(
        version,
        {at(index): epoch for index, epoch in shards.items()},
        streams={STREAM: 1},
        beat=beat,
        timeout_s=timeout_s,
        fault=fault,
    )


def granted(group: Group, event: Event) -> tuple[Group, dict[int, int]]:
    """The group after the event, and what the member was granted: epochs by index."""
    group, reply = step(group, event)
    assert isinstance(reply, Granted), reply
    return group, {shard.index: epoch for shard, epoch in reply.shards.items()}


def beat(
    group: Group,
    name: str,
    held: Mapping[int, int] | None = None,
    *,
    seen: int | None = None,
    beat: int = 1,
) -> Heartbeat:
    """A heartbeat of a member that has seen the group as it is and works on its grants."""
    mine = group.owned(name)
    works_on = (
        {shard: s.epoch for shard, s in mine.items() if s.state == "held"}
        if held is None
        else {at(index): epoch for index, epoch in held.items()}
    )
    incarnation = group.members[name].incarnation
    return Heartbeat(name, incarnation, beat, group.version if seen is None else seen, works_on)


def settled(group: Group) -> Group:
    """The group after its members have let go of all shards that they must let go."""
    for _ in range(10):
        before = group
        for name in sorted(group.members):
            group = stepped(group, beat(group, name))
        if group is before:
            return group
    raise AssertionError(f"not settled: {group}")


def owners(group: Group) -> dict[int, str | None]:
    return {shard.index: standing.owner for shard, standing in group.shards.items()}


def counts(group: Group) -> dict[str, int]:
    """How many shards each member owns."""
    found = Counter(s.owner for s in group.shards.values() if s.owner is not None)
    return {name: found[name] for name in group.members}


def moves(group: Group) -> list[tuple[int, str, str, str]]:
    """The moves of the last step, with shards by their index."""
    return [(move.shard.index, *move[1:]) for move in group.moves]


def moved(before: Group, after: Group) -> int:
    """How many shards have another owner."""
    return sum(owners(before)[index] != owner for index, owner in owners(after).items())


def all_to_first(shard: ShardId | None = None, owner: str = "") -> Allocator:
    """An allocator that gives all shards to the first member, except ``shard`` to ``owner``."""

    def deal(members: Members, shards: Shards, _: object) -> Assignment:
        if shard is None or owner not in {m.name for m in members}:
            return {members[0].name: shards}
        return {members[0].name: [s for s in shards if s != shard], owner: [shard]}

    return Allocator("table", deal=deal)


# Any group that can be reached


class Op(NamedTuple):
    """An event as small numbers, which mean something for any group."""

    kind: int
    who: int
    where: int
    how: int


OPS = st.builds(Op, st.integers(0, 14), st.integers(0, 3), st.integers(0, 8), st.integers(0, 7))

_NAMES = ("A", "B", "C", "D")
_BILLS = 2


def reached(ops: list[Op]) -> Group:
    group = Group(NAME)
    for op in ops:
        group, _ = step(group, event_of(group, op))
    return group


def event_of(group: Group, op: Op) -> Event:
    """An event. If ``how`` is even it mostly names the group as it is, else another state."""
    name = _NAMES[op.who]
    known = group.members.get(name)
    incarnation = known.incarnation if known is not None and op.how % 4 != 3 else op.how
    shard = at(op.where) if op.where < 7 else at(op.where - 7, "bills")
    standing = group.shards.get(shard)
    epoch = (standing.epoch if standing is not None else group.floor) + op.how % 2
    mine = group.owned(name)
    match op.kind:
        case 0 | 1:
            new = incarnation if op.how == 5 else group.version + 1
            streams = (_facts_of(group, op),) if op.who else (_facts_of(group, op), _bills(group))
            return Join(name, new, streams, balanced, 1.0, op.how > 3)
        case 2 | 3:
            works_on = {s: now.epoch for s, now in mine.items() if now.state == "held"}
            if op.how == 4:
                works_on = {}
            seen = group.version - (1 if op.how == 6 else 0)
            return Heartbeat(name, incarnation, op.where, seen, works_on)
        case 4:
            chosen = [s for s in mine if op.how % 2 or s.index % 3 == op.where % 3]
            return Release(name, incarnation, {s: mine[s].epoch for s in chosen})
        case 5:
            return Leave(name, incarnation)
        case 6:
            proof: Proof = "dead" if op.where % 2 else "silent"
            return Evict(name, incarnation, proof, silent_s=2.0 * op.where)
        case 7 | 8:
            return ShardsChanged(_facts_of(group, op))
        case 9:
            return Fence(shard, epoch)
        case 10:
            return Stop(shard, epoch)
        case 11:
            return Resume(shard, epoch)
        case 12:
            return ForceCheckpoint(shard, epoch, op.who, op.how > 3, LINEAGE[shard.index])
        case 13:
            order = (None, True, False)[op.where % 3]
            return Configure(group.configured + op.how % 2, order, timeout_s=1.0 + op.how)
        case _:
            if op.how < 6:
                return ShardsChanged(_bills(group) if op.how < 5 else StreamFacts("bills", 2, ()))
            return Delete(group.born + op.how % 2) if group.exists else Swept(group.version)


def _facts_of(group: Group, op: Op) -> StreamFacts:
    """The first shards of LogHub's picture, one of them closed and read to its end."""

    def fact(index: int) -> ShardFacts:
        standing = group.shards.get(at(index))
        epoch = standing.epoch if standing is not None else 0
        return ShardFacts(index, LINEAGE[index], epoch if index == op.where else None)

    seen = group.version - (2 if op.who == 3 else 0)
    return StreamFacts(STREAM, 1, tuple(map(fact, range(2 + op.how % 6))), seen)


def _bills(group: Group) -> StreamFacts:
    known = max(group.streams.get("bills", 0), _BILLS)
    return StreamFacts("bills", known, (ShardFacts(0),), group.version)
