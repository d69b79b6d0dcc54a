"""The checker of a live run: invariants by name, on evidence alone.

`G1`-`G5` are about the log, `E1`-`E6` about effects, `T4` and `T5` about checkpoints, `L1`-`L5`
about rest after the faults, `K10` about the evidence itself. docs/testing.md describes each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from tests.harness.live.counts import counts
from tests.harness.live.history import History, RecordEffect

STARVED_S = 0.3
"""How long a loaded machine may keep a process waiting between two of its instructions."""

READ_S = 3.0
READ_S_PER_RECORD = 0.01


class LiveViolation(NamedTuple):
    invariant: str
    shard: int | None
    text: str

    def __str__(self) -> str:
        where = "" if self.shard is None else f" shard {self.shard}:"
        return f"{self.invariant}:{where} {self.text}"


@dataclass
class LiveVerdict:
    violations: list[LiveViolation]
    counts: dict[str, int | float] = field(default_factory=dict)

    @property
    def broken(self) -> set[str]:
        return {violation.invariant for violation in self.violations}

    def __str__(self) -> str:
        shown = [
            f"{name} {value:.2f} s" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.counts.items()
        ]
        wrong = [f"  {violation}" for violation in self.violations[:40]]
        more = [f"  and {len(self.violations) - 40} more"] if len(self.violations) > 40 else []
        return "\n".join([", ".join(shown), *wrong, *more])


Violations = Iterator[LiveViolation]


def judged(history: History) -> LiveVerdict:
    violations = [found for check in CHECKS for found in check(history)]
    return LiveVerdict(violations, counts(history))


# The log


def _g1(history: History) -> Violations:
    """Every acknowledged record is at its offset."""
    for sent in history.sent.values():
        for places in sent.places:
            if len(places) != sent.rows:
                yield LiveViolation("G1", None, f"{sent.names()} was acknowledged at {places}")
            for name, (shard, offset) in zip(sent.names(), places, strict=False):
                found = _value_at(history, shard, offset)
                if found != name:
                    yield LiveViolation(
                        "G1", shard, f"{name} was acknowledged at {offset}, there is {found}"
                    )


def _g2(history: History) -> Violations:
    """Offsets are consecutive."""
    for shard, final in history.final.items():
        if len(final.values) != final.end - final.start:
            text = f"{len(final.values)} records from {final.start} to {final.end}"
            yield LiveViolation("G2", shard, text)


def _g3(history: History) -> Violations:
    """A failed append is absent; every other is present at most once and as a whole; a retry gets
    the same offsets."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for shard, final in history.final.items():
        for at, name in enumerate(final.values, final.start):
            places[name].append((shard, at))
    known = set()
    for sent in history.sent.values():
        names = sent.names()
        known.update(names)
        found = [name for name in names if name in places]
        if sent.surely_failed and found:
            yield LiveViolation("G3", None, f"{found[0]} has failed, and is at {places[found[0]]}")
        if len(found) not in (0, len(names)):
            yield LiveViolation("G3", None, f"of {names} only {found} are there")
        if any(one != sent.places[0] for one in sent.places):
            yield LiveViolation("G3", None, f"{names} was acknowledged at {sent.places}")
        for name in found:
            if len(places[name]) > 1:
                yield LiveViolation("G3", None, f"{name} is at {places[name]}")
    for name in places.keys() - known:
        yield LiveViolation("G3", places[name][0][0], f"no producer has appended {name!r}")


def _g4(history: History) -> Violations:
    """All members that read an offset read the same record."""
    for effect in history.all_effects():
        found = _value_at(history, effect.shard, effect.offset)
        if found != effect.value:
            text = f"{effect.by} read {effect.value} at {effect.offset}, the log has {found}"
            yield LiveViolation("G4", effect.shard, text)


def _g5(history: History) -> Violations:
    """In each shard, the acknowledgements of a producer have the order of their offsets."""
    acked = sorted((sent for sent in history.sent.values() if sent.places), key=lambda s: s.acked_s)
    last: dict[tuple[str, int], int] = {}
    for sent in acked:
        for shard, offset in sent.places[0]:
            if offset <= last.get((sent.producer, shard), -1):
                yield LiveViolation(
                    "G5", shard, f"{sent.producer} {sent.seq} is at {offset}, too early"
                )
            last[sent.producer, shard] = offset


# Effects


def _e1(history: History) -> Violations:
    """Only one member works under a grant."""
    for (shard, epoch), tenures in history.tenures.items():
        holders = {(one.by, one.member, one.incarnation) for one in tenures}
        if len(holders) > 1:
            yield LiveViolation("E1", shard, f"epoch {epoch} was granted to {sorted(holders)}")
    for (shard, epoch), effects in history.effects.items():
        doers = {effect.by for effect in effects}
        holders_by = {one.by for one in history.tenures[shard, epoch]}
        if doers - holders_by or len(doers) > 1:
            text = f"{sorted(doers)} worked under epoch {epoch} of {sorted(holders_by)}"
            yield LiveViolation("E1", shard, text)


