"""The narrator of the demonstration: tells in sentences what happens to replicas, from who holds
which shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.core.computations.dispatch import Duty
from headrace.tools.proof.proof import DoneDeed

SETTLED_S = 1.0
"""A replica is said to have its shards once they have not changed for this long."""


Held = Mapping[str, frozenset[Duty]]
"""The duties that each replica holds."""


class StoryLine(NamedTuple):
    at_s: float
    text: str


class _LostDuties(NamedTuple):
    at_s: float
    duties: frozenset[Duty]
    """What the replica held when it was killed or stopped."""


class Narrator:
    def __init__(self) -> None:
        self.events: list[StoryLine] = []
        self._told_deeds = 0
        self._held: Held = {}
        self._orphaned: dict[str, _LostDuties] = {}
        self._stopped: set[str] = set()
        self._awaited: dict[str, tuple[float, str]] = {}
        """Replicas that shall get shards: since when, and since which event."""
        self._changed_s: dict[str, float] = {}

    def say(self, at_s: float, text: str) -> None:
        self.events.append(StoryLine(at_s, text))

    def look(
        self, at_s: float, held: Held, stopped: Iterable[str] = (), did: Sequence[DoneDeed] = ()
    ) -> None:
        """Take in who holds what at that time, and all deeds done so far."""
        for deed in did[self._told_deeds :]:
            self._tell_deed(deed)
        self._told_deeds = len(did)
        for name in [name for name in self._orphaned if self._are_taken(name, held)]:
            self._tell_taken(name, at_s, held)
        for name in sorted(self._stopped.difference(stopped)):
            self._stopped.remove(name)
            self._tell_resumed(name, at_s, held)
        self._see_who_came(at_s, held)
        self._held = held

    def _see_who_came(self, at_s: float, held: Held) -> None:
        for name, has in held.items():
            if name not in self._held:
                self._awaited.setdefault(name, (at_s, "its start"))
            if has != self._held.get(name):
                self._changed_s[name] = at_s
        for name in [name for name in self._awaited if held.get(name)]:
            changed_s = self._changed_s[name]
            if at_s - changed_s >= SETTLED_S:
                since_s, what = self._awaited.pop(name)
                took_s = changed_s - since_s
                self.say(at_s, f"{name} has {_shards(held[name])}, {took_s:.1f} s after {what}")

    def _tell_deed(self, did: DoneDeed) -> None:
        if did.kind == "start":
            self.say(did.at_s, f"a further replica is started: {did.name}")
            self._awaited[did.name] = did.at_s, "its start"
            return
        if did.kind == "stop":
            self._stopped.add(did.name)
        had = self._held.get(did.name, frozenset())
        self._orphaned[did.name] = _LostDuties(did.at_s, had)
        self.say(did.at_s, f"{did}: it held {_shards(had)}")

    def _are_taken(self, name: str, held: Held) -> bool:
        others = frozenset[Duty]().union(*(had for who, had in held.items() if who != name))
        return self._orphaned[name].duties <= others

    def _tell_taken(self, name: str, at_s: float, held: Held) -> None:
        since_s, duties = self._orphaned.pop(name)
        takers = sorted(who for who, had in held.items() if who != name and had & duties)
        if takers:
            have = "have" if len(takers) > 1 else "has"
            who = " and ".join(takers)
            self.say(at_s, f"{who} {have} what {name} held, {at_s - since_s:.1f} s later")

    def _tell_resumed(self, name: str, at_s: float, held: Held) -> None:
        if name in self._orphaned:
            del self._orphaned[name]
            self.say(at_s, f"{name} goes on, and still has its shards")
        else:
            self.say(at_s, f"{name} goes on, and cannot commit: others have its shards")
            if not held.get(name):
                self._awaited[name] = at_s, "it went on"


def _shards(duties: frozenset[Duty]) -> str:
    return f"{len(duties)} shard{'' if len(duties) == 1 else 's'}"
