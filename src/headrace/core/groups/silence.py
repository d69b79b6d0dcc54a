"""When an observer may call a member gone: by what it has seen itself, on its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.core.groups.events import Evict
from headrace.core.ports import Sign

Watched = tuple[str, int]
"""A member's name and incarnation."""


class _Seen(NamedTuple):
    beat: int | None
    since_s: float


class SilenceWatch:
    """Watches the members of one group. Times are the observer's own, monotonic.

    A member is silent when its beat has stayed the same for a whole session of looking. An observer
    that did not look for a while begins anew: when everything slept, nobody is gone."""

    def __init__(self, gap_s_max: float) -> None:
        self._gap_s_max = gap_s_max
        self._looked_s: float | None = None
        self._seen: dict[Watched, _Seen] = {}

    def look(self, signs: Mapping[Watched, tuple[Sign | None, float]], now_s: float) -> list[Evict]:
        """Who is gone: judged by the last sign of each, and how long it may be silent.

        The time is taken after the signs were read: a silence begins when the beat was there
        already. That it lasted until then, `still_gone` finds out."""
        if self._looked_s is None or now_s - self._looked_s > self._gap_s_max:
            self._seen.clear()
        self._looked_s = now_s
        self._seen = {who: seen for who, seen in self._seen.items() if who in signs}
        judged = (self._judged(who, sign, now_s, may_s) for who, (sign, may_s) in signs.items())
        return [evict for evict in judged if evict is not None]

    def still_gone(self, evict: Evict, sign: Sign | None) -> bool:
        """Whether nothing was heard since: asked right before the eviction is written.

        There may have been other looks on the way here. So it must be the same silence, not just
        a beat that is the last one seen: that may be the one of a member that came back."""
        if sign is not None and not sign.alive:
            return True
        if evict.proof == "dead":
            return sign is None
        seen = self._seen.get((evict.member, evict.incarnation))
        if seen is None or seen.beat != (None if sign is None else sign.beat):
            return False
        assert self._looked_s is not None
        return self._looked_s - seen.since_s >= evict.silent_s

    def _judged(self, who: Watched, sign: Sign | None, now_s: float, may_s: float) -> Evict | None:
        if sign is not None and not sign.alive:
            return Evict(*who, "dead")
        beat = None if sign is None else sign.beat
        seen = self._seen.get(who)
        if seen is None or seen.beat != beat:
            self._seen[who] = _Seen(beat, now_s)
            return None
        silent_s = now_s - seen.since_s
        return Evict(*who, "silent", silent_s) if silent_s > may_s else None