def _e2(history: History) -> Violations:
    """Under a grant, offsets are consecutive from the checkpoint of the grant on; and that
    checkpoint was stored before."""
    for (shard, epoch), effects in history.effects.items():
        tenures = history.tenures[shard, epoch]
        expected = tenures[0].checkpoint if tenures else effects[0].offset
        for effect in effects:
            if effect.offset != expected:
                text = f"{effect.by} at {effect.offset} under epoch {epoch}, not at {expected}"
                yield LiveViolation("E2", shard, text)
            expected = effect.offset + 1
    for tenure in history.all_tenures():
        after = history.next_tenure(tenure)
        if after is not None and after.since_s < tenure.since_s:
            continue  # the grant was over before its member read the checkpoint
        possible = {0} | {
            storing.end
            for storing in history.by_shard[tenure.shard]
            if storing.epoch < tenure.epoch and storing.outcome != "fenced"
        }
        if tenure.checkpoint not in possible:
            text = f"epoch {tenure.epoch} begins at {tenure.checkpoint}, which was not stored"
            yield LiveViolation("E2", tenure.shard, text)


def _e3(history: History) -> Violations:
    """No checkpoint passes a record that was not handled before; in the end all are handled."""
    done: dict[tuple[int, int], float] = {}
    for effect in history.all_effects():
        key = effect.shard, effect.offset
        done[key] = min(effect.done_s, done.get(key, effect.done_s))
    for storing in history.storings:
        if storing.outcome != "stored":
            continue
        late = [
            offset
            for offset in range(storing.start, storing.end)
            if not done.get((storing.shard, offset), storing.asked_s + 1) <= storing.asked_s
        ]
        if late:
            text = f"{storing.by} stored {storing.end}, not done by then: {late[:5]}"
            yield LiveViolation("E3", storing.shard, text)
    for shard, final in history.final.items():
        never = [
            at for at in range(final.start, final.checkpoint) if done.get((shard, at), inf) == inf
        ]
        if never:
            yield LiveViolation(
                "E3", shard, f"checkpoint {final.checkpoint}, never done: {never[:5]}"
            )


def _e4(history: History) -> Violations:
    """A record is handled again only at or behind the checkpoint of the newer grant."""
    for shard in history.shards():
        done: dict[int, int] = {}
        for epoch in history.epochs(shard):
            tenures = history.tenures[shard, epoch]
            for effect in history.effects[shard, epoch]:
                before = done.get(effect.offset)
                if before is not None and tenures and effect.offset < tenures[0].checkpoint:
                    text = f"{effect.offset} was done under epoch {before} and again under {epoch}"
                    yield LiveViolation("E4", shard, f"{text}, from {tenures[0].checkpoint}")
            done |= {effect.offset: epoch for effect in history.effects[shard, epoch]}


def _e5(history: History) -> Violations:
    """No member begins a record after another has the shard, unless it was stopped before it could
    know."""
    for shard in history.shards():
        taken_s: float | None = None
        for epoch in reversed(history.epochs(shard)):
            for effect in history.effects[shard, epoch]:
                if taken_s is not None and effect.start_s > taken_s:
                    excused = _excused(history, effect, taken_s)
                    if not excused:
                        text = f"{effect.by} began {effect.offset} under epoch {epoch}"
                        late_s = effect.start_s - taken_s
                        yield LiveViolation(
                            "E5", shard, f"{text}, {late_s:.3f} s after it was taken"
                        )
            granted = [tenure.since_s for tenure in history.tenures[shard, epoch]]
            taken_s = min([*granted, *([] if taken_s is None else [taken_s])], default=None)


def _excused(history: History, zombie: RecordEffect, taken_s: float) -> bool:
    """Whether the lease ran out after the member had checked it, while it was stopped or
    starved."""
    harm = history.harms[zombie.by]
    if harm.twin_s <= zombie.start_s and zombie.start_s - taken_s <= 2 * history.heartbeat_s:
        return (
            True  # the newer process of the name takes over at once, the older one learns it later
        )
    if not -zombie.waited_s <= zombie.left_s <= 0:
        return False
    asked_s = zombie.start_s - zombie.waited_s
    stopped = any(begin <= zombie.start_s and end >= asked_s for begin, end in harm.stops)
    return stopped or -zombie.left_s <= STARVED_S


def _e6(history: History) -> Violations:
    """A member that lets a shard go has finished before another begins; none of its records is
    handled again."""
    for tenure in history.all_tenures():
        over_s = min(tenure.released_s, tenure.left_s)
        if over_s == inf or tenure.lost_s < over_s:
            continue
        own = [e for e in history.effects[tenure.shard, tenure.epoch] if e.by == tenure.by]
        late = [e.offset for e in own if e.start_s > over_s]
        if late:
            text = f"{tenure.by} let epoch {tenure.epoch} go and went on with {late[:5]}"
            yield LiveViolation("E6", tenure.shard, text)
        if history.harms[tenure.by].between(tenure.since_s, over_s):
            continue
        again = [
            later
            for effect in own
            for later in history.at_offset[tenure.shard, effect.offset]
            if later.epoch > tenure.epoch
        ]
        if again:
            text = f"{tenure.by} let epoch {tenure.epoch} go, {again[0].by} did again"
            yield LiveViolation("E6", tenure.shard, f"{text} {[e.offset for e in again[:5]]}")
        after = history.next_tenure(tenure)
        if after is not None and after.since_s < over_s:
            text = f"epoch {after.epoch} was granted before {tenure.by} let {tenure.epoch} go"
            yield LiveViolation("E6", tenure.shard, text)


