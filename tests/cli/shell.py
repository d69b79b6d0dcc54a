"""The command line as the tests call it, in a directory of its own."""

from __future__ import annotations

import io
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.main import main


class Shell:
    """Runs ``headrace`` in a directory of its own."""

    def __init__(
        self, cwd: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]
    ) -> None:
        self.cwd = cwd
        self._patch = patch
        self._captured = captured
        self.environment = {k: v for k, v in os.environ.items() if k != "HEADRACE_HUB"}
        self.environment["COLUMNS"] = "200"
        patch.chdir(cwd)
        patch.delenv("HEADRACE_HUB", raising=False)
        patch.setenv("COLUMNS", "200")

    def __call__(
        self, *arguments: str, given: bytes = b"", code: int = 0, **environment: str
    ) -> tuple[str, str]:
        """What a command prints; it runs in this process, which is quicker."""
        with self._patch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["headrace", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
            with pytest.raises(SystemExit) as end:
                main()
        out, err = self._captured.readouterr()
        assert (end.value.code or 0) == code, f"{arguments}: {end.value.code}\n{out}\n{err}"
        return out, err

    def fails(self, *arguments: str, given: bytes = b"", **environment: str) -> str:
        """The one line that a wrong call ends with."""
        out, err = self(*arguments, given=given, code=2, **environment)
        assert out == ""
        assert err.startswith("headrace: ")
        assert err.count("\n") == 1, err
        return err

    def on_terminal(self, *arguments: str, typed: bytes = b"") -> str:
        """What a person sees of it."""
        ours, theirs = pty.openpty()
        os.write(ours, typed)
        child = subprocess.Popen(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=self.cwd,
            env=self.environment | {"TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as screen:
            shown = b"".join(iter(lambda: _seen(screen), b"")).decode()
        assert child.wait(60) == 0, shown
        return shown

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        # This process may ignore SIGINT, and a child inherits that: Ctrl-C has to work there.
        interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
        code = f"{interruptible}; from headrace.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=self.cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
        )


def _seen(screen: io.FileIO) -> bytes:
    try:
        return screen.read(65536)
    except OSError:
        return b""  # Linux raises this when the last user of the terminal has gone


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    log = logging.getLogger("headrace")
    before = log.level, list(log.handlers), log.propagate
    yield Shell(tmp_path, monkeypatch, capsys)
    log.level, log.handlers, log.propagate = before
