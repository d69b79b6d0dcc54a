"""Images: many damaged copies of a hub, each opened by a worker process that may die of it.

Workers take the images in turn and write the number of each image before they open it, so that a
death shows its image. A worker that died is followed by one that begins at the next image.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.testing.children import Child
from tests.harness.children import harness_child

WORKERS = 2


@dataclass
class ImagesOutcome:
    """The outcome of all images: how many of each kind, and each bad image."""

    seen: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def images(self) -> int:
        return self.seen.total()


def run_workers(
    module: str, arguments: list[str], extra: dict[str, str] | None = None
) -> ImagesOutcome:
    """Let workers, each ``python -m MODULE check …``, share and judge all images."""
    outcome = ImagesOutcome()
    began = time.monotonic()
    with scratch() as place:
        running = [_Worker(module, arguments, turn, place, extra) for turn in range(WORKERS)]
        for worker in running:
            worker.finish(outcome)
    outcome.seconds = time.monotonic() - began
    return outcome


class _Worker:
    def __init__(
        self,
        module: str,
        arguments: list[str],
        turn: int,
        place: Path,
        extra: dict[str, str] | None,
    ) -> None:
        self._module = module
        self._arguments = arguments
        self._turn = turn
        self._place = place / str(turn)
        self._place.mkdir()
        self._extra = extra
        self._results = self._place / "results"
        self._child = self._started(0)

    def _started(self, first: int) -> Child:
        own = [str(self._place), str(self._turn), str(WORKERS), str(first)]
        return harness_child(self._module, "check", *self._arguments, *own, extra=self._extra)

    def finish(self, outcome: ImagesOutcome) -> None:
        while True:
            with self._child as child:
                out, complaints = child.process.communicate(timeout=600)
                code = child.process.returncode
            for line in self._results.read_text().splitlines() if self._results.exists() else ():
                kind, image, text = json.loads(line)
                outcome.seen[kind] += 1
                if text:
                    outcome.bad.append(f"image {image}: {kind}: {text}")
            self._results.unlink(missing_ok=True)
            if code == 0:
                return
            at = (self._place / "at").read_text()
            if not at:
                raise AssertionError(f"a worker did not start ({code}): {out}{complaints[-2000:]}")
            outcome.seen["death"] += 1
            outcome.bad.append(f"image {at}: the process died ({code}): {complaints[-500:]}")
            self._child = self._started(int(at) + 1)


def judge(
    images: Iterable[tuple[int, bytes]], judged: Callable[[int, Path], tuple[str, str]]
) -> None:
    """In a worker: write each image to a directory, judge it there, and report the result.

    ``judged`` returns a kind, and a text if the kind is bad."""
    place, turn, workers, first = Path(sys.argv[-4]), *map(int, sys.argv[-3:])
    results = os.open(place / "results", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    at = os.open(place / "at", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, image in images:
        if number % workers != turn or number < first:
            continue
        os.pwrite(at, b"%d" % number, 0)
        hub = place / f"hub{number}"
        hub.mkdir(exist_ok=True)
        (hub / "data.mdb").write_bytes(image)
        kind, text = judged(number, hub)
        os.write(results, json.dumps([kind, number, text]).encode() + b"\n")
        for file in hub.iterdir():
            file.unlink()
        hub.rmdir()


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory in memory, if the machine has one: images are many and short-lived."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if roomy else None) as place:
        yield Path(place)
