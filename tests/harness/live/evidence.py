"""The evidence of a process, written outside the system under test: one line, one write, appended.

A killed process loses no line that it has written. Times are of the machine's monotonic clock, so
that lines of different processes can be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EvidenceLine = dict[str, Any]
"""One line: always with ``t`` (the time), ``by`` (the process) and ``what``."""


class Evidence:
    def __init__(self, directory: Path, by: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(directory / f"{by}.log", flags, 0o600)
        self._by = by

    def tell(self, what: str, at_s: float | None = None, **facts: Any) -> None:
        t = time.monotonic() if at_s is None else at_s
        line = {"t": t, "by": self._by, "what": what, **facts}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def send_errors_to(directory: Path, by: str) -> None:
    """Send the standard error of this process to a file: no process reads the pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(directory / f"{by}.err", flags, 0o600), 2)


def lines_of(directory: Path, who: str = "") -> list[EvidenceLine]:
    """The lines of all processes, or of those whose names begin with ``who``, by time."""
    return sorted(_lines(directory, who), key=lambda line: float(line["t"]))


def _lines(directory: Path, who: str) -> Iterator[EvidenceLine]:
    for path in directory.glob(f"{who}*.log"):
        for text in path.read_bytes().rpartition(b"\n")[0].splitlines():
            yield json.loads(text)
