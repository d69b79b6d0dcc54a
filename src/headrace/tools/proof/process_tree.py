"""A process and all its descendants, in whatever session or process group they are: Java has a
session of its own, lanes have process groups of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROUNDS_MAX = 10
"""How often the tree is read again: a process may start another before it is stopped."""


class TreeProcess(NamedTuple):
    pid: int
    started: str
    """When it was started: it tells the process from a later one with the same pid."""


def tree_of(pid: int) -> list[TreeProcess]:
    """The process first, then its children, then their children."""
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
    """Stop the process and all its descendants; return them."""
    stopped: list[TreeProcess] = []
    for _ in range(ROUNDS_MAX):
        more = [each for each in tree_of(pid) if each not in stopped]
        if not more:
            break
        send(more, signal.SIGSTOP)
        stopped += more
    return stopped


def send(tree: Iterable[TreeProcess], number: int) -> None:
    """Send a signal to the processes that still exist."""
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
    """The fields of proc(5) behind the name, from the state on; None if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
