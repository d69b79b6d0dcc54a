"""Lanes as processes: a handler that hangs, crashes or eats up memory takes only its lane along.

Each lane leads a process group and a session of its own. What its handlers started ends with it,
and Ctrl-C is for the replica, which lets the lanes end in order.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from penstock.core.errors import BadSetting, Refused
from penstock.runtime.dispatcher import Dispatcher
from penstock.runtime.engine import Progress
from penstock.runtime.settings import RunSettings
from penstock.runtime.switchboard import Switchboard

log = logging.getLogger("penstock")

STILLBORN_MAX = 3
"""So many that end before they ask, one after the other, and none that works: it is of no use."""
AGAIN_S = 0.1
LOOK_S = 0.005
AGAIN_S_MAX = 5.0
STARTED_S = 60.0
"""So long loading a topology may take."""
KILLED_S = 1.0
"""So long a killed process is waited for; one that the system keeps longer is reaped later."""
TOLD_BYTES_MAX = 1024 * 1024
"""As much as a pipe takes without anybody reading."""

_PIPE_BYTES = 65_536

in_lane = False
"""This process is a lane."""


class ProcessLanes:
    def __init__(
        self,
        dispatcher: Dispatcher,
        count: int,
        *,
        hub: str,
        reference: str,
        settings: RunSettings,
        replica: str,
    ) -> None:
        if in_lane:
            raise Refused(
                "a lane loads the topology and must not run it: put what runs it under "
                'if __name__ == "__main__":'
            )
        self._board = Switchboard(dispatcher)
        self._count = count
        self._told = {
            "hub": hub,
            "reference": reference,
            "settings": _plain(asdict(settings)),
            "replica": replica,
            "secret": self._board.secret.hex(),
            "parent": os.getpid(),
            "path": [place for place in sys.path if isinstance(place, str)],
            "level": log.getEffectiveLevel(),
        }
        if len(self._line_for(0)) > TOLD_BYTES_MAX:
            raise BadSetting(
                "the settings are too long for lanes as processes: at most "
                f"{TOLD_BYTES_MAX} bytes, options included"
            )
        self._children: dict[int, _Child] = {}
        self._killed: list[_Child] = []
        """They were not seen to end yet."""
        self._to_start: dict[int, float] = {}
        """When lanes are started anew."""
        self._stillborn = 0
        self._again_s = AGAIN_S

    def start(self) -> None:
        try:
            self._board.open()
            for number in range(self._count):
                self._start(number)
            self._wait_for_all()
        except BaseException as why:
            self.join(0.0)
            if isinstance(why, OSError):
                raise Refused(f"the process of a lane cannot be started: {why}") from why
            raise

    def cut(self, lane: int, number: int) -> None:
        self._board.cut(lane, number)

    def progress(self, lane: int) -> Progress | None:
        return self._board.progress(lane)

    def kill(self, lane: int) -> None:
        child = self._children.pop(lane, None)
        if child is None:
            return
        self._board.hang_up(lane)
        self._end(child)
        self._to_start[lane + self._count] = 0.0  # by the next look at those that died

    def died(self) -> list[int]:
        now_s = time.monotonic()
        self._killed = [child for child in self._killed if not child.reaped(0.0)]
        for lane in [lane for lane, at_s in self._to_start.items() if at_s <= now_s]:
            del self._to_start[lane]
            try:
                self._start(lane)
            except OSError as why:
                log.error("lane %d: its process cannot be started: %s", lane, why)
                self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
                self._to_start[lane] = now_s + self._again_s
        return [lane for lane in list(self._children) if self._is_dead(lane, now_s)]

    def join(self, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        clean = True
        self._to_start.clear()
        for lane, child in self._children.items():
            if not self._board.has_asked(lane):
                child.kill()  # it has nothing in hand
            elif not child.reaped(max(until_s - time.monotonic(), 0.0)):
                log.warning("lane %d does not end: it is killed", lane)
                child.kill()
                clean = False
        for child in (*self._children.values(), *self._killed):
            child.reaped(KILLED_S)
        self._children.clear()
        self._killed.clear()
        self._board.close()
        return clean

    # Below

    def _wait_for_all(self) -> None:
        """Until each has asked for work: so long what this replica is granted would lie idle."""
        waiting = list(self._children)
        while waiting:
            now_s = time.monotonic()
            for lane in waiting:
                over = self._over(lane, now_s)
                if over is not None:
                    raise Refused(f"lanes cannot begin: {over.why}")
            waiting = [lane for lane in waiting if not self._board.has_asked(lane)]
            time.sleep(LOOK_S)

    def _is_dead(self, lane: int, now_s: float) -> bool:
        over = self._over(lane, now_s)
        if over is None:
            return False
        log.error("the process of lane %d has ended: %s", lane, over.why)
        if over.had_asked:
            self._stillborn, self._again_s = 0, AGAIN_S
        else:
            self._stillborn += 1
            self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
            if self._stillborn >= STILLBORN_MAX and not self._works():
                raise Refused(f"{self._stillborn} lanes in a row cannot begin: {over.why}")
        self._to_start[lane + self._count] = now_s + self._again_s
        return True

    def _works(self) -> bool:
        return any(map(self._board.has_asked, self._children))

    def _over(self, lane: int, now_s: float) -> _Over | None:
        """How it has ended, if it has: it is forgotten."""
        child, board = self._children[lane], self._board
        is_late = not board.has_asked(lane) and now_s - child.began_s > STARTED_S
        if not is_late and not child.has_ended():
            return None
        del self._children[lane]
        why = _shown(self._end(child))
        board.hear_out(lane, KILLED_S)
        if is_late:
            why = f"it has not begun after {STARTED_S:g} s"
        over = _Over(board.unfit(lane) or why, board.has_asked(lane))
        board.hang_up(lane)
        return over

    def _end(self, child: _Child) -> int | None:
        """Have it end with all that belongs to it; None if the system still has it."""
        child.kill()
        if not child.reaped(KILLED_S):
            self._killed.append(child)
        return child.process.returncode

    def _start(self, number: int) -> None:
        self._board.expect(number)
        try:
            self._children[number] = _Child(self._line_for(number))
        except OSError:
            self._board.hang_up(number)
            raise

    def _line_for(self, number: int) -> bytes:
        told = {**self._told, "address": self._board.address, "lane": number}
        return json.dumps(told).encode() + b"\n"


class _Over(NamedTuple):
    why: str
    had_asked: bool


class _Child:
    def __init__(self, line: bytes) -> None:
        self.began_s = time.monotonic()
        # Not with the current directory among the places of modules (-P): a queue.py there would
        # be taken for Python's own.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-m", "penstock.runtime.lane_process"],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        # Through the pipe, where nobody else can read it. It stays open: its end tells the child
        # that this process is gone.
        self._pipe = self.process.stdin
        try:
            if len(line) > _PIPE_BYTES:
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, len(line))
            self._pipe.write(line)
        except BrokenPipeError:
            pass  # it has ended already: that is found soon
        except BaseException:
            self.kill()
            self.reaped(KILLED_S)
            raise

    def has_ended(self) -> bool:
        """Without reaping it: as long as that is not done, nobody else gets its number."""
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, how) is not None
        except ChildProcessError:  # somebody else has
            return True

    def kill(self) -> None:
        """With what it has started, even if it has ended itself."""
        if self.process.returncode is not None:
            return
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # the number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def reaped(self, timeout_s: float) -> bool:
        """Whether it is gone by then."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._pipe.close()
        return True


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As they will be in another process; `BadSetting` for what would not be the same there."""
    for section, values in settings.items():
        if not _is_plain(values):
            for key, value in values.items() if isinstance(values, Mapping) else ():
                if not _is_plain(value):
                    raise BadSetting(
                        f"{section}: {key} = {value!r} cannot be told to lanes that are processes: "
                        "use text, numbers, true or false, lists, and tables with names of text"
                    )
    return settings


def _is_plain(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


def _shown(code: int | None) -> str:
    if code is None:
        return "killed"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
