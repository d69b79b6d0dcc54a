"""The evidence of members about the records they handled, and the figures that follow from it."""

from __future__ import annotations

import statistics
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from headrace.tools.bench.measure import quantile

ENTRY = struct.Struct(">HQQQ")
"""Shard, offset, time of the append, time of the handling (both monotonic, in ns)."""

_STAMP = struct.Struct(">Q")
VALUE_BYTES = 100


def stamp(now_ns: int) -> bytes:
    """A value with the time of its append in it."""
    return _STAMP.pack(now_ns).ljust(VALUE_BYTES, b".")


def stamped_ns(value: bytes) -> int:
    return int(_STAMP.unpack_from(value)[0])


class Handled(NamedTuple):
    """One record, handled by one member."""

    shard: int
    offset: int
    appended_ns: int
    handled_ns: int
    member: str


class Window(NamedTuple):
    """A part of the run, and what was done to the group at its start."""

    kind: Literal["calm", "join", "leave", "kill"]
    start_ns: int
    end_ns: int
    member: str = ""
    """The member that joined, left or was killed."""


class OwnerChange(NamedTuple):
    """A shard changed its owner: the last record of the old owner, the first of the new one."""

    last: Handled
    first: Handled


_handled_ns = attrgetter("handled_ns")


def written(file: Path, member: str, start: int = 0) -> tuple[list[Handled], int]:
    """The entries of a member from that byte on, and where to go on."""
    with file.open("rb") as opened:
        opened.seek(start)
        content = opened.read()
    whole = len(content) // ENTRY.size * ENTRY.size
    entries = [
        Handled(shard, offset, appended_ns, handled_ns, member)
        for shard, offset, appended_ns, handled_ns in ENTRY.iter_unpack(content[:whole])
    ]
    return entries, start + whole


def by_shard(handled: Iterable[Handled]) -> dict[int, list[Handled]]:
    """The entries by shard, in the order of handling."""
    ordered = sorted(handled, key=lambda one: (one.shard, one.handled_ns))
    return {shard: list(those) for shard, those in groupby(ordered, lambda one: one.shard)}


def between(handled: Sequence[Handled], start_ns: float, end_ns: float) -> Sequence[Handled]:
    """The records handled in that time, with the last before it and the first after it."""
    begin = bisect_right(handled, start_ns, key=_handled_ns)
    end = bisect_left(handled, end_ns, key=_handled_ns)
    return handled[max(begin - 1, 0) : end + 1]


def pause_ms(handled: Sequence[Handled], window: Window, until_ns: float) -> float | None:
    """The longest pause between two records of a shard that touches the window. It counts up to
    ``until_ns``: a later time belongs to the next window."""
    touching = pairwise(between(handled, window.start_ns, window.end_ns))
    pauses = [min(after.handled_ns, until_ns) - before.handled_ns for before, after in touching]
    return max(pauses) / 1e6 if pauses else None


def owner_changes(
    handled: Sequence[Handled], start_ns: float, until_ns: float
) -> list[OwnerChange]:
    """The changes of owner whose first new record was handled in that time."""
    return [
        OwnerChange(before, after)
        for before, after in pairwise(between(handled, start_ns, until_ns))
        if before.member != after.member and start_ns < after.handled_ns <= until_ns
    ]


def append_gaps_ms(
    shards: Mapping[int, Sequence[Handled]], windows: Iterable[Window]
) -> list[float]:
    """The longest pause of the producer, by window. No member can be steadier than the producer, so
    it shows how noisy the machine was."""
    appended_ns = sorted({one.appended_ns for those in shards.values() for one in those})
    gaps = []
    for window in windows:
        begin = bisect_left(appended_ns, window.start_ns)
        end = bisect_left(appended_ns, window.end_ns)
        within = appended_ns[max(begin - 1, 0) : end + 1]
        gaps += [max((b - a) / 1e6 for a, b in pairwise(within))] if len(within) > 1 else []
    return gaps


class Doubles(NamedTuple):
    clean: int
    after_kills: int


def doubles(handled: Sequence[Handled], killed_ns: Mapping[str, int]) -> Doubles:
    """How many records of a shard were handled again: after a kill, and without one."""
    first: dict[int, Handled] = {}
    clean = after_kills = 0
    for one in handled:
        before = first.setdefault(one.offset, one)
        if before is one:
            continue
        if killed_ns.get(before.member, one.handled_ns) < one.handled_ns:
            after_kills += 1
        else:
            clean += 1
    return Doubles(clean, after_kills)


