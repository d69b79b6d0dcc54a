"""Deliberate bugs of groups, by name: each replaces one piece of the source."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

MEMBER = "headrace.core.groups.seat"
GROUP = "headrace.core.groups.machine"
DRAFT = "headrace.core.groups.draft"
WATCH = "headrace.core.groups.silence"
HANDED_OUT = "headrace.core.groups.handed_out"
TRANSACTION = "headrace.core.transaction"
COORDINATOR = "headrace.groups.coordinator"
GROUP_BYTES = "headrace.core.groups.group_bytes"
CHECKS = "tests.harness.simulator.checks"
OBSERVER = "tests.harness.simulator.observer"
REPLICA = "tests.harness.simulator.replica"
WORKER = "tests.harness.simulator.worker"


class Change(NamedTuple):
    module: str
    old: str
    new: str


class Mutation(NamedTuple):
    name: str
    seeds: int
    """How many seeds, from 0 on, the simulator needs at most to find it; 0: it is known to
    survive."""
    changes: tuple[Change, ...]
    stress: Mapping[str, float] = MappingProxyType({})
    """What these seeds have instead of what they drew, for bugs that show rarely otherwise."""


def _one(name: str, seeds: int, module: str, old: str, new: str, **stress: float) -> Mutation:
    return Mutation(name, seeds, (Change(module, old, new),), stress)


TWO_IN_FLIGHT = (
    Change(MEMBER, "if self._waiting_for is not None:\n            return None", "if False: ..."),
    Change(MEMBER, "if self._waiting_for != beat:\n            return []", "if False: ..."),
)
"""Rule 7 switched off: several heartbeats are on their way, and every answer counts."""

OLD_VERSION = Change(MEMBER, "case Granted() if reply.version >= self.seen:", "case Granted():")
RETAKEN = Change(
    MEMBER,
    "fresh = epoch > max(self._let_go.get(shard, 0), self.leaving.get(shard, 0))",
    "fresh = epoch > self.leaving.get(shard, 0)",
)
NOT_SEEN = Change(
    GROUP,
    "if standing.granted <= event.seen and shard not in event.held",
    "if shard not in event.held",
)
REGRANTED = Change(
    DRAFT,
    'self.go(shard, "let go", "free")\n                self._disown(shard)',
    'self.go(shard, "let go", "free")\n                self._disown(shard)\n'
    "                back = self.shards[shard]\n"
    "                self.shards[shard] = back._replace(epoch=back.epoch - 1)",
)
ANY_ANSWER = Change(MEMBER, "if self._waiting_for != beat:\n            return []", "if False: ...")

LATE = {"servers": 2, "spikes": 0.06, "double": 0.4, "latency_s": 0.3, "kills": 200, "leaves": 150}
"""Faults under which answers overtake each other."""

UNSTEADY = {
    "kills": 400,
    "leaves": 150,
    "latency_s": 0.3,
    "members": 4,
    "shards": 8,
    "spikes": 0.02,
}
"""Faults under which members come and go so fast that transfers are called off half-way."""

MUTATIONS = [
    _one(
        "a shard is granted before its owner has let go", 10, DRAFT,
        'self.go(shard, "5", "moving")\n'
        "                self.shards[shard] = self.shards[shard]._replace(next=target)",
        'self.go(shard, "5", "held" if target else "free")\n'
        "                self._grant(shard, target) if target else self._disown(shard)",
    ),
    _one(
        "a commit is not checked against the epoch", 10, TRANSACTION,
        "if epoch is None or epoch.value != grant.token or after is None:", "if after is None:",
    ),
    _one(
        "a grant does not raise the epoch", 10, DRAFT,
        "next=None, epoch=standing.epoch + 1", "next=None, epoch=max(standing.epoch, 1)",
    ),
    _one(
        "the group is written without a check", 10, COORDINATOR,
        "checks = {key: ABSENT if found is None else found.version}", "checks = {}",
    ),
    _one(
        "an old copy of the group is used", 10, COORDINATOR,
        "if known is None or group is None or known.version != found.version:",
        "if group is None:",
    ),
    _one(
        "a checkpoint read earlier is used again", 10, WORKER,
        "checkpoint = Checkpoint.decoded(value.value) if value else Checkpoint()",
        "checkpoint = vars(self.process).setdefault(\n"
        "                str(self.shard),\n"
        "                Checkpoint.decoded(value.value) if value else Checkpoint(),\n"
        "            )",
    ),
    _one(
        "records are committed before they are handled", 10, HANDED_OUT,
        "self._ends[start] = end\n", "self._ends[start] = end\n        self.done(start, 0.0)\n",
    ),
    _one(
        "a member in doubt goes on as the same incarnation", 10, REPLICA,
        "self._give_up(seat, self.world.about(1.0))",
        "[worker.stop() for worker in self.workers.values()]\n"
        "        self.workers = {}\n"
        "        seat.signed(self.node.clock_s())\n"
        "        for shard, epoch in seat.held.items():\n"
        "            self._begin(shard, epoch)",
    ),
    _one(
        "a member never doubts its lease", 10, MEMBER,
        "return now_s >= self.lease_s",
        "return self.over",
    ),
    _one(
        "a child is handed out before its parents are read", 10, DRAFT,
        'if self.shards[parent].state != "done":\n                    return True',
        "if False: ...",
    ),
    _one(
        "only direct parents are waited for", 40, DRAFT,
        "met.add(parent)\n                ahead.append(parent)", "met.add(parent)",
        order=True, splits=150, forces=60, kills=60,
    ),
    _one(
        "an older incarnation may speak for the newer", 10, GROUP,
        "return member is not None and member.incarnation == incarnation",
        "return member is not None",
    ),
    _one(
        "an older incarnation may take the place of the newer", 40, GROUP,
        "if known is not None and event.incarnation <= known.incarnation:",
        "if known is not None and event.incarnation == known.incarnation:",
    ),
    _one(
        "a late join brings back a member that is gone", 40, GROUP,
        "if event.incarnation <= group.gone.get(event.member, -1):", "if False:",
        servers=2, double=0.5, leaves=150, kills=150,
    ),
    _one(
        "members are evicted by name only", 20, GROUP,
        "def _gone(group: Group, event: Leave | Evict) -> tuple[Group, Reply]:\n"
        "    if not _is_member(group, event.member, event.incarnation):",
        "def _gone(group: Group, event: Leave | Evict) -> tuple[Group, Reply]:\n"
        "    if event.member not in group.members:",
    ),
    _one(
        "what is done is not committed while nothing follows", 10, HANDED_OUT,
        "return self._since is not None and now - self._since >= every_s",
        "return self.next - self.committed >= 3",
    ),
    Mutation(
        "a member is called silent too early", 10,
        (
            Change(
                WATCH,
                "silent_s = now_s - last.since_s", "silent_s = 3 * (now_s - last.since_s)",
            ),
            # Else the last look before the write finds that the member was not silent long enough.
            Change(
                WATCH, "return self._looked_s - last.since_s >= evict.silent_s", "return True",
            ),
        ),
    ),
    _one(
        "the group does not compare the silence with the timeout it knows", 40, GROUP,
        'return event.proof == "dead" or event.silent_s > timeout_s', "return True",
        configures=400, signs_fail=200, stale=0.3,
    ),
    _one(
        "an observer that slept judges by what it saw before", 20, WATCH,
        "if self._looked_s is None or now_s - self._looked_s > self._gap_s_max:", "if False:",
    ),
    _one(
        "a longer timeout holds before the group knows that the member knows", 40, GROUP,
        "timeout_s = min(group.timeout_s, group.members[member].timeout_s)",
        "timeout_s = group.timeout_s", configures=400, signs_fail=200, kills=0, pauses=0,
    ),
    _one(
        "a shorter timeout holds for members that have not seen it", 40, GROUP,
        "learnt = member.timeout_s != group.timeout_s and group.configured <= event.seen",
        "learnt = member.timeout_s != group.timeout_s", configures=400, signs_fail=200,
    ),
    _one(
        "checkpoints of an earlier group of the name count", 40, DRAFT,
        "current = facts.seen >= self.group.born", "current = True",
        order=True, splits=100, deletes=60,
    ),
    _one(
        "an empty shard hides what its ancestors have left", 40, DRAFT,
        'if standing.state == "done" and not waits:', 'if standing.state == "done":',
        order=True, splits=150, kills=60,
    ),
    _one(
        "a forced checkpoint does not raise the epoch", 20, GROUP,
        "draft.fence(event.shard)\n    if event.finished:", "if event.finished:",
    ),
    _one(
        "that a shard is read is told without the epoch it was read under", 40, OBSERVER,
        "f._replace(finished_at=epoch)",
        "f._replace(finished_at=group.shards[shard].epoch if shard in group.shards else 0)",
        order=True, splits=400, forces=1500, heals=True, kills=0, pauses=0, deletes=0,
    ),
    _one(
        "the epoch key outlives the owner", 40, COORDINATOR,
        "puts: dict[bytes, bytes | None] = dict.fromkeys(old)",
        "puts: dict[bytes, bytes | None] = {}",
    ),
    _one(
        "a stopped shard is dealt out", 20, DRAFT,
        'if s.state in ("free", "held", "moving") and not s.stopped',
        'if s.state in ("free", "held", "moving")',
    ),
    _one(
        "an owner is not told to let go", 10, GROUP,
        'if standing.state == "held"\n    }', "if True\n    }",
    ),
    _one(
        "epochs begin anew with a group of the same name", 20, GROUP,
        "floor=max(group.floor, highest),", "floor=0,",
    ),
    _one(
        "epochs begin anew with a shard that was forgotten", 20, DRAFT,
        "self.floor = max(self.floor, standing.epoch)", "pass",
    ),
    _one(
        "what an evicted member owned stays its own", 10, DRAFT,
        "if standing.owner == member:", "if False:",
    ),
    _one(
        "no member is ever evicted", 10, GROUP,
        "if isinstance(event, Evict) and not _may_be_gone(group, event):",
        "if isinstance(event, Evict):", lone=True, heals=True, dead_is_seen=True, twins=False,
    ),
    _one(
        "a member that joins is not told its grants", 10, GROUP,
        "return after, _granted(after, event.member)\n\n\ndef _release",
        "return after, Settled(after.version)\n\n\ndef _release", heals=True,
    ),
    _one(
        "a member that left is never let in again", 10, GROUP,
        "if event.incarnation <= group.gone.get(event.member, -1):",
        "if event.member in group.gone:", heals=True,
    ),
    _one(
        "a fence is said to stand and does not", 20, GROUP,
        "draft = Draft(group)\n    draft.fence(event.shard)\n    return",
        "draft = Draft(group)\n    return", fences=60,
    ),
    _one(
        "a group that was not dealt stays so", 20, GROUP,
        "if let_go or learnt or (group.pending and group.allocator.deal is not None):",
        "if let_go or learnt:", own_allocator=True, servers=0, heals=True, stops=300,
    ),
    _one(
        "a checkpoint is stored one short", 10, TRANSACTION,
        "tx.put(checkpoint_key, after.encoded())",
        "tx.put(checkpoint_key, after._replace(next=after.next - 1).encoded())",
    ),
    _one(
        "that a shard is stopped is not stored", 20, GROUP_BYTES,
        "_STATES.index(s.state) | _STOPPED * s.stopped", "_STATES.index(s.state)", stops=100,
    ),
    _one(
        "that a shard is stopped is not read back", 20, GROUP_BYTES,
        "bool(state & _STOPPED)", "False", stops=100,
    ),
    Mutation(
        "a child is handed out early, and only its effects are checked", 10,
        (
            Change(
                DRAFT,
                'if self.shards[parent].state != "done":\n                    return True',
                "if False: ...",
            ),
            Change(
                CHECKS,
                "for shard in changed:\n            self._check_order",
                "for shard in ():\n            self._check_order",
            ),
        ),
        {"order": True, "splits": 100},
    ),
    Mutation("a grant is thought released before it was seen", 10, (NOT_SEEN,)),
    _one(
        "work under an older epoch is not waited for", 40, GROUP,
        "if standing.granted <= event.seen and shard not in event.held",
        "if standing.granted <= event.seen and event.held.get(shard) != standing.epoch",
        fences=400, leaves=200, slow=120, latency_s=0.3, servers=0,
    ),
    Mutation("what was let go is given back under its epoch", 10, (REGRANTED,)),
    Mutation(
        "what was let go is taken up again under its epoch", 40, (RETAKEN,), UNSTEADY,
    ),
    Mutation("the answer to an older heartbeat is heeded", 40, (ANY_ANSWER,), LATE),
    Mutation("an older version of the group is heeded", 0, (OLD_VERSION,), LATE),
    Mutation("several heartbeats at once", 40, TWO_IN_FLIGHT, LATE),
    Mutation(
        "several heartbeats at once, a grant thought released before it was seen", 10,
        (*TWO_IN_FLIGHT, NOT_SEEN),
    ),
    Mutation(
        "several heartbeats at once, what was let go is given back", 10,
        (*TWO_IN_FLIGHT, REGRANTED),
    ),
    Mutation(
        "several heartbeats at once, what was let go is taken up again", 40,
        (*TWO_IN_FLIGHT, RETAKEN), UNSTEADY,
    ),
    Mutation(
        "several heartbeats at once, an older version of the group is heeded", 40,
        (*TWO_IN_FLIGHT, OLD_VERSION), LATE,
    ),
]  # fmt: skip
