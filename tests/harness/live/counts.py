"""The counts of a live run: records, faults, takeovers, repeated records."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from math import inf

from tests.harness.live.history import History, Tenure


def counts(history: History) -> dict[str, int | float]:
    outcomes = list(history.sent.values())
    clean, forced, takeovers, worst_s = _doubles(history)
    return {
        "records": sum(len(final.values) for final in history.final.values()),
        "acks": sum(1 for sent in outcomes if sent.places),
        "unknowns": sum(1 for s in outcomes if not s.places and not s.surely_failed),
        "failed": sum(1 for s in outcomes if s.surely_failed),
        "kills": sum(1 for harm in history.harms.values() if harm.killed_s != inf),
        "stops": sum(len(harm.stops) for harm in history.harms.values()),
        "terms": history.counted("term"),
        "twins": history.counted("twin"),
        "full disks": history.counted("full"),
        "grants": sum(map(len, history.tenures.values())),
        "moves": sum(1 for one in history.all_tenures() if _let_go(history, one)),
        "takeovers": takeovers,
        "fenced": sum(1 for storing in history.storings if storing.outcome == "fenced"),
        "effects": sum(map(len, history.effects.values())),
        "doubles clean": clean,
        "doubles after harm": forced,
        "worst failover": worst_s,
        "longest gap": _gap_s(history),
    }


def _let_go(history: History, tenure: Tenure) -> bool:
    """Whether the member let go before another had the shard: a fenced member lets go later."""
    after = history.next_tenure(tenure)
    over_s = min(tenure.released_s, tenure.left_s)
    return over_s != inf and (after is None or over_s <= after.since_s)


def _doubles(history: History) -> tuple[int, int, int, float]:
    """How many records were handled again without harm to the member before, and after harm; how
    many takeovers there were; and the longest takeover in seconds."""
    clean = forced = takeovers = 0
    worst_s = 0.0
    for shard in history.shards():
        seen: dict[int, Tenure] = {}
        before: Tenure | None = None
        for epoch in history.epochs(shard):
            for tenure in history.tenures[shard, epoch]:
                if before is not None and min(before.released_s, before.left_s) > tenure.since_s:
                    takeovers += 1
                    worst_s = max(worst_s, _failover_s(history, before, tenure))
                before = tenure
                for effect in history.effects[shard, epoch]:
                    if (old := seen.get(effect.offset)) is not None:
                        harmed = history.harms[old.by].between(old.since_s, effect.start_s)
                        forced, clean = forced + harmed, clean + (not harmed)
                    seen[effect.offset] = tenure
    return clean, forced, takeovers, worst_s


def _failover_s(history: History, before: Tenure, after: Tenure) -> float:
    """The time from the last harm to the member before until the grant; 0 without harm."""
    harm = history.harms[before.by]
    at = [stop for stop, _ in harm.stops] + [harm.killed_s, harm.twin_s]
    last = max((one for one in at if before.since_s <= one <= after.since_s), default=after.since_s)
    return after.since_s - last


def _gap_s(history: History) -> float:
    """The longest time in which no record of a shard was handled, while producers worked."""
    starts: dict[int, list[float]] = defaultdict(list)
    until_s = history.at.get("produced", inf)
    for effect in history.all_effects():
        if effect.start_s <= until_s:
            starts[effect.shard].append(effect.start_s)
    gaps = (b - a for times in starts.values() for a, b in pairwise(sorted(times)))
    return max(gaps, default=0.0)
