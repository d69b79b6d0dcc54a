"""Named places in the code where a test can inject a fault; off unless the environment says
otherwise.

``HEADRACE_FAIL=write.before-commit:kill`` kills the process there; several are separated by
commas; ``point:action@3`` acts at the third passage only. Actions: ``kill`` (SIGKILL), ``stop``
(SIGSTOP), ``raise``, ``eio``, ``enospc``, ``sleep=SECONDS``. The list of points is in
docs/testing.md.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Mapping

VARIABLE = "HEADRACE_FAIL"

POINTS: Mapping[str, str] = {
    "write.waiting": "before the write lock is asked for",
    "write.locked": "the write lock is held, nothing is written yet",
    "write.before-commit": "everything is in the transaction, which is not committed",
    "write.after-commit": "committed and durable, the callers do not know",
    "write.acknowledged": "the callers know",
    "open.before-create": "the files exist, the tables do not",
    "trim.between": "part of the records to drop are gone",
    "consumer.before-commit": "records are done, their checkpoints are not stored",
    "consumer.after-commit": "the checkpoints are stored, the consumer has not taken note",
    "consumer.revoked": "a shard is to be let go, nothing is committed yet",
    "lane.before-read": "a slice was given, nothing is read",
    "lane.after-read": "records are read, none is handled",
    "lane.before-handler": "the first handler is about to be called",
    "lane.after-handler": "the handlers have run, nothing is committed",
    "lane.before-commit": "outputs, state and checkpoint are about to be committed",
    "lane.after-commit": "they are committed, the lane has not taken note",
    "lane.before-report": "they are committed, the dispatcher does not know",
    "lane.after-report": "the dispatcher knows, the lane has not asked for more",
    "replica.before-begin": "shards are granted, that work begins is not noted",
    "replica.after-begin": "it is noted, no slice was given",
    "replica.before-release": "a shard is to go and no lane works on it, nothing is noted",
    "replica.after-release": "the shard is released",
    "pack.before-swap": "small batches were read, the packed one is not written",
}

ACTIONS = ("kill", "stop", "raise", "eio", "enospc", "sleep")


class FailPoint(Exception):
    """Raised by the action ``raise``."""


def failpoint(name: str) -> None:
    """Act if a test has armed this point; else nothing."""
    if name in _armed:
        _armed[name].pass_by()


class _Armed:
    def __init__(self, name: str, action: str, argument: str, at: int) -> None:
        self._name = name
        self._action = action
        self._argument = argument
        self._at = at
        self._passed = 0

    def pass_by(self) -> None:
        self._passed += 1
        if self._at and self._passed != self._at:
            return
        match self._action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                # Sent to this thread: sent to the process, this thread could run on for a moment.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "sleep":
                time.sleep(float(self._argument))
            case "eio":
                raise OSError(errno.EIO, f"fail point {self._name}")
            case "enospc":
                raise OSError(errno.ENOSPC, f"fail point {self._name}")
            case _:
                raise FailPoint(self._name)


Points = dict[str, _Armed]


def armed(text: str) -> Points:
    """The points that a value of the variable arms; `ValueError` if it has an unknown word."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition(":")
        rest, _, at = rest.partition("@")
        action, _, argument = rest.partition("=")
        if name not in POINTS or action not in ACTIONS or (at and not at.isdigit()):
            raise ValueError(
                f"{VARIABLE}={item!r}: write point:action, with a point of {sorted(POINTS)} "
                f"and an action of {list(ACTIONS)}"
            )
        found[name] = _Armed(name, action, argument, int(at or 0))
    return found


_armed = armed(os.environ.get(VARIABLE, ""))


def armed_now() -> Points:
    return _armed


def arm(points: Points) -> None:
    """Arm these points from now on, and no others."""
    global _armed
    _armed = points
