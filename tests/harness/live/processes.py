"""The processes of a live run: started, hurt and started again; every deed becomes evidence."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.testing.children import Child
from tests.harness.children import harness_child
from tests.harness.live.evidence import Evidence

RESTART_S_MAX = 0.5
END_S_MAX = 45.0
"""How long a process that is told to end, and not stopped, may take."""


class Settings(NamedTuple):
    hub: Path
    evidence: Path
    session_s: float
    heartbeat_s: float
    sabotage: dict[str, str] = {}  # noqa: RUF012
    """The sabotage of members and of producers."""


class LiveProcess:
    """One process of a live run, from its start to its end."""

    def __init__(self, slot: str, name: str, label: str, child: Child, fail: str) -> None:
        self.slot = slot
        self.name = name
        self.label = label
        self.child = child
        self.fail = fail
        self.resume_s: float | None = None
        """Until when the process is stopped; None if it is not."""
        self.end_s: float | None = None
        """By when the process must end; None if it was not told to end."""

    @property
    def kind(self) -> str:
        return "member" if self.slot.startswith("m") else "producer"

    @property
    def active(self) -> bool:
        return self.resume_s is None and self.end_s is None


class LiveProcesses:
    def __init__(self, settings: Settings, evidence: Evidence, dice: random.Random) -> None:
        self._settings = settings
        self._evidence = evidence
        self._dice = dice
        self.running: dict[str, LiveProcess] = {}
        """The current process of each slot."""
        self._ending: list[LiveProcess] = []
        """Processes that must end because another of the same name replaced them."""
        self._names: dict[str, str] = {}
        self._starts: dict[str, int] = {}
        self._due: dict[str, tuple[float, str]] = {}
        """Empty slots: when they get a new process, and with which fail point."""
        self.restarting = True
        self.fails: dict[str, tuple[str, ...]] = {}
        """Fail points for restarted members and producers; some of them get one."""
        self.stops_s: tuple[float, ...] = (settings.session_s * 1.5,)
        """How long a process that a fail point has stopped stays stopped."""

    def start(self, slot: str, fail: str = "", *, renamed: bool = False) -> LiveProcess:
        number = self._starts[slot] = self._starts.get(slot, 0) + 1
        if renamed or slot not in self._names:
            self._names[slot] = slot if number == 1 else f"{slot}-{number}"
        name, label = self._names[slot], f"{slot}.{number}"
        settings = self._settings
        kind = "member" if slot.startswith("m") else "producer"
        arguments = [str(settings.hub), str(settings.evidence), label, name]
        if kind == "member":
            arguments += [str(settings.session_s), str(settings.heartbeat_s)]
        if kind in settings.sabotage:
            arguments += ["--sabotage", settings.sabotage[kind]]
        self._evidence.tell("started", who=label, name=name, fail=fail)
        child = harness_child(f"tests.harness.live.{kind}", *arguments, fail=fail)
        process = LiveProcess(slot, name, label, child, fail)
        self.running[slot] = process
        return process

    # Deeds

    def kill(self, process: LiveProcess, then: str | None = None) -> None:
        self._evidence.tell("kill", who=process.label)
        process.child.process.send_signal(signal.SIGKILL)
        self._ends(process, then)

    def stop(self, process: LiveProcess, for_s: float) -> None:
        self._evidence.tell("stop", who=process.label, seconds=for_s)
        process.child.process.send_signal(signal.SIGSTOP)
        process.resume_s = time.monotonic() + for_s

    def resume(self, process: LiveProcess) -> None:
        process.resume_s = None
        self._evidence.tell("cont", who=process.label)
        process.child.process.send_signal(signal.SIGCONT)

    def term(self, process: LiveProcess, then: str | None = None) -> None:
        """Tell a process to end; its slot gets a new process, with the fail point ``then`` if
        given."""
        self._evidence.tell("term", who=process.label)
        process.child.process.send_signal(signal.SIGTERM)
        self._ends(process, then)

    def twin(self, process: LiveProcess) -> None:
        """Start another process of the same name: the older one, which works, has to end."""
        self._evidence.tell("twin", who=process.label)
        self._ending.append(process)
        process.end_s = time.monotonic() + END_S_MAX
        self.start(process.slot)

    def _ends(self, process: LiveProcess, then: str | None) -> None:
        process.end_s = time.monotonic() + END_S_MAX
        if then is not None:
            self._due[process.slot] = (0.0, then)

    # Looking after them

    def ready(self, process: LiveProcess) -> bool:
        """Whether the process has reported that it works."""
        path = self._settings.evidence / f"{process.label}.log"
        return path.exists() and b'"what":"ready"' in path.read_bytes()

    def all(self) -> Iterator[LiveProcess]:
        yield from [*self.running.values(), *self._ending]

    def tick(self) -> None:
        now_s = time.monotonic()
        for process in self.all():
            code = process.child.process.poll()
            if code is not None:
                self._ended(process, code, now_s)
            elif process.resume_s is None and process.child.stopped():
                self._evidence.tell("stop", who=process.label)
                process.resume_s = now_s + self._dice.choice(self.stops_s)
            elif process.resume_s is not None and now_s >= process.resume_s:
                self.resume(process)
                if process.end_s is not None:
                    process.end_s = now_s + END_S_MAX
            elif process.end_s is not None and process.resume_s is None and now_s > process.end_s:
                self._evidence.tell("stuck", who=process.label)
                self.kill(process)
        for slot, (due_s, fail) in list(self._due.items()):
            if slot not in self.running and now_s >= due_s:
                del self._due[slot]
                renamed = slot.startswith("m") and self._dice.random() < 0.3
                self.start(slot, fail, renamed=renamed)

    def _ended(self, process: LiveProcess, code: int, now_s: float) -> None:
        with process.child:
            self._evidence.tell("exit", who=process.label, code=code)
        if process in self._ending:
            self._ending.remove(process)
            return
        del self.running[process.slot]
        for older in self._ending:
            if older.slot == process.slot:  # the twin may have ended before it replaced it
                self.term(older)
        if not self.restarting:
            return
        if process.slot not in self._due:
            fails = self.fails.get(process.kind, ())
            fail = self._dice.choice(fails) if fails and self._dice.random() < 0.4 else ""
            self._due[process.slot] = (now_s + self._dice.uniform(0, RESTART_S_MAX), fail)

    def heal(self) -> None:
        """End all fail points and resume the stopped processes."""
        self.fails = {}
        self._due = {slot: (due_s, "") for slot, (due_s, _) in self._due.items()}
        for process in self.all():
            if process.resume_s is not None:
                self.resume(process)
            if process.fail and process.end_s is None:
                self.term(process, "")

    @property
    def settled(self) -> bool:
        """Whether every slot has a process and no process is about to end."""
        plain = all(process.active and not process.fail for process in self.running.values())
        return not self._due and not self._ending and plain

    def end_all(self) -> None:
        """Kill all processes, however the run ended."""
        for process in self.all():
            with process.child:
                process.child.kill()
        self.running.clear()
        self._ending.clear()
