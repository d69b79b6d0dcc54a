"""Judges a stream: what was lost, doubled or out of order, found against expected. Pure.

Expected is what each writer of the stream makes of exactly the same input in an undisturbed run. So
every step is judged by itself: a record that an earlier step lost does not count again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.core.model import RecordId
from headrace.tools.proof.evidence import Found, Log, everything, size
from headrace.tools.proof.origins import last_step, plain_id

EXAMPLES_MAX = 3

Compared = Literal["origin", "content", "count"]


@dataclass(kw_only=True)
class Judgement:
    """The judgement of one stream. None means that it could not be determined; the notes say
    why."""

    found: int
    expected: int
    lost: int | None = 0
    doubled: int | None = 0
    out_of_order: int | None = 0
    unexpected: int = 0
    different: int = 0
    """How many records have other content than in the reference. They are reported, not judged."""
    compared: Compared = "origin"
    notes: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order or self.unexpected)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stream to judge."""

    found: Log
    expected: Mapping[str, Log]
    """What each writer makes of its input in an undisturbed run."""
    inputs: Mapping[str, Log]
    """What the writers have read, by stream."""
    batch: bool = False
    """Whether a writer handles batches: then the origin of an output depends on where batches
    end."""
    only_counted: str = ""
    """Why the records can only be counted, not compared; empty if they can be compared."""


def judged(case: Case) -> Judgement:
    if case.batch and not case.only_counted:
        return _by_content(case)
    judgement = Judgement(found=size(case.found), expected=sum(map(size, case.expected.values())))
    if case.only_counted:
        _count(case, judgement)
    else:
        _compare(case, judgement)
    if case.batch:
        judgement.out_of_order = None
    else:
        _check_order(case, judgement)
    _compare_made_of_nothing(case, judgement)
    return judgement


def same(first: Log, second: Log) -> bool:
    """Whether two undisturbed runs made outputs of the same origins."""
    one, other = (Counter(f.origin for f in everything([log])) for log in (first, second))
    return one == other


def _count(case: Case, judgement: Judgement) -> None:
    """Judge by counts: the outputs differ between undisturbed runs."""
    judgement.lost, judgement.compared = None, "count"
    judgement.doubled = _repeated(case)
    judgement.notes.append(
        f"{case.only_counted}; {judgement.found} outputs, {judgement.expected} undisturbed; only "
        "outputs of one origin were compared"
    )


def _repeated(case: Case) -> int:
    """How many outputs repeat an origin. Each writer makes an origin once for each record of the
    parent origin that it has read."""
    found = Counter(f.origin for f in everything([case.found]) if f.origin)
    read = Counter(f.origin for f in everything(case.inputs.values()) if f.origin)
    writers = len(case.expected)
    doubled = 0
    for origin, count in found.items():
        step = last_step(origin)
        parents = read[step.parent] if step is not None else 0
        doubled += max(count - writers * max(parents, 1), 0)
    return doubled


def _compare(case: Case, judgement: Judgement) -> None:
    expected = Counter(f.origin for f in everything(case.expected.values()) if f.origin)
    found = Counter(f.origin for f in everything([case.found]) if f.origin)
    lost, unexpected, doubled = [], [], []
    for origin, count in expected.items():
        lost += [origin] * (count - found[origin])
    for origin, count in found.items():
        if origin not in expected:
            unexpected.append(origin)
        doubled += [origin] * (count - max(expected[origin], 1))
    judgement.lost, judgement.doubled = len(lost), len(doubled)
    judgement.unexpected = len(unexpected)
    for what, origins in (("lost", lost), ("doubled", doubled), ("unexpected", unexpected)):
        judgement.examples += [f"{what}: {origin}" for origin in origins[:EXAMPLES_MAX]]
    if unexpected:
        judgement.notes.append(
            "unexpected outputs: a handler whose outputs depend on the clock, on random numbers or "
            "on values kept outside of state cannot be compared"
        )
    known = Counter(everything(case.expected.values()))
    other = Counter(everything([case.found])) - known
    judgement.different = sum(n for f, n in other.items() if f.origin in expected)
    judgement.different = max(judgement.different - len(doubled), 0)
    if judgement.different:
        judgement.notes.append(
            f"{judgement.different} outputs have other values than in an undisturbed run: values "
            "from the clock or random numbers, or wrong state"
        )


