"""The replicas of a proof: real processes that are killed, stopped and started again."""

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
    TreeProcess,
    is_there,
    send,
    stands_still,
    stop_tree,
    tree_of,
)
from headrace.tools.proof.scratch import Scratch

TERM_S_MAX = 30.0
AGAIN_S = 1.0
"""A replica that ended by itself is started again after this time."""


class Ended(NamedTuple):
    """A replica that ended by itself."""

    name: str
    code: int
    said: str


class ReplicaProcess:
    """One process of a replica, from its start to its end."""

    def __init__(self, slot: int, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.slot = slot
        self.name = name
        self.process = process
        self.log = log
        self.fail = ""
        self.resume_s: float | None = None
        """Until when the process is stopped; None if it is not."""
        self.stopped: list[TreeProcess] = []
        """The processes that were stopped with it."""

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def stands_still(self) -> bool:
        """Whether the process is stopped, by the proof or by a fail point."""
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
        """A replica stopped by a fail point goes on after ``stopped_s``."""
        self.running: dict[int, ReplicaProcess] = {}
        self.ended: list[Ended] = []
        """The replicas that ended by themselves."""
        self.names: list[str] = []
        """The names of all replicas that were ever started."""
        self._scratch = scratch
        self._arguments = arguments
        self._stopped_s = stopped_s
        self._restarting = restarting
        self._due: dict[int, float] = {}
        """When each empty slot gets a new process."""
        self._left: list[TreeProcess] = []
        """Processes that killed replicas left behind. They must end by themselves."""

    def start(
        self, slot: int, fail: str = "", extra: dict[str, str] | None = None
    ) -> ReplicaProcess:
        name = f"r{slot + 1}"
        earlier = sum(each.partition(".")[0] == name for each in self.names)
        name += f".{earlier + 1}" if earlier else ""
        self.names.append(name)
        environment = self._scratch.environment() | (extra or {})
        if fail:
            environment[VARIABLE] = fail
        log = self._scratch.logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "--hub", str(self._scratch.hub), "run",
                 *self._arguments, "--name", name],
                cwd=self._scratch.place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )  # fmt: skip
        replica = self.running[slot] = ReplicaProcess(slot, name, process, log)
        replica.fail = fail
        return replica

    # Deeds

    def kill(self, replica: ReplicaProcess) -> None:
        self._left += tree_of(replica.process.pid)[1:]
        replica.process.kill()
        replica.process.wait()
        self._wake(replica)
        del self.running[replica.slot]
        self._restart(replica, 0.0)

    def stop(self, replica: ReplicaProcess, for_s: float) -> None:
        """Stop the replica with all its processes, Java and lanes included."""
        replica.stopped = stop_tree(replica.process.pid)
        replica.resume_s = time.monotonic() + for_s

    def resume(self, replica: ReplicaProcess) -> None:
        replica.resume_s = None
        self._wake(replica)

    def end(self, replica: ReplicaProcess) -> None:
        """Tell the replica to end, and wait for its end."""
        self._see_end(replica, self._tell_to_end(replica))

    def _tell_to_end(self, replica: ReplicaProcess) -> list[TreeProcess]:
        """Send SIGTERM; return all processes of the replica."""
        self.running.pop(replica.slot, None)
        if replica.stands_still():
            self.resume(replica)
        tree = tree_of(replica.process.pid)
        replica.process.terminate()
        return tree

    def _see_end(self, replica: ReplicaProcess, tree: list[TreeProcess]) -> None:
        try:
            replica.process.wait(TERM_S_MAX)
        except subprocess.TimeoutExpired:
            replica.process.kill()
            replica.process.wait()
            self.ended.append(Ended(replica.name, 0, f"did not end within {TERM_S_MAX:g} s"))
        send(tree, signal.SIGKILL)  # the processes that it left behind
        with suppress(ProcessLookupError):
            os.killpg(replica.process.pid, signal.SIGKILL)

    # Looking after them

    def tick(self) -> None:
        now_s = time.monotonic()
        for replica in list(self.running.values()):
            if replica.code is not None:
                self._note_end(replica, now_s)
            elif replica.resume_s is not None:
                if replica.resume_s <= now_s:
                    self.resume(replica)
            elif ":stop" in replica.fail and replica.stands_still():
                replica.resume_s = now_s + self._stopped_s
        for slot in [slot for slot, at_s in self._due.items() if at_s <= now_s]:
            del self._due[slot]
            self.start(slot)

    def wake_zombies(self) -> None:
        """Resume the replicas that a fail point has stopped."""
        for replica in self.running.values():
            if replica.resume_s is not None and ":stop" in replica.fail:
                self.resume(replica)

    def end_all(self) -> None:
        self._due.clear()
        ending = [(replica, self._tell_to_end(replica)) for replica in list(self.running.values())]
        for replica, tree in ending:
            self._see_end(replica, tree)

    def kill_all(self) -> None:
        for replica in list(self.running.values()):
            self.kill(replica)
        self._due.clear()
        send(self._left, signal.SIGKILL)

    def left_behind(self) -> list[int]:
        """The pids of processes that killed replicas left behind and that still exist."""
        return [each.pid for each in self._left if is_there(each)]

    def _note_end(self, replica: ReplicaProcess, now_s: float) -> None:
        self._wake(replica)
        del self.running[replica.slot]
        assert replica.code is not None
        if replica.code == -signal.SIGKILL and ":kill" in replica.fail:
            self._restart(replica, now_s)
        else:
            self.ended.append(Ended(replica.name, replica.code, _last_line(replica.log)))
            self._restart(replica, now_s + AGAIN_S)

    def _restart(self, replica: ReplicaProcess, at_s: float) -> None:
        if self._restarting:
            self._due[replica.slot] = at_s

    def _wake(self, replica: ReplicaProcess) -> None:
        """Resume the replica with all its processes. Those of a dead replica end by themselves, but
        only if they are not stopped."""
        send(replica.stopped, signal.SIGCONT)
        replica.stopped = []
        with suppress(ProcessLookupError):
            os.killpg(replica.process.pid, signal.SIGCONT)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
