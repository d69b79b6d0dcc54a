"""Processor time and memory of processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from headrace.testing.children import until
from headrace.tools.bench import usage

MB = 2**20


def test_all_descendants_are_found() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        grandchild = int(shell.stdout.readline())
        try:
            assert {shell.pid, grandchild} <= set(usage.below(os.getpid()))
            assert usage.below(shell.pid) == [grandchild]
        finally:
            os.kill(grandchild, 9)


def test_processor_time_grows_with_work() -> None:
    before_s, began_s = usage.cpu_s(os.getpid()), time.process_time()
    until(lambda: sum(range(100_000)) and time.process_time() - began_s > 0.1, "some work")
    assert 0.05 < usage.cpu_s(os.getpid()) - before_s < 2


def test_a_process_that_is_gone_uses_nothing() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert usage.cpu_s(gone.pid) == 0
    assert usage.memory([gone.pid]) == usage.Memory()


def test_filled_memory_counts_as_own() -> None:
    before = usage.memory([os.getpid()])
    filled = bytearray(b"x") * (50 * MB)
    after = usage.memory([os.getpid()])
    assert len(filled) == 50 * MB
    assert 45 < after.own - before.own < 60
    assert 45 < after.rss - before.rss < 60
    twice = usage.memory([os.getpid(), os.getpid()])
    assert twice.own > 1.9 * after.own
