"""A process and all that it has started, wherever that has gone since: Java in a session of its
own, lanes in groups of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROUNDS_MAX = 10
"""One that is being stopped may still have started another."""


class TreeProcess(NamedTuple):
    pid: int
    started: str
    """By this it is told from a later process of the same number."""


def tree_of(pid: int) -> list[TreeProcess]:
    """The process itself first, then its children, then theirs."""
    parents: dict[int, list[TreeProcess]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            parents.setdefault(int(stat[1]), []).append(TreeProcess(int(entry.name), stat[19]))
    itself = _stat(pid)
    found = [] if itself is None else [TreeProcess(pid, itself[19])]
    for each in found:
        found += parents.get(each.pid, [])
    return found


def stop_tree(pid: int) -> list[TreeProcess]:
    """Who was stopped: all of them."""
    stopped: list[TreeProcess] = []
    for _ in range(ROUNDS_MAX):
        more = [each for each in tree_of(pid) if each not in stopped]
        if not more:
            break
        send(more, signal.SIGSTOP)
        stopped += more
    return stopped


def send(tree: Iterable[TreeProcess], number: int) -> None:
    """A signal to those who are still there."""
    for each in tree:
        if is_there(each):
            with suppress(ProcessLookupError):
                os.kill(each.pid, number)


def is_there(one: TreeProcess) -> bool:
    stat = _stat(one.pid)
    return stat is not None and stat[19] == one.started and stat[0] != "Z"


def stands_still(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] == "T"


def _stat(pid: int) -> list[str] | None:
    """What comes behind its name, from its state on; None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
