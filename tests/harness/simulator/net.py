"""The way of an event to a coordinator, and signs of life.

With servers, the way is a network that drops, doubles, delays and is cut. Without servers, as in
the library, it is a call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.groups.allocators import Allocator
from headrace.core.groups.events import Event, Reply
from headrace.core.groups.silence import MemberId
from headrace.core.ports import Sign
from headrace.groups.coordinator import Coordinator, Pause, Transact, Wish
from tests.harness.simulator.store import GROUP, SimStore
from tests.harness.simulator.swarm import Swarm
from tests.harness.simulator.world import Call, Node, World

ON_ITS_WAY_S_MAX = 60.0
"""No message is on its way for longer: else one sent during the faults would arrive at rest."""

Done = Callable[[Reply | HeadraceError], None]


class AskedEvent:
    """An event that a coordinator is applying, as the checks see it."""

    __slots__ = ("_coordinator", "event")

    def __init__(self, event: Event, coordinator: Coordinator) -> None:
        self.event = event
        self._coordinator = coordinator

    def knows(self, allocator: Allocator) -> Allocator:
        """The allocator as the coordinator that applies the event knows it."""
        return self._coordinator.allocator(allocator.name, allocator.version)


def drive(
    node: Node, store: SimStore, asking: Generator[Wish, Any, Reply], asked: AskedEvent, done: Done
) -> None:
    """Answer what a coordinator asks of the store; each wish is an event of its own."""
    world = node.world

    def advance(value: Any = None, error: HeadraceError | None = None) -> None:
        try:
            wish = asking.send(value) if error is None else asking.throw(error)
        except StopIteration as stop:
            done(stop.value)
            return
        except HeadraceError as raised:
            done(raised)
            return
        match wish:
            case Pause():
                node.later(wish.seconds, advance)
            case Transact():
                write(wish)
            case _:
                store.ask(node, wish, advance, asked)

    def write(wish: Transact) -> None:
        """Write some time after the read: the process may be paused or die in between."""
        doom, node.doom = node.doom, None
        if doom is not None:
            world.counts["sometimes: coordinator dies between read and write"] += 1
            doom()
        node.later(world.about(0.02), lambda: store.ask(node, wish, advance, asked))

    advance()


class Net:
    """The network between members and coordinators."""

    def __init__(self, world: World, swarm: Swarm, store: SimStore) -> None:
        self.world = world
        self.swarm = swarm
        self.store = store
        self.faulty = True
        self.cut: set[tuple[str, str]] = set()
        """Pairs of processes: nothing gets from the first to the second."""
        self.muted: set[str] = set()
        """Processes that receive messages, and whose own are dropped."""
        self.servers: list[tuple[Node, Coordinator]] = []
        self._beats: dict[MemberId, int] = {}
        self._owners: dict[MemberId, tuple[Node, int]] = {}
        self.signed_at_s: dict[MemberId, float] = {}
        self.signs_fail = False

    def call(
        self,
        node: Node,
        own: Coordinator,
        event: Event,
        done: Done,
        still: Callable[[], bool] | None = None,
    ) -> None:
        """Send an event to a coordinator. It arrives once, never, or twice; so does the answer."""
        if not self.servers or still is not None:
            drive(node, self.store, own.asking(GROUP, event, still), AskedEvent(event, own), done)
            return
        server, coordinator = self.world.dice.choice(self.servers)
        life = node.life

        def received() -> None:
            asking = coordinator.asking(GROUP, event, None)
            drive(server, self.store, asking, AskedEvent(event, coordinator), answered)

        def answered(reply: Reply | HeadraceError) -> None:
            self.send(server.name, node, lambda: done(reply), life)

        self.send(node.name, server, received)

    def send(self, sender: str, to: Node, call: Call, life: int | None = None) -> None:
        if sender in self.muted:
            return
        if not self.faulty:
            to.later(self.world.about(0.005), call, life)
            return
        usual_s = max(self.swarm.latency_s, 0.01) * 3
        delays_s = [] if self.world.chance(self.swarm.drop) else [usual_s]
        if self.world.chance(self.swarm.double):
            delays_s.append(self.world.dice.choice((usual_s, 20.0)))
        for delay_s in delays_s:
            if (sender, to.name) not in self.cut:
                late = self.world.chance(self.swarm.spikes * 3)
                on_its_way_s = self.world.about(5.0 if late else delay_s)
                to.later(min(on_its_way_s, ON_ITS_WAY_S_MAX), call, life)

    # Signs of life: small files beside the store, or what a server received

    def sign(self, node: Node, who: MemberId, beat: int, given: Call) -> None:
        """Write a sign of life; ``given`` is called once others can see it."""
        if node.name in self.muted:
            return
        if self.faulty and (self.signs_fail or self.world.chance(self.swarm.drop / 4)):
            return
        self._owners[who] = node, node.life

        def written() -> None:
            if beat > self._beats.get(who, -1):
                self._beats[who] = beat
                self.signed_at_s[who] = self.world.now_s
            node.later(0.0005, given)

        node.later(self.world.about(0.002), written)

    def look(self, who: MemberId) -> Sign | None:
        if who not in self._beats:
            return None
        return Sign(not self.swarm.dead_is_seen or self.lives(who), self._beats[who])

    def lives(self, who: MemberId) -> bool:
        node, life = self._owners[who]
        return node.alive and node.life == life