def _check_order(case: Case, judgement: Judgement) -> None:
    """Check that, inside a shard, records made from one input shard keep the order of that
    shard."""
    places = _places(case.inputs)
    writers = _Writers(case.expected)
    wrong: list[str] = []
    unknown = 0
    seen: set[tuple[str | None, str]] = set()
    for rows in case.found.values():
        latest: dict[tuple[str, str, int], tuple[int, int]] = {}
        for found in rows:
            by = writers(found)
            if found.origin is None or (by, found.origin) in seen:
                continue  # the second of two counts as doubled, not as late
            seen.add((by, found.origin))
            step = last_step(found.origin)
            there = None if step is None else _place(step.parent, places)
            if step is None or there is None or by is None:
                unknown += 1
                continue
            chain = by, there.stream, there.shard
            at = there.offset, step.nth
            if at < latest.get(chain, (-1, -1)):
                wrong.append(found.origin)
            else:
                latest[chain] = at
    judgement.out_of_order = len(wrong)
    judgement.examples += [f"out of order: {origin}" for origin in wrong[:EXAMPLES_MAX]]
    if unknown:
        judgement.notes.append(
            f"the order of {unknown} outputs was not checked: they came several ways"
        )


class _Writers:
    """Tells which of several writers made an output."""

    def __init__(self, expected: Mapping[str, Log]) -> None:
        self._only = next(iter(expected)) if len(expected) == 1 else None
        self._by: dict[Found, set[str]] = {}
        if self._only is None:
            for writer, log in expected.items():
                for found in everything([log]):
                    self._by.setdefault(found, set()).add(writer)

    def __call__(self, found: Found) -> str | None:
        if self._only is not None:
            return self._only
        by = self._by.get(found, set())
        return next(iter(by)) if len(by) == 1 else None


def _places(inputs: Mapping[str, Log]) -> dict[str, RecordId | None]:
    """The place of each input with an origin; None if several inputs have it."""
    found: dict[str, RecordId | None] = {}
    for stream, log in inputs.items():
        for shard, rows in log.items():
            for offset, row in enumerate(rows):
                if row.origin is not None:
                    there = RecordId(stream, shard, offset)
                    found[row.origin] = None if row.origin in found else there
    return found


def _place(parent: str, places: Mapping[str, RecordId | None]) -> RecordId | None:
    if parent in places:
        return places[parent]
    return plain_id(parent)


def _compare_made_of_nothing(case: Case, judgement: Judgement) -> None:
    """Note the outputs that were made from no record, for instance by timers."""
    expected = [f for f in everything(case.expected.values()) if f.origin is None]
    found = [f for f in everything([case.found]) if f.origin is None]
    if not expected and not found:
        return
    judgement.notes.append(
        f"{len(found)} outputs were made from no record (timers): {len(expected)} undisturbed, "
        "their number depends on the time"
    )


def _by_content(case: Case) -> Judgement:
    """Judge by content, as far as that does not depend on where batches end."""
    expected = Counter(f.content for f in everything(case.expected.values()))
    found = Counter(f.content for f in everything([case.found]))
    judgement = Judgement(
        found=found.total(), expected=expected.total(), out_of_order=None, compared="content"
    )
    missing, more = expected - found, found - expected
    if not missing and not more:
        judgement.notes.append("batches: compared by content, order not checked")
    elif not more:
        judgement.lost = missing.total()
        judgement.notes.append("batches: compared by content, order not checked")
    elif not missing and all(content in expected for content in more):
        judgement.doubled = more.total()
        judgement.notes.append("batches: compared by content, order not checked")
    else:
        judgement.lost, judgement.compared = None, "count"
        judgement.doubled = _repeated(case)
        judgement.notes.append(
            f"batches: what is made depends on where they end; {judgement.found} outputs, "
            f"{judgement.expected} undisturbed; only outputs of one origin were compared"
        )
    return judgement
