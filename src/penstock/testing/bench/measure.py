"""Measuring on a noisy machine: peers take turns, and the median of the turns is what counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Progress = Callable[[str], None]


def timed(work: Callable[[], object]) -> float:
    """Seconds that the work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(
    peer: Callable[[], float], ours: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Medians of the peer's and our seconds, and of the ratio peer / ours of each round.

    The order changes from round to round, so that neither always runs on the warmer machine."""
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


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
