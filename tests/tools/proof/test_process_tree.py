"""A process tree: a replica is stopped with its Java and lanes, in other process groups too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.children import Child, until
from headrace.tools.proof.process_tree import (
    TreeProcess,
    is_there,
    send,
    stands_still,
    stop_tree,
    tree_of,
)

pytestmark = pytest.mark.slow

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""
CHILD = """
import os, time
if os.fork() == 0:
    os.setpgid(0, 0)
time.sleep(60)
"""


@pytest.fixture
def parent() -> Iterator[Child]:
    with Child(["-c", PARENT, CHILD]) as child:
        child.line()
        until(lambda: len(tree_of(child.pid)) == 3, "child and grandchild are there")
        tree = tree_of(child.pid)
        yield child
        send(tree, signal.SIGKILL)


def test_a_process_is_stopped_and_resumed_with_its_descendants(parent: Child) -> None:
    stopped = stop_tree(parent.pid)
    assert len(stopped) == 3
    until(lambda: all(stands_still(each.pid) for each in stopped), "all are stopped")
    send(stopped, signal.SIGCONT)
    until(lambda: not any(stands_still(each.pid) for each in stopped), "all go on")


def test_descendants_of_a_killed_process_are_still_known(parent: Child) -> None:
    first, *others = tree_of(parent.pid)
    parent.kill()
    assert not is_there(first)
    assert all(map(is_there, others))
    send(others, signal.SIGKILL)
    until(lambda: not any(map(is_there, others)), "they are gone")


def test_another_process_with_the_same_pid_gets_no_signal(parent: Child) -> None:
    send([TreeProcess(parent.pid, "0")], signal.SIGKILL)
    assert Path(f"/proc/{parent.pid}").exists()
    assert parent.process.poll() is None
