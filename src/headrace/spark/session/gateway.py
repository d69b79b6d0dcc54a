"""Starts the Java process of a session, so that its settings stay private, and forwards its output
to the standard error of this process."""

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
"""How long a caller that cannot reach Java waits for its exit code."""

_NOISE = (b"WARNING: Using incubator modules",)
"""Lines that Java prints before any setting can prevent it."""

_muted = threading.Event()


def mute_java() -> None:
    """Forward no more output until the next session: while one is stopped, its workers complain
    that it is gone."""
    _muted.set()


def launch_java(conf: SparkConf) -> None:
    """Start Java, unless this process has one already. It runs in a process session of its own, so
    that Ctrl-C and SIGTERM to a process group do not reach it: the replica ends its lanes in
    order."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    _muted.clear()
    if SparkContext._gateway is None:
        read_end, write_end = os.pipe()
        lines = os.fdopen(read_end, "rb")
        launch: Callable[..., Any] = launch_gateway
        try:
            with _private_settings(conf) as file:
                how = {"stderr": write_end, "start_new_session": True, "pass_fds": (file,)}
                gateway = launch(None, how)
        except PySparkRuntimeError as why:
            os.close(write_end)
            raise Refused(f"Java does not start: {_reason(lines) or why}") from why
        os.close(write_end)
        _forward(lines)
        SparkContext._ensure_initialized(gateway=gateway)


def _reason(lines: IO[bytes]) -> str:
    """The first line that Java printed before it ended."""
    printed = [
        line.decode(errors="backslashreplace").strip()
        for line in lines.readlines(REASON_BYTES)
        if not line.startswith(_NOISE)
    ]
    return next(filter(None, printed), "")


def kill_java() -> None:
    """Kill Java and the daemon of its workers."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def java_ended() -> str | None:
    """How the Java of this process has ended, waiting a moment for it; None if it lives."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        code = None if process is None else process.wait(ENDED_S)
    except subprocess.TimeoutExpired:
        return None
    if code is None:
        return None
    return f"Java has ended by signal {-code}" if code < 0 else f"Java has ended with code {code}"


def quiet_accumulators(context: SparkContext) -> SparkContext:
    """Print no trace when Java dies: PySpark's server of accumulators does, and the lanes report it
    already."""
    server: Any = context._accumulatorServer
    before = server.handle_error

    def handle_error(request: Any, client: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            before(request, client)

    server.handle_error = handle_error
    return context


@contextmanager
def _private_settings(conf: SparkConf) -> Iterator[int]:
    """A file with the settings for Java: on its command line all users could read them. The file is
    in memory, and gone when the last process closes it."""
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
    """A value as a properties file of Java needs it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{text}" if text.startswith(" ") else text


def _forward(lines: IO[bytes]) -> None:
    """Forward the output of Java and the workers to the standard error of the moment: a live view
    may have replaced it."""

    def forward() -> None:
        for line in lines:
            if not line.startswith(_NOISE) and not _muted.is_set():
                with suppress(OSError, ValueError):  # closed; go on reading, or Java would wait
                    sys.stderr.write(line.decode(errors="backslashreplace"))
                    sys.stderr.flush()

    threading.Thread(target=forward, name="headrace-spark-said", daemon=True).start()
