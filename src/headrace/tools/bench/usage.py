"""Processor time and memory of processes, as the kernel reports them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_MB = 1024


class Memory(NamedTuple):
    """The memory of a process, in MB."""

    rss: float = 0.0
    """All pages in memory, also those of files and shared ones."""
    pss: float = 0.0
    """The same, with shared pages divided by the number of processes that share them."""
    own: float = 0.0
    """Pages of no file, such as the heap: a leak shows here."""

    def plus(self, other: Memory) -> Memory:
        return Memory(*(a + b for a, b in zip(self, other, strict=True)))


def cpu_s(process: int) -> float:
    """The processor time of all threads of a process since its start; 0 if it is gone."""
    with suppress(OSError):
        fields = _stat(process)
        return (int(fields[11]) + int(fields[12])) / _TICKS
    return 0.0


def memory(processes: Iterable[int]) -> Memory:
    """The memory of some processes together."""
    total = Memory()
    for process in processes:
        with suppress(OSError):
            total = total.plus(_memory(Path(f"/proc/{process}/smaps_rollup").read_text()))
    return total


def below(process: int) -> list[int]:
    """The descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                parents.setdefault(int(_stat(int(entry))[1]), []).append(int(entry))
    found: list[int] = []
    waiting = [process]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _stat(process: int) -> list[str]:
    """The fields of proc(5) from the state on: the name before may contain blanks."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _memory(rollup: str) -> Memory:
    kilobytes = {
        words[0]: int(words[1]) for line in rollup.splitlines()[1:] if (words := line.split())
    }
    return Memory(*(kilobytes[name] / _MB for name in ("Rss:", "Pss:", "Anonymous:")))
