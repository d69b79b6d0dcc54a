"""When an observer may call a member gone: by the signs that the observer itself has seen, on its
own clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.groups.events import Evict
from headrace.core.ports import Sign

MemberId = tuple[str, int]
"""A member's name and incarnation."""


class _LastBeat(NamedTuple):
    """The last beat of a member, and since when the observer has seen no other."""

    beat: int | None
    since_s: float


class SilenceWatch:
    """Watches the members of one group. Times are of the observer's own monotonic clock.

    A member is silent if its beat has stayed the same for a whole session in which the observer
    looked. An observer that has not looked for a while begins anew: if the whole machine slept, no
    member is gone."""

    def __init__(self, gap_s_max: float) -> None:
        self._gap_s_max = gap_s_max
        self._looked_s: float | None = None
        self._beats: dict[MemberId, _LastBeat] = {}

    def look(
        self, signs: Mapping[MemberId, tuple[Sign | None, float]], now_s: float
    ) -> list[Evict]:
        """The members that are gone. ``signs`` has the last sign of each member, and how long it
        may be silent.

        ``now_s`` is taken after the signs were read, so a silence begins at a time when its beat
        was there already. Whether it lasts until the eviction, `still_gone` tells."""
        if self._looked_s is None or now_s - self._looked_s > self._gap_s_max:
            self._beats.clear()
        self._looked_s = now_s
        self._beats = {member: last for member, last in self._beats.items() if member in signs}
        judged = (
            self._judged(member, sign, now_s, silent_s_max)
            for member, (sign, silent_s_max) in signs.items()
        )
        return [evict for evict in judged if evict is not None]

    def still_gone(self, evict: Evict, sign: Sign | None) -> bool:
        """Whether the member has still given no sign; asked right before the eviction is written.

        There may have been other looks since. So the silence must be the same one. The last beat
        seen is not enough: it may be that of a member that came back."""
        if sign is not None and not sign.alive:
            return True
        if evict.proof == "dead":
            return sign is None
        last = self._beats.get((evict.member, evict.incarnation))
        if last is None or last.beat != (None if sign is None else sign.beat):
            return False
        assert self._looked_s is not None
        return self._looked_s - last.since_s >= evict.silent_s

    def _judged(
        self, member: MemberId, sign: Sign | None, now_s: float, silent_s_max: float
    ) -> Evict | None:
        if sign is not None and not sign.alive:
            return Evict(*member, "dead")
        beat = None if sign is None else sign.beat
        last = self._beats.get(member)
        if last is None or last.beat != beat:
            self._beats[member] = _LastBeat(beat, now_s)
            return None
        silent_s = now_s - last.since_s
        return Evict(*member, "silent", silent_s) if silent_s > silent_s_max else None
