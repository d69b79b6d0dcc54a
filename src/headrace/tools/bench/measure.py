"""Measures on a noisy machine: peers take turns, and the median of the turns counts."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.backends.lmdb.files import filesystem_of
from headrace.core.errors import BadSetting

Say = Callable[[str], None]
"""Shows a line about what is being measured."""


def timed(work: Callable[[], object]) -> float:
    """How many seconds the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(
    peer: Callable[[], float], ours: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """The medians of the peer's seconds, of our seconds, and of the ratio peer / ours of each
    round.

    The order changes from round to round, so that neither side always runs on the warmer
    machine."""
    peers: list[float] = []
    own: list[float] = []
    for turn in range(rounds):
        if turn % 2:
            own.append(ours())
            peers.append(peer())
        else:
            peers.append(peer())
            own.append(ours())
    ratios = [theirs / mine for theirs, mine in zip(peers, own, strict=True)]
    return statistics.median(peers), statistics.median(own), statistics.median(ratios)


def in_turns(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """The result of each run in each round. Another run begins each round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds):
        names = list(runs)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(runs[name]())
    return found


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@contextmanager
def workplace(directory: Path | None) -> Iterator[Path]:
    """A fresh directory on a real disk."""
    mounts = Path("/proc/self/mountinfo").read_text()
    for root in [directory] if directory else [Path(tempfile.gettempdir()), Path.cwd()]:
        if filesystem_of(os.path.realpath(root), mounts) not in ("tmpfs", "ramfs"):
            break
    else:
        raise BadSetting("only memory file systems here: name a directory on a disk with --dir")
    place = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=root))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
