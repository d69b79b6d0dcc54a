"""When an observer may call a member gone: by what it has seen itself, on its own clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.events import Proof
from penstock.core.ports import Sign

Watched = tuple[str, int]
"""A member's name and incarnation."""


class _Seen(NamedTuple):
    beat: int | None
    since_s: float


class Watch:
    """Watches the members of one group. Times are the observer's own, monotonic.

    A member is silent when its beat has stayed the same for a whole session of looking. An observer
    that did not look for a while begins anew: when everything slept, nobody is gone."""

    def __init__(self, gap_s_max: float) -> None:
        self._gap_s_max = gap_s_max
        self._looked_s: float | None = None
        self._seen: dict[Watched, _Seen] = {}

    def look(
        self, signs: Mapping[Watched, tuple[Sign | None, float]], now_s: float
    ) -> dict[Watched, Proof]:
        """Those of the members that are gone, with the proof: judged by their last sign and how
        long they may be silent."""
        if self._looked_s is None or now_s - self._looked_s > self._gap_s_max:
            self._seen.clear()
        self._looked_s = now_s
        self._seen = {who: seen for who, seen in self._seen.items() if who in signs}
        gone: dict[Watched, Proof] = {}
        for who, (sign, session_s) in signs.items():
            proof = self._judged(who, sign, now_s, session_s)
            if proof is not None:
                gone[who] = proof
        return gone

    def still_gone(self, who: Watched, sign: Sign | None, proof: Proof) -> bool:
        """Whether nothing was heard since: asked right before the eviction is written."""
        if sign is not None and not sign.alive:
            return True
        if proof == "dead":
            return sign is None
        seen = self._seen.get(who)
        return seen is not None and seen.beat == (None if sign is None else sign.beat)

    def _judged(
        self, who: Watched, sign: Sign | None, now_s: float, session_s: float
    ) -> Proof | None:
        if sign is not None and not sign.alive:
            return "dead"
        beat = None if sign is None else sign.beat
        seen = self._seen.get(who)
        if seen is None or seen.beat != beat:
            self._seen[who] = _Seen(beat, now_s)
            return None
        return "silent" if now_s - seen.since_s > session_s else None
