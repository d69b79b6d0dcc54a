"""What a process saw, written outside the system under test: one line, one write, appended.

A killed process loses nothing that it has told. Times are of the machine's monotonic clock, so that
lines of different processes can be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EvidenceLine = dict[str, Any]
"""Always: ``t`` when, ``by`` whom, ``what``."""


class Evidence:
    def __init__(self, directory: Path, by: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(directory / f"{by}.log", flags, 0o600)
        self._by = by

    def tell(self, what: str, at_s: float | None = None, **facts: Any) -> None:
        t = time.monotonic() if at_s is None else at_s
        line = {"t": t, "by": self._by, "what": what, **facts}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def complain_into(directory: Path, by: str) -> None:
    """From now on what this process prints as an error goes to a file: nobody empties a pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(directory / f"{by}.err", flags, 0o600), 2)


def told(directory: Path, who: str = "") -> list[EvidenceLine]:
    """What everybody told, or those whose names begin so; in the order of time."""
    return sorted(_lines(directory, who), key=lambda line: float(line["t"]))


def _lines(directory: Path, who: str) -> Iterator[EvidenceLine]:
    for path in directory.glob(f"{who}*.log"):
        for text in path.read_bytes().rpartition(b"\n")[0].splitlines():
            yield json.loads(text)