def out_of_order(handled: Sequence[Handled]) -> int:
    """How many records of a shard came for the first time, but not right behind the one before."""
    seen: set[int] = set()
    following = wrong = 0
    for one in handled:
        if one.offset not in seen:
            seen.add(one.offset)
            wrong += one.offset != following
            following = one.offset + 1
    return wrong


def figures(
    handled: Iterable[Handled], windows: Sequence[Window], ends: Mapping[int, int]
) -> dict[str, Any]:
    """The figures of the whole run; ``ends`` are the ends of the shards after the last append."""
    shards = by_shard(handled)
    killed_ns = {window.member: window.start_ns for window in windows if window.kind == "kill"}
    found = _Found()
    for window, until_ns in zip(windows, _until(windows), strict=True):
        for those in shards.values():
            found.look(those, window, until_ns)
    twice = [doubles(those, killed_ns) for those in shards.values()]
    return {
        "joins": sum(window.kind == "join" for window in windows),
        "leaves": sum(window.kind == "leave" for window in windows),
        "kills": sum(window.kind == "kill" for window in windows),
        "records": sum(ends.values()),
        **_spread("unmoved_gap_ms", found.unmoved),
        **_spread("unmoved_gap_ms", found.calm, "_calm"),
        **_spread("moved_gap_ms", found.moved["join"] + found.moved["leave"]),
        **_spread("join_gap_ms", found.moved["join"]),
        **_spread("leave_gap_ms", found.moved["leave"]),
        **_spread("kill_gap_ms", found.moved["kill"]),
        **_spread("wait_ms", found.waits, "_calm"),
        **_spread("append_gap_ms", append_gaps_ms(shards, windows)),
        "doubles_on_clean_moves": sum(one.clean for one in twice),
        "doubles_after_kills": sum(one.after_kills for one in twice),
        "lost": sum(
            end - len({one.offset for one in shards.get(shard, [])}) for shard, end in ends.items()
        ),
        "out_of_order": sum(map(out_of_order, shards.values())),
    }


class _Found:
    """The pauses found so far, in milliseconds."""

    def __init__(self) -> None:
        self.calm: list[float] = []
        self.waits: list[float] = []
        """The times from append to handler, in calm windows."""
        self.unmoved: list[float] = []
        self.moved: dict[str, list[float]] = {"join": [], "leave": [], "kill": []}

    def look(self, handled: Sequence[Handled], window: Window, until_ns: float) -> None:
        """Look at one shard in one window; a change of owner may last until the next window."""
        moved = owner_changes(handled, window.start_ns, until_ns)
        if window.kind != "calm" and moved:
            for move in moved:
                kind, gap = _gap_ms(move, window)
                self.moved[kind].append(gap)
            return
        longest = pause_ms(handled, window, until_ns)
        if longest is not None:
            (self.calm if window.kind == "calm" else self.unmoved).append(longest)
        if window.kind == "calm":
            self.waits += [
                (one.handled_ns - one.appended_ns) / 1e6
                for one in between(handled, window.start_ns, window.end_ns)
                if window.start_ns < one.handled_ns <= window.end_ns
            ]


def _gap_ms(move: OwnerChange, window: Window) -> tuple[str, float]:
    """The pause of a change of owner. For a killed member it begins with the kill."""
    if window.kind == "kill" and move.last.member == window.member:
        return "kill", (move.first.handled_ns - window.start_ns) / 1e6
    kind = "leave" if window.kind == "kill" else window.kind
    return kind, (move.first.handled_ns - move.last.handled_ns) / 1e6


def _until(windows: Sequence[Window]) -> Iterator[float]:
    """Where the effects of each window end: where the next window begins."""
    for _, after in pairwise(windows):
        yield after.start_ns
    if windows:
        yield inf


def _spread(name: str, values: list[float], behind: str = "") -> dict[str, float | None]:
    if not values:
        return {f"{name}_p50{behind}": None, f"{name}_p99{behind}": None}
    return {
        f"{name}_p50{behind}": round(statistics.median(values), 1),
        f"{name}_p99{behind}": round(quantile(values, 0.99), 1),
    }
