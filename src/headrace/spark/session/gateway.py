"""The Java process of a session: started so that its settings stay private, and what it says comes
out where this process says things."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

from headrace.core.errors import Refused

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext

SUBMIT = "PYSPARK_SUBMIT_ARGS"
REASON_BYTES = 65_536
ENDED_S = 0.5
"""Whoever cannot reach it any more waits so long to hear how it ended."""

_NOISE = (b"WARNING: Using incubator modules",)
"""Said by Java itself, before any setting can quieten it."""


_unheard = threading.Event()


def hear_no_more() -> None:
    """Of a session that is being stopped: its workers complain that theirs is gone. Until the next
    one."""
    _unheard.set()


def launch_java(conf: SparkConf) -> None:
    """Unless this process has one already. It is in a process session of its own: Ctrl-C and
    SIGTERM to a group are for who runs lanes, and lets them end in order."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _unheard.clear()
    if SparkContext._gateway is None:
        said, to_say = os.pipe()
        lines = os.fdopen(said, "rb")
        launch: Callable[..., Any] = launch_gateway
        try:
            with _told(conf) as told:
                how = {"stderr": to_say, "start_new_session": True, "pass_fds": (told,)}
                gateway = launch(None, how)
        except PySparkRuntimeError as why:
            os.close(to_say)
            raise Refused(f"Java does not start: {_reason(lines) or why}") from why
        os.close(to_say)
        _forward(lines)
        SparkContext._ensure_initialized(gateway=gateway)


def _reason(lines: IO[bytes]) -> str:
    """The first thing that Java said before it ended."""
    told = [line.decode(errors="backslashreplace").strip() for line in lines.readlines(REASON_BYTES)
            if not line.startswith(_NOISE)]  # fmt: skip
    return next(filter(None, told), "")


def kill_java() -> None:
    """With its workers' daemon."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def java_ended() -> str | None:
    """How the Java of this process has ended; None if it lives."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        code = None if process is None else process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        return None
    if code is None:
        return None
    return f"Java has ended by signal {-code}" if code < 0 else f"Java has ended with code {code}"


def quieten(context: SparkContext) -> SparkContext:
    """A server of PySpark that Java calls prints a trace when Java dies: that is said elsewhere."""
    server: Any = context._accumulatorServer
    before = server.handle_error

    def handle_error(request: Any, client: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            before(request, client)

    server.handle_error = handle_error
    return context


@contextmanager
def _told(conf: SparkConf) -> Iterator[int]:
    """Settings reach Java by a file: on its command line everybody could read them. The file lies
    in memory, and is gone with who has it open."""
    with os.fdopen(os.memfd_create("headrace-spark"), "w", encoding="utf-8") as file:
        file.writelines(f"{key}={_escaped(value)}\n" for key, value in conf.getAll())
        file.flush()
        before = os.environ.get(SUBMIT)
        ours = f"--load-spark-defaults --properties-file /proc/self/fd/{file.fileno()}"
        os.environ[SUBMIT] = f"{ours} {before or 'pyspark-shell'}"
        try:
            yield file.fileno()
        finally:
            del os.environ[SUBMIT]
            if before is not None:
                os.environ[SUBMIT] = before


def _escaped(value: str) -> str:
    """As Java's properties have it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith(" ") else text


def _forward(lines: IO[bytes]) -> None:
    """What Java and the workers say, on whatever is the standard error now: a live view may have
    taken it over."""

    def forward() -> None:
        for line in lines:
            if not line.startswith(_NOISE) and not _unheard.is_set():
                with suppress(OSError, ValueError):  # closed; but Java must not wait for a reader
                    sys.stderr.write(line.decode(errors="backslashreplace"))
                    sys.stderr.flush()

    threading.Thread(target=forward, name="headrace-spark-said", daemon=True).start()
