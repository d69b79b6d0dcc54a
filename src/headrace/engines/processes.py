"""Lanes as processes: a handler that hangs, crashes or eats up memory takes only its lane along.

Each lane leads a process group and a session of its own. What its handlers started ends with it,
and Ctrl-C is for the replica, which lets the lanes end in order.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from headrace.core.errors import BadSetting
from headrace.engines.engine import LaneFactory, LaneWork
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import LaneSpec, lane_spec_for
from headrace.engines.remote_lanes import KILLED_S, RemoteLanes
from headrace.lanes.protocol import DispatcherPort

_PIPE_BYTES = 65_536


def in_processes(wanted: LaneWork) -> LaneFactory:
    wanted.backend.capabilities.require("processes")
    if wanted.reference is None:
        raise BadSetting(
            "lanes as processes load the topology themselves: say from where, as in "
            "reference='shop.py'"
        )
    errand = lane_spec_for(wanted, os.path.abspath(wanted.backend.describe()["directory"]))
    return lambda dispatcher, count: ProcessLanes(dispatcher, count, errand)


class ProcessLanes(RemoteLanes):
    def __init__(self, dispatcher: DispatcherPort, count: int, errand: LaneSpec) -> None:
        super().__init__(LaneServer(dispatcher), count, errand, _Process, what="process")


class _Process:
    def __init__(self, errand: LaneSpec) -> None:
        self.began_s = time.monotonic()
        # Not with the current directory among the places of modules (-P): a queue.py there would
        # be taken for Python's own.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.engines.lane_process"],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        # Through the pipe, where nobody else can read it. It stays open: its end tells the child
        # that this process is gone.
        self._pipe = self.process.stdin
        line = errand.to_line()
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
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._pipe.close()
        return True

    def how(self) -> str:
        code = self.process.returncode
        if code is None:
            return "killed"
        return f"signal {-code}" if code < 0 else f"exit code {code}"
