"""Child processes for tests: with a clean environment, always reaped, awaited with a time limit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from headrace.process.failpoints import VARIABLE

SEED_VARIABLE = "HEADRACE_SEED"
SEED_DEFAULT = "20"
LOOK_S = 0.005

_KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "PYTHONPATH")
"""The variables that a child inherits. With the last it loads the same code as its parent."""


def seed() -> str:
    """The seed of all random choices of a run."""
    return os.environ.get(SEED_VARIABLE, SEED_DEFAULT)


def dice(purpose: str, chosen: str | None = None) -> random.Random:
    """A random generator for one purpose, from the seed of the run or from a chosen one."""
    return random.Random(f"{seed() if chosen is None else chosen} {purpose}")


def until(
    condition: Callable[[], object], what: str, within_s: float = 30.0, state: object = ""
) -> None:
    """Wait for a condition. The error names what was awaited, and the state."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            shown = state() if callable(state) else state
            raise AssertionError(f"not within {within_s:g} s: {what}; {shown}")
        time.sleep(LOOK_S)


class Child:
    """A process of this Python. It is killed and reaped when the ``with`` block ends."""

    def __init__(
        self, arguments: Sequence[str], *, fail: str = "", extra: dict[str, str] | None = None
    ) -> None:
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {"PYTHONWARNINGS": "error", SEED_VARIABLE: seed(), **(extra or {})}
        if fail:
            env[VARIABLE] = fail
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line that the child prints. If it ended, the error shows its standard error."""
        assert self.process.stdout is not None
        got = self.process.stdout.readline()
        if not got:
            assert self.process.stderr is not None
            self.process.wait(10)
            raise AssertionError(
                f"the child ended ({self.process.returncode}): {self.process.stderr.read()[-2000:]}"
            )
        return got.rstrip("\n")

    def tell(self, text: str = "") -> None:
        """Write a line to the standard input of the child."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ended(self, within_s: float = 60.0) -> int:
        """The exit code of the child, negative if a signal ended it."""
        return self.process.wait(within_s)

    def output(self, within_s: float = 120.0) -> str:
        """All that the child printed, once it has ended with code 0."""
        out, complaints = self.process.communicate(timeout=within_s)
        assert self.process.returncode == 0, f"{self.process.returncode}: {complaints[-2000:]}"
        return out

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def stopped(self) -> bool:
        return _state(self.pid) == "T"

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:  # the child died with unread input
                    continue


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "?"