# Checkpoints


def _t4(history: History) -> Violations:
    """A checkpoint never goes back, and never passes the end."""
    highest: dict[int, int] = defaultdict(int)
    for storing in sorted(history.storings, key=lambda s: s.epoch):
        if storing.outcome != "stored":
            continue
        if storing.end < highest[storing.shard]:
            text = f"{storing.by} stored {storing.end} under epoch {storing.epoch}"
            yield LiveViolation("T4", storing.shard, f"{text}, after {highest[storing.shard]}")
        highest[storing.shard] = max(storing.end, highest[storing.shard])
    for shard, final in history.final.items():
        if not highest[shard] <= final.checkpoint <= final.end:
            text = f"checkpoint {final.checkpoint}, stored was {highest[shard]}, end {final.end}"
            yield LiveViolation("T4", shard, text)


def _t5(history: History) -> Violations:
    """A checkpoint is stored under the grant in force: an older grant stores none beyond the begin
    of the newer one."""
    begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tenure in history.all_tenures():
        begins[tenure.shard].append((tenure.epoch, tenure.checkpoint))
    for storing in history.storings:
        if storing.outcome != "stored":
            continue
        for epoch, checkpoint in begins[storing.shard]:
            if epoch > storing.epoch and storing.end > checkpoint:
                text = f"{storing.by} stored {storing.end} under epoch {storing.epoch}"
                yield LiveViolation("T5", storing.shard, f"{text}, {epoch} began at {checkpoint}")
                break


# Rest


def bound_s(history: History) -> float:
    """The time in which a group comes to rest after the last fault."""
    return 2 * history.session_s + 4 * history.heartbeat_s


def _l1(history: History) -> Violations:
    """After the faults, every shard is read to its end in bounded time."""
    healed_s = history.at.get("healed")
    if healed_s is None:
        return
    left = sum(1 for e in history.all_effects() if e.start_s >= healed_s)
    within_s = bound_s(history) + READ_S + READ_S_PER_RECORD * left
    began_s = max(healed_s, history.at.get("produced", healed_s))
    consumed_s = history.at.get("consumed")
    if consumed_s is None or consumed_s - began_s > within_s:
        lags = {s: f.end - f.checkpoint for s, f in history.final.items() if f.end > f.checkpoint}
        took = "never" if consumed_s is None else f"after {consumed_s - began_s:.1f} s"
        yield LiveViolation(
            "L1", None, f"all consumed {took}, not in {within_s:.1f} s; lags {lags}"
        )


def _l3(history: History) -> Violations:
    """At rest, shares differ by one at most, and no shard moves."""
    if history.shares and max(history.shares.values()) - min(history.shares.values()) > 1:
        yield LiveViolation("L3", None, f"shards per member: {history.shares}")
    healed_s, over_s = history.at.get("healed"), history.at.get("over")
    if healed_s is None or over_s is None:
        return
    for tenure in history.all_tenures():
        if healed_s + bound_s(history) < tenure.since_s < over_s:
            text = f"granted to {tenure.by} {tenure.since_s - healed_s:.1f} s after the last fault"
            yield LiveViolation("L3", tenure.shard, text)


def _l5(history: History) -> Violations:
    """Every process that is told to end ends, and no consumer ends by itself."""
    for line in history.lines:
        if line["what"] == "stuck":
            yield LiveViolation("L5", None, f"{line['who']} did not end when it was told to")
        if line["what"] == "failed":
            yield LiveViolation("L5", None, f"{line['by']} failed: {line['why']}")
        if line["what"] == "replaced" and history.harms[line["by"]].twin_s > line["t"]:
            yield LiveViolation(
                "L5", None, f"{line['by']} was replaced, but not by a process of its name"
            )


def _k10(history: History) -> Violations:
    """No evidence was lost: an append without an outcome was the last one of its process."""
    silent = sum(sent.tries - len(sent.outcomes) for sent in history.sent.values())
    deaths = sum(1 for harm in history.harms.values() if harm.killed_s != inf)
    if silent > deaths:
        yield LiveViolation("K10", None, f"{silent} appends without an outcome, {deaths} deaths")


Check = Callable[[History], Violations]
CHECKS: tuple[Check, ...] = (
    _g1, _g2, _g3, _g4, _g5, _e1, _e2, _e3, _e4, _e5, _e6, _t4, _t5, _l1, _l3, _l5, _k10,
)  # fmt: skip


def _value_at(history: History, shard: int, offset: int) -> str | None:
    final = history.final.get(shard)
    if final is None or not 0 <= offset - final.start < len(final.values):
        return None
    return final.values[offset - final.start]
