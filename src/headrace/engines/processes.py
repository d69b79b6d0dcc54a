"""Lanes as processes: a handler that hangs, crashes or takes all memory costs only its lane.

Each lane leads a process group and a session of its own. What its handlers started ends with it,
and Ctrl-C reaches the replica only, which lets the lanes end in order.
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
from headrace.engines.engine import Engine, LaneFactory, LaneWork
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import LaneSpec
from headrace.engines.remote_lanes import KILLED_S, RemoteLanes, lane_spec_for
from headrace.lanes.protocol import DispatcherPort

_PIPE_BYTES = 65_536


class ProcessLanes(RemoteLanes):
    def __init__(self, dispatcher: DispatcherPort, count: int, spec: LaneSpec) -> None:
        super().__init__(LaneServer(dispatcher), count, spec, _Process, body_name="process")


class _Process:
    """The body of a lane."""

    def __init__(self, spec: LaneSpec) -> None:
        self.began_s = time.monotonic()
        # The current directory is no place for modules (-P): a queue.py there would hide Python's
        # own.
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.engines.lane_process"],
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        # The spec goes through the pipe, where no other process can read the secret. The pipe stays
        # open: its end tells the lane that this process is gone.
        self._pipe = self.process.stdin
        line = spec.to_line()
        try:
            if len(line) > _PIPE_BYTES:
                fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, len(line))
            self._pipe.write(line)
        except BrokenPipeError:
            pass  # the process has ended already: `has_ended` will tell
        except BaseException:
            self.kill()
            self.reaped(KILLED_S)
            raise

    def has_ended(self) -> bool:
        """Does not reap the process: until it is reaped, no other process gets its number."""
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self.process.pid, how) is not None
        except ChildProcessError:  # another part of the program has reaped it
            return True

    def kill(self) -> None:
        """Kill the process and the processes it has started, even if it has ended itself."""
        if self.process.returncode is not None:
            return
        try:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return  # another process may have the number by now
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


def _process_lanes(work: LaneWork) -> LaneFactory:
    work.backend.capabilities.require("processes")
    if work.reference is None:
        raise BadSetting(
            "lanes as processes load the topology themselves: say from where, as in "
            "reference='shop.py'"
        )
    address = work.backend.log.address
    assert address is not None, "a log that processes share has one"
    spec = lane_spec_for(work, address)
    return lambda dispatcher, count: ProcessLanes(dispatcher, count, spec)


IN_PROCESSES = Engine("processes", _process_lanes, shares_a_process=False)
