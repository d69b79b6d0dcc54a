"""A simulated observer: it watches members and streams. The real `SilenceWatch` decides which
members are gone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.core import store_keys
from headrace.core.errors import HeadraceError
from headrace.core.groups.events import Evict, ShardFacts, ShardsChanged, StreamFacts
from headrace.core.groups.group import Group
from headrace.core.groups.seat import Seat
from headrace.core.groups.silence import MemberId, SilenceWatch
from headrace.core.model import ShardId
from headrace.groups.coordinator import Coordinator, Get
from tests.harness.simulator.net import Net
from tests.harness.simulator.store import GROUP, STREAMS, SimStore
from tests.harness.simulator.swarm import HEARTBEAT_S
from tests.harness.simulator.worker import ProcessChecks
from tests.harness.simulator.world import Node


class SimObserver:
    """Watches the members and the streams of the group from one process."""

    def __init__(
        self,
        node: Node,
        net: Net,
        store: SimStore,
        coordinator: Coordinator,
        checks: ProcessChecks,
    ) -> None:
        self.node = node
        self.net = net
        self.store = store
        self.coordinator = coordinator
        self.checks = checks
        self._watch = SilenceWatch(gap_s_max=HEARTBEAT_S * 2)

    def start(self, own: Callable[[], Seat | None]) -> None:
        """Begin to look, with an empty memory: a killed process has lost what it saw."""
        self._watch = SilenceWatch(gap_s_max=HEARTBEAT_S * 2)

        def look() -> None:
            self.store.ask(self.node, Get(store_keys.group_key(GROUP)), found, None)
            self.node.later(HEARTBEAT_S / 2, look)

        def found(value: Any, error: HeadraceError | None) -> None:
            if value is None:
                return
            group = self.coordinator.read(GROUP, value)
            seat = own()
            self._judge(group, None if seat is None else (seat.member, seat.incarnation))
            self._tell_changes(group)

        look()

    def tell_read(self, shard: ShardId, epoch: int) -> None:
        """Tell the group that a shard was read under an epoch, which may be over by now."""

        def found(value: Any, error: HeadraceError | None) -> None:
            if value is not None:
                group = self.coordinator.read(GROUP, value)
                facts = facts_of(self.store, shard.stream, group, self.store.is_read)
                read = [
                    f._replace(finished_at=epoch) if f.index == shard.index else f
                    for f in facts.shards
                ]
                self._send(replace(facts, shards=tuple(read)))

        self.store.ask(self.node, Get(store_keys.group_key(GROUP)), found, None)

    def _judge(self, group: Group, own: MemberId | None) -> None:
        signs = {
            (name, member.incarnation): (
                self.net.look((name, member.incarnation)),
                member.timeout_s,
            )
            for name, member in group.members.items()
            if (name, member.incarnation) != own
        }
        watched_s = self.node.world.now_s - self.node.woke_s
        for evict in self._watch.look(signs, self.node.clock_s()):

            def still(evict: Evict = evict) -> bool:
                sign = self.net.look((evict.member, evict.incarnation))
                if not self._watch.still_gone(evict, sign):
                    return False
                self.checks.evicting(evict, watched_s)
                return True

            self.net.call(self.node, self.coordinator, evict, lambda reply: None, still)

    def _tell_changes(self, group: Group) -> None:
        for stream in STREAMS:
            info = self.store.streams.get(stream)
            known = group.streams.get(stream)
            unknown = info is not None and any(
                ShardId(stream, s.index) not in group.shards for s in info.shards if s.open
            )
            closed = info is not None and any(
                ShardId(stream, s.index) in group.shards for s in info.shards if not s.open
            )
            if unknown or closed or (info is None) != (known is None):
                # The facts are gathered later than the group they are compared with was read.
                life = self.node.world.about(self.store.swarm.latency_s)
                self.node.later(life, lambda stream=stream: self._gather(stream, group))  # type: ignore[misc]

    def _gather(self, stream: str, group: Group) -> None:
        self._send(facts_of(self.store, stream, group, self.store.is_read))

    def _send(self, facts: StreamFacts) -> None:
        self.net.call(self.node, self.coordinator, ShardsChanged(facts), lambda reply: None)


def facts_of(
    store: SimStore, stream: str, group: Group | None, finished: Callable[[ShardId], bool]
) -> StreamFacts:
    """The facts about a stream; the epochs are those of the group as it was read."""
    info = store.streams.get(stream)
    if info is None:
        known = 0 if group is None else group.streams.get(stream, 0)
        return StreamFacts(stream, known, ())
    shards = []
    for shard in info.shards:
        at = None
        if not shard.open and finished(ShardId(stream, shard.index)):
            standing = None if group is None else group.shards.get(ShardId(stream, shard.index))
            at = 0 if standing is None else standing.epoch
        shards.append(ShardFacts(shard.index, shard.parents, at))
    return StreamFacts(stream, info.id, tuple(shards), 0 if group is None else group.version)
