"""The checker of live runs, on evidence written by hand: each invariant, violated and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.live.checker import CHECKS, judged
from tests.harness.live.evidence import EvidenceLine
from tests.harness.live.history import History

Lines = list[EvidenceLine]
Edit = Callable[[Lines], object]


def evidence_line(t: float, by: str, what: str, **facts: Any) -> EvidenceLine:
    return {"t": t, "by": by, "what": what, **facts}


def effect(t: float, by: str, epoch: int, offset: int, value: str, **facts: float) -> Lines:
    under = {"shard": 0, "epoch": epoch, "offset": offset}
    lease = {"left": 0.5, "waited": 0.01, **facts}
    return [
        evidence_line(t, by, "start", **under, value=value, **lease),
        evidence_line(t + 0.05, by, "done", **under),
    ]


def stored(t: float, by: str, number: int, epoch: int, start: int, end: int, how: str) -> Lines:
    done = {"shard": 0, "epoch": epoch, "from": start, "to": end}
    return [
        evidence_line(t, by, "storing", id=number, **done),
        evidence_line(t + 0.01, by, how, id=number),
    ]


def append(t: float, seq: int, *outcomes: str, offset: int = 0) -> Lines:
    which = {"producer": "p1", "seq": seq}
    lines = []
    for number, outcome in enumerate(outcomes):
        at = {"at": [[0, offset]]} if outcome == "ack" else {}
        lines.append(evidence_line(t + number / 100, "p1.1", "intent", **which, rows=1))
        if outcome != "silence":
            lines.append(evidence_line(t + number / 100 + 0.001, "p1.1", outcome, **which, **at))
    return lines


def grant(t: float, by: str, epoch: int, checkpoint: int | None, inc: int = 1) -> EvidenceLine:
    who = {"member": by.partition(".")[0], "inc": inc}
    return evidence_line(t, by, "grant", shard=0, epoch=epoch, checkpoint=checkpoint, **who)


def good() -> Lines:
    """m1 works on a shard until it is stopped, m2 takes over and lets go, m3 goes on."""
    values = [f"p1 {seq} 0" for seq in range(6)]
    return [
        evidence_line(0.0, "h", "run", session=1.0, heartbeat=0.25),
        *[line for seq in range(6) for line in append(0.1 + seq / 10, seq, "ack", offset=seq)],
        grant(1.0, "m1.1", 1, None),
        *effect(1.1, "m1.1", 1, 0, values[0]),
        *effect(1.2, "m1.1", 1, 1, values[1]),
        *stored(1.3, "m1.1", 1, 1, 0, 2, "stored"),
        *effect(1.4, "m1.1", 1, 2, values[2]),
        evidence_line(1.5, "h", "stop", who="m1.1"),
        grant(2.7, "m2.1", 2, 2),
        *effect(2.8, "m2.1", 2, 2, values[2]),
        evidence_line(2.9, "h", "cont", who="m1.1"),
        *stored(2.91, "m1.1", 2, 1, 2, 3, "fenced"),
        evidence_line(2.92, "m1.1", "lost", shard=0, epoch=1),
        *effect(3.0, "m2.1", 2, 3, values[3]),
        evidence_line(3.1, "m2.1", "end", shard=0, epoch=2),
        *stored(3.2, "m2.1", 1, 2, 2, 4, "stored"),
        evidence_line(3.3, "m2.1", "release", shard=0, epoch=2),
        grant(3.4, "m3.1", 4, 4),
        evidence_line(3.5, "h", "healed"),
        *effect(3.6, "m3.1", 4, 4, values[4]),
        *effect(3.7, "m3.1", 4, 5, values[5]),
        *stored(3.8, "m3.1", 1, 4, 4, 6, "stored"),
        evidence_line(3.9, "h", "produced"),
        evidence_line(4.0, "h", "consumed"),
        evidence_line(7.0, "h", "shares", members={"m1": 1, "m2": 0}),
        evidence_line(7.1, "h", "over"),
        evidence_line(8.0, "h", "final", shard=0, start=0, end=6, checkpoint=6, values=values),
    ]


def find(tale: Lines, what: str, number: int = 0, **facts: Any) -> EvidenceLine:
    found = [
        line
        for line in tale
        if line["what"] == what and all(line.get(name) == value for name, value in facts.items())
    ]
    return found[number]


def without(tale: Lines, what: str, **facts: Any) -> None:
    tale.remove(find(tale, what, **facts))


def is_another_record(tale: Lines) -> None:
    find(tale, "final")["values"][5] = "p1 9 0"


def half_of_it(tale: Lines) -> None:
    find(tale, "ack", seq=5)["what"] = "unknown"
    find(tale, "intent", seq=5)["rows"] = 2


def left_without_a_release(tale: Lines) -> None:
    find(tale, "release").update(what="leave", held=[[0, 2]])
    tale.extend(effect(3.05, "m2.1", 2, 4, "p1 4 0"))


def waited_unhurt(tale: Lines) -> None:
    without(tale, "stop")
    without(tale, "cont")
    tale.extend(effect(2.93, "m1.1", 1, 3, "p1 3 0", left=-0.8, waited=1.5))


def is_done_before_it_is_stored(tale: Lines) -> None:
    find(tale, "done", epoch=1, offset=1)["t"] = 1.301


def ends_late(tale: Lines) -> None:
    find(tale, "consumed")["t"] = find(tale, "over")["t"] = 40.0


VIOLATED: list[tuple[str, str, Edit]] = [
    ("G1", "an acknowledged record is not there", is_another_record),
    ("G1", "fewer places than records", lambda t: find(t, "intent").update(rows=2)),
    ("G1", "an acknowledged record is elsewhere", lambda t: find(t, "ack").update(at=[[0, 1]])),
    ("G2", "a record is missing in between", lambda t: find(t, "final")["values"].pop(2)),
    ("G3", "a failed append is there", lambda t: find(t, "ack", seq=5).update(what="fail")),
    ("G3", "an append is there twice", lambda t: find(t, "final")["values"].append("p1 5 0")),
    ("G3", "no producer appended it", lambda t: find(t, "final")["values"].append("p7 5 0")),
    ("G3", "a retry was told another place", lambda t: t.extend(append(0.9, 5, "ack", offset=4))),
    ("G3", "half of an append is there", half_of_it),
    ("G4", "two read differently", lambda t: find(t, "start", epoch=2).update(value="p1 8 0")),
    ("G5", "acknowledged out of order", lambda t: find(t, "ack", seq=2).update(at=[[0, 0]])),
    ("E1", "two were granted one epoch", lambda t: t.append(grant(1.05, "m2.1", 1, None))),
    ("E1", "two incarnations", lambda t: t.append(grant(1.05, "m1.1", 1, None, inc=2))),
    ("E1", "two work under one epoch", lambda t: t.extend(effect(1.35, "m2.1", 1, 2, "p1 2 0"))),
    ("E2", "an offset is left out", lambda t: find(t, "start", offset=1).update(offset=2)),
    ("E2", "it begins elsewhere", lambda t: find(t, "grant", epoch=4).update(checkpoint=3)),
    ("E2", "its checkpoint was not stored", lambda t: find(t, "storing").update(to=1)),
    ("E3", "stored before it was done", is_done_before_it_is_stored),
    ("E3", "stored and never done", lambda t: without(t, "done", epoch=4, offset=5)),
    ("E4", "done again, before its grant", lambda t: find(t, "start", offset=4).update(offset=3)),
    ("E5", "goes on unhurt", lambda t: t.extend(effect(2.75, "m1.1", 1, 3, "p1 3 0"))),
    ("E5", "goes on, its lease long over", lambda t: t.extend(
        effect(3.2, "m1.1", 1, 3, "p1 3 0", left=-0.8, waited=0.2))),
    ("E5", "is given a record after a long wait", waited_unhurt),
    ("E5", "goes on twice after a stop", lambda t: t.extend(
        [*effect(2.93, "m1.1", 1, 3, "p1 3 0", left=-0.9, waited=1.5),
         *effect(2.95, "m1.1", 1, 4, "p1 4 0", left=-0.92, waited=0.01)])),
    ("E5", "goes on long after a stop", lambda t: t.extend(effect(3.2, "m1.1", 1, 3, "p1 3 0"))),
    ("E6", "goes on after it let go", lambda t: t.extend(effect(3.35, "m2.1", 2, 4, "p1 4 0"))),
    ("E6", "done again after it let go", lambda t: t.extend(effect(3.05, "m2.1", 2, 4, "p1 4 0"))),
    ("E6", "granted before it let go", lambda t: find(t, "grant", epoch=4).update(t=3.25)),
    ("E6", "done again after it left", left_without_a_release),
    ("T4", "a checkpoint goes back", lambda t: find(t, "final").update(checkpoint=5)),
    ("T4", "a checkpoint beyond the end", lambda t: find(t, "final").update(checkpoint=7)),
    ("T5", "stored under an older grant", lambda t: find(t, "fenced").update(what="stored")),
    ("L1", "never consumed", lambda t: without(t, "consumed")),
    ("L1", "consumed too late", ends_late),
    ("L3", "unfair shares", lambda t: find(t, "shares").update(members={"m1": 2, "m2": 0})),
    ("L3", "still moving", lambda t: t.append(grant(6.9, "m1.1", 5, 6))),
    ("L5", "did not end", lambda t: t.append(evidence_line(7.0, "h", "stuck", who="m1.1"))),
    ("L5", "failed", lambda t: t.append(evidence_line(7.0, "m1.1", "failed", why="KeyError"))),
    ("L5", "replaced without a twin", lambda t: t.append(evidence_line(7.0, "m1.1", "replaced"))),
    ("K10", "an outcome is missing", lambda t: t.extend(append(2.0, 7, "silence"))),
]  # fmt: skip

ALLOWED: list[tuple[str, Edit]] = [
    ("nothing went wrong", lambda t: None),
    ("a failed append is absent", lambda t: t.extend(append(2.0, 7, "fail"))),
    ("an unknown append is absent", lambda t: t.extend(append(2.0, 7, "unknown"))),
    ("an unknown append is there", lambda t: find(t, "ack", seq=5).update(what="unknown")),
    ("a retry is told the same place", lambda t: t.extend(append(0.9, 5, "ack", offset=5))),
    ("failed, then acknowledged", lambda t: t.extend(append(0.55, 5, "fail"))),
    ("a killed producer tells nothing", lambda t: t.extend(
        [*append(2.0, 7, "silence"), evidence_line(2.1, "h", "kill", who="p1.1")])),
    ("one that was stopped finishes what it had begun", lambda t: t.extend(
        effect(2.93, "m1.1", 1, 3, "p1 3 0", left=-0.9, waited=1.5))),
    ("one that was starved finishes what it had begun", lambda t: t.extend(
        effect(2.75, "m1.1", 1, 3, "p1 3 0", left=-0.2, waited=0.4))),
    ("one that is replaced has not heard of it yet", lambda t: t.extend(
        [evidence_line(2.6, "h", "twin", who="m1.1"), *effect(2.75, "m1.1", 1, 3, "p1 3 0")])),
    ("one that was stopped lets go late, and it is done again", lambda t: t.extend(
        [evidence_line(3.11, "h", "stop", who="m2.1"), evidence_line(3.12, "h", "cont", who="m2.1"),
         *effect(3.05, "m2.1", 2, 4, "p1 4 0")])),
    ("a checkpoint was stored, and its member died before it knew", lambda t: without(
        t, "stored", by="m1.1")),
    ("a grant was over before its member heard of it", lambda t: t.append(
        grant(3.85, "m1.1", 3, 6))),
    ("one died at a fail point, and that was seen late", lambda t: t.extend(
        [evidence_line(1.5, "h", "exit", who="m2.1", code=-9), *append(2.0, 7, "silence"),
         evidence_line(6.0, "h", "exit", who="p1.1", code=-9)])),
    ("a twin was replaced", lambda t: t.extend(
        [evidence_line(2.95, "h", "twin", who="m1.1"), evidence_line(2.96, "m1.1", "replaced")])),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "how", "edit"), VIOLATED, ids=lambda one: str(one)[:60])
def test_a_violation_is_named(invariant: str, how: str, edit: Edit) -> None:
    tale = good()
    edit(tale)
    verdict = judged(History(tale))
    assert invariant in verdict.broken, f"{how}: {verdict}"


@pytest.mark.parametrize(("how", "edit"), ALLOWED, ids=lambda one: str(one)[:60])
def test_what_may_happen_is_no_violation(how: str, edit: Edit) -> None:
    tale = good()
    edit(tale)
    verdict = judged(History(tale))
    assert not verdict.violations, f"{how}: {verdict}"


def test_every_invariant_has_a_case() -> None:
    checked = {check.__name__.lstrip("_").upper() for check in CHECKS}
    assert checked == {invariant for invariant, _, _ in VIOLATED}


def test_counts_tell_what_happened() -> None:
    fenced_gives_up = evidence_line(2.93, "m1.1", "release", shard=0, epoch=1)
    counts = judged(History([*good(), fenced_gives_up])).counts
    assert counts["records"] == counts["acks"] == 6
    assert counts["effects"] == 7
    assert (counts["stops"], counts["kills"], counts["takeovers"], counts["moves"]) == (1, 0, 1, 1)
    assert (counts["doubles clean"], counts["doubles after harm"]) == (0, 1)
    assert counts["worst failover"] == pytest.approx(1.2)
    assert counts["fenced"] == 1
