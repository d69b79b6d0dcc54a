"""The processes of a live run: started, hurt and started again, each deed told as evidence."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headrace.testing.children import Child
from tests.harness.live.evidence import Evidence

RESTART_S_MAX = 0.5
END_S_MAX = 45.0
"""A process that was told to end, and is not stopped, has ended by then."""


class Settings(NamedTuple):
    hub: Path
    evidence: Path
    session_s: float
    heartbeat_s: float
    sabotage: dict[str, str] = {}  # noqa: RUF012
    """What is broken in the processes of a kind."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, slot: str, name: str, label: str, child: Child, fail: str) -> None:
        self.slot = slot
        self.name = name
        self.label = label
        self.child = child
        self.fail = fail
        self.resume_s: float | None = None
        """It is stopped until then."""
        self.end_s: float | None = None
        """It was told to end, by then at the latest."""

    @property
    def kind(self) -> str:
        return "member" if self.slot.startswith("m") else "producer"

    @property
    def active(self) -> bool:
        return self.resume_s is None and self.end_s is None


class Processes:
    def __init__(self, settings: Settings, evidence: Evidence, dice: random.Random) -> None:
        self._settings = settings
        self._evidence = evidence
        self._dice = dice
        self.lives: dict[str, Life] = {}
        """The one of each slot that is meant to go on."""
        self._fading: list[Life] = []
        """Told to end, or replaced by another of the same name."""
        self._names: dict[str, str] = {}
        self._births: dict[str, int] = {}
        self._due: dict[str, tuple[float, str]] = {}
        """Slots to fill again: when, and with which fail point."""
        self.restarting = True
        self.fails: dict[str, tuple[str, ...]] = {}
        """Fail points of which some processes get one when they are started again."""
        self.stops_s: tuple[float, ...] = (settings.session_s * 1.5,)
        """How long one is stopped that a fail point has stopped."""

    def start(self, slot: str, fail: str = "", *, renamed: bool = False) -> Life:
        number = self._births[slot] = self._births.get(slot, 0) + 1
        if renamed or slot not in self._names:
            self._names[slot] = slot if number == 1 else f"{slot}-{number}"
        name, label = self._names[slot], f"{slot}.{number}"
        settings = self._settings
        kind = "member" if slot.startswith("m") else "producer"
        arguments = ["-m", f"tests.harness.live.{kind}", str(settings.hub)]
        arguments += [str(settings.evidence), label, name]
        if kind == "member":
            arguments += [str(settings.session_s), str(settings.heartbeat_s)]
        if kind in settings.sabotage:
            arguments += ["--sabotage", settings.sabotage[kind]]
        self._evidence.tell("born", who=label, name=name, fail=fail)
        life = Life(slot, name, label, Child(arguments, fail=fail), fail)
        self.lives[slot] = life
        return life

    # Deeds

    def kill(self, life: Life, then: str | None = None) -> None:
        self._evidence.tell("kill", who=life.label)
        life.child.process.send_signal(signal.SIGKILL)
        self._ends(life, then)

    def stop(self, life: Life, for_s: float) -> None:
        self._evidence.tell("stop", who=life.label, seconds=for_s)
        life.child.process.send_signal(signal.SIGSTOP)
        life.resume_s = time.monotonic() + for_s

    def resume(self, life: Life) -> None:
        life.resume_s = None
        self._evidence.tell("cont", who=life.label)
        life.child.process.send_signal(signal.SIGCONT)

    def term(self, life: Life, then: str | None = None) -> None:
        """Tell it to end; the slot is filled again, with that fail point if one is given."""
        self._evidence.tell("term", who=life.label)
        life.child.process.send_signal(signal.SIGTERM)
        self._ends(life, then)

    def twin(self, life: Life) -> None:
        """Start another of the same name: the older one, which is at work, has to go."""
        self._evidence.tell("twin", who=life.label)
        self._fading.append(life)
        life.end_s = time.monotonic() + END_S_MAX
        self.start(life.slot)

    def _ends(self, life: Life, then: str | None) -> None:
        life.end_s = time.monotonic() + END_S_MAX
        if then is not None:
            self._due[life.slot] = (0.0, then)

    # Keeping up with them

    def ready(self, life: Life) -> bool:
        """Whether it has told that it is at work."""
        path = self._settings.evidence / f"{life.label}.log"
        return path.exists() and b'"what":"ready"' in path.read_bytes()

    def all(self) -> Iterator[Life]:
        yield from [*self.lives.values(), *self._fading]

    def tick(self) -> None:
        now_s = time.monotonic()
        for life in self.all():
            code = life.child.process.poll()
            if code is not None:
                self._ended(life, code, now_s)
            elif life.resume_s is None and life.child.stopped():
                self._evidence.tell("stop", who=life.label)
                life.resume_s = now_s + self._dice.choice(self.stops_s)
            elif life.resume_s is not None and now_s >= life.resume_s:
                self.resume(life)
                if life.end_s is not None:
                    life.end_s = now_s + END_S_MAX
            elif life.end_s is not None and life.resume_s is None and now_s > life.end_s:
                self._evidence.tell("stuck", who=life.label)
                self.kill(life)
        for slot, (due_s, fail) in list(self._due.items()):
            if slot not in self.lives and now_s >= due_s:
                del self._due[slot]
                renamed = slot.startswith("m") and self._dice.random() < 0.3
                self.start(slot, fail, renamed=renamed)

    def _ended(self, life: Life, code: int, now_s: float) -> None:
        with life.child:
            self._evidence.tell("exit", who=life.label, code=code)
        if life in self._fading:
            self._fading.remove(life)
            return
        del self.lives[life.slot]
        for older in self._fading:
            if older.slot == life.slot:  # perhaps the twin was not there long enough to replace it
                self.term(older)
        if not self.restarting:
            return
        if life.slot not in self._due:
            fails = self.fails.get(life.kind, ())
            fail = self._dice.choice(fails) if fails and self._dice.random() < 0.4 else ""
            self._due[life.slot] = (now_s + self._dice.uniform(0, RESTART_S_MAX), fail)

    def heal(self) -> None:
        """No more fail points; whoever is stopped goes on."""
        self.fails = {}
        self._due = {slot: (due_s, "") for slot, (due_s, _) in self._due.items()}
        for life in self.all():
            if life.resume_s is not None:
                self.resume(life)
            if life.fail and life.end_s is None:
                self.term(life, "")

    @property
    def settled(self) -> bool:
        """Everybody lives, and nobody is about to end."""
        plain = all(life.active and not life.fail for life in self.lives.values())
        return not self._due and not self._fading and plain

    def end_all(self) -> None:
        """However the run ended, nobody is left."""
        for life in self.all():
            with life.child:
                life.child.kill()
        self.lives.clear()
        self._fading.clear()
