"""A small disk for the hub of a live run: it can be filled and emptied."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    def __init__(self, place: Path, *, mounted: bool) -> None:
        self.hub = place / "hub"
        self.mounted = mounted
        """Whether it is a file system of its own; else only a fail point can act as a full disk."""
        self._ballast = place / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for nbytes in (2**20, 2**16, 4096, 1):
                try:
                    while file.write(b"\0" * nbytes) == nbytes:
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, nbytes: int) -> Iterator[Disk]:
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield Disk(place, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)
