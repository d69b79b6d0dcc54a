"""The replicas of a proof: real processes, killed, stopped, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headrace.process.failpoints import VARIABLE
from headrace.tools.proof.process_tree import (
    Relative,
    family_of,
    is_there,
    send,
    stands_still,
    stop_family,
)
from headrace.tools.proof.scratch import Scratch

TERM_S_MAX = 30.0
AGAIN_S = 1.0
"""One that ended by itself is started again so much later."""


class Ended(NamedTuple):
    """A replica that ended although nobody had done anything to it."""

    name: str
    code: int
    said: str


class Life:
    """One process, from its start to its end."""

    def __init__(self, slot: int, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.slot = slot
        self.name = name
        self.process = process
        self.log = log
        self.fail = ""
        self.resume_s: float | None = None
        """It is stopped until then;"""
        self.stopped: list[Relative] = []
        """all of it."""

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def stands_still(self) -> bool:
        """Whether somebody has stopped it: us, or a fail point."""
        return stands_still(self.process.pid)


class Replicas:
    def __init__(
        self,
        scratch: Scratch,
        arguments: Sequence[str],
        stopped_s: float,
        *,
        restarting: bool = True,
    ) -> None:
        """One that a fail point has stopped goes on after that time."""
        self.lives: dict[int, Life] = {}
        self.ended: list[Ended] = []
        """By themselves."""
        self.names: list[str] = []
        """Of all that were ever started."""
        self._scratch = scratch
        self._arguments = arguments
        self._stopped_s = stopped_s
        self._restarting = restarting
        self._due: dict[int, float] = {}
        """Slots to fill again, and when."""
        self._left: list[Relative] = []
        """What those left behind that were killed. It has to end by itself."""

    def start(self, slot: int, fail: str = "", extra: dict[str, str] | None = None) -> Life:
        name = f"r{slot + 1}"
        earlier = sum(each.partition(".")[0] == name for each in self.names)
        name += f".{earlier + 1}" if earlier else ""
        self.names.append(name)
        environment = self._scratch.environment() | (extra or {})
        if fail:
            environment[VARIABLE] = fail
        log = self._scratch.logs / f"{name}.log"
        with log.open("wb") as told:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "--hub", str(self._scratch.hub), "run",
                 *self._arguments, "--name", name],
                cwd=self._scratch.place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                process_group=0,
            )  # fmt: skip
        life = self.lives[slot] = Life(slot, name, process, log)
        life.fail = fail
        return life

    # Deeds

    def kill(self, life: Life) -> None:
        self._left += family_of(life.process.pid)[1:]
        life.process.kill()
        life.process.wait()
        self._wake(life)
        del self.lives[life.slot]
        self._restart(life, 0.0)

    def stop(self, life: Life, for_s: float) -> None:
        """All of it, Java and lanes included."""
        life.stopped = stop_family(life.process.pid)
        life.resume_s = time.monotonic() + for_s

    def resume(self, life: Life) -> None:
        life.resume_s = None
        self._wake(life)

    def end(self, life: Life) -> None:
        """Tell it to end, and wait."""
        self._see_end(life, self._tell_to_end(life))

    def _tell_to_end(self, life: Life) -> list[Relative]:
        """All that belongs to it."""
        self.lives.pop(life.slot, None)
        if life.stands_still():
            self.resume(life)
        family = family_of(life.process.pid)
        life.process.terminate()
        return family

    def _see_end(self, life: Life, family: list[Relative]) -> None:
        try:
            life.process.wait(TERM_S_MAX)
        except subprocess.TimeoutExpired:
            life.process.kill()
            life.process.wait()
            self.ended.append(Ended(life.name, 0, f"did not end within {TERM_S_MAX:g} s"))
        send(family, signal.SIGKILL)  # what it has left behind
        with suppress(ProcessLookupError):
            os.killpg(life.process.pid, signal.SIGKILL)

    # Keeping up with them

    def tick(self) -> None:
        now_s = time.monotonic()
        for life in list(self.lives.values()):
            if life.code is not None:
                self._note_end(life, now_s)
            elif life.resume_s is not None:
                if life.resume_s <= now_s:
                    self.resume(life)
            elif ":stop" in life.fail and life.stands_still():
                life.resume_s = now_s + self._stopped_s
        for slot in [slot for slot, at_s in self._due.items() if at_s <= now_s]:
            del self._due[slot]
            self.start(slot)

    def wake_zombies(self) -> None:
        """Those that a fail point has stopped go on."""
        for life in self.lives.values():
            if life.resume_s is not None and ":stop" in life.fail:
                self.resume(life)

    def end_all(self) -> None:
        self._due.clear()
        told = [(life, self._tell_to_end(life)) for life in list(self.lives.values())]
        for life, family in told:
            self._see_end(life, family)

    def kill_all(self) -> None:
        for life in list(self.lives.values()):
            self.kill(life)
        self._due.clear()
        send(self._left, signal.SIGKILL)

    def left_behind(self) -> list[int]:
        """The processes of those who were killed that are still there."""
        return [each.pid for each in self._left if is_there(each)]

    def _note_end(self, life: Life, now_s: float) -> None:
        self._wake(life)
        del self.lives[life.slot]
        assert life.code is not None
        if life.code == -signal.SIGKILL and ":kill" in life.fail:
            self._restart(life, now_s)
        else:
            self.ended.append(Ended(life.name, life.code, _last_line(life.log)))
            self._restart(life, now_s + AGAIN_S)

    def _restart(self, life: Life, at_s: float) -> None:
        if self._restarting:
            self._due[life.slot] = at_s

    def _wake(self, life: Life) -> None:
        """With all that belongs to it. What belonged to one that is gone ends by itself, but not
        if it was stopped with it."""
        send(life.stopped, signal.SIGCONT)
        life.stopped = []
        with suppress(ProcessLookupError):
            os.killpg(life.process.pid, signal.SIGCONT)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
