"""Ctrl-C while a command starts: exit code 130, and no trace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace
from headrace.testing.children import dice

INTERRUPTED = 130
AT_AN_IMPORT = """
import signal, sys
from headrace.__main__ import main

left = int(sys.argv.pop(1))

def count(event, _):
    global left
    left -= event == "import"
    if event == "import" and left == 0:
        signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.addaudithook(count)
try:
    main()
finally:
    print("imports left", left)
"""
UNGUARDED = ("/headrace/__init__.py", "/headrace/__main__.py")
"""Files whose first lines run before a command can handle Ctrl-C: they load nothing."""


def _interrupted_at(number: int) -> tuple[int, str, int]:
    """Exit code, standard error, and how many imports were left when it ended."""
    done = subprocess.run(
        [sys.executable, "-c", AT_AN_IMPORT, str(number), "--version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr, int(done.stdout.rpartition(" ")[2])


def test_ctrl_c_at_any_import_of_a_command_ends_it_without_a_trace() -> None:
    many = 1_000_000
    code, err, left = _interrupted_at(many)
    assert (code, err) == (0, "")
    imports = many - left
    assert imports > 100, "the command loads its modules when it starts"
    for number in sorted(dice("interrupts").sample(range(1, imports), 12)):
        code, err, left = _interrupted_at(number)
        assert (code, err) == (INTERRUPTED, ""), f"at import {number} of {imports}"
        assert left == 0


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start_shows_no_trace_of_ours(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders")
    chosen = dice("moments of the start")
    for delay_s in [chosen.uniform(0, 0.4) for _ in range(40)]:
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", "--hub", "hub", "tail", "orders", "--follow"],
            cwd=tmp_path,
            env=os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # This process may ignore SIGINT, and a child inherits that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        time.sleep(delay_s)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        assert out == ""
        if err:  # Python itself was interrupted, before it ran a command
            ours = [file for file in re.findall(r'File "([^"]+)"', err) if "/headrace/" in file]
            assert [file for file in ours if not file.endswith(UNGUARDED)] == [], err
        else:
            assert child.returncode in (INTERRUPTED, -signal.SIGINT), f"after {delay_s:.3f} s"
