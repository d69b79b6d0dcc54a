"""Handlers that do to their process what a record says; what was handled is noted in a file."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

from headrace import Topology, computation
from headrace.core.model import Record
from headrace.lanes.context import Context
from headrace.lanes.outputs import Outputs

MADE = {"shards": 4, "codec": "json"}


def noted(path: str | os.PathLike[str]) -> list[tuple[int, int, int, float]]:
    """Process, shard, offset and time of what was begun to be handled, in order."""
    try:
        lines = Path(path).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(int(p), int(s), int(o), float(t)) for p, s, o, t in map(str.split, lines)]


def _note(ctx: Context, record: Record) -> bool:
    """Whether it is handled for the first time."""
    path = ctx.options["effects"]
    before = {(shard, offset) for _, shard, offset, _ in noted(path)} if record.value else set()
    line = f"{os.getpid()} {record.shard} {record.offset} {time.monotonic()}\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
    return (record.shard, record.offset) not in before


@computation(inputs="orders", outputs="bills")
def serve(record: Record, out: Outputs, ctx: Context) -> None:
    is_first = _note(ctx, record)
    said = record.value or {}
    time.sleep(float(ctx.options.get("work_s", 0)))
    if is_first or not said.get("once"):
        _do(said.get("do"))
    out.append("bills", {"from": [record.shard, record.offset], "by": os.getpid()}, key="k")


def _do(what: str | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    match what:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "hang":
            time.sleep(60)
        case "hold":  # and let no other thread run
            re.match(r"(a+)+$", "a" * 60 + "b")
        case "spawn and hang":
            subprocess.Popen(["sleep", "61.6"])
            time.sleep(60)
        case "run a program":
            assert subprocess.run(["sh", "-c", "exit 7"], check=False).returncode == 7
        case "ignore hang-ups":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        case "ignore hang-ups and hang":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(60)
        case "fork":
            os.fork()  # and go on in both, as nobody should
        case "long":
            raise ValueError("\udc80" * 3_000_000)
        case "exit by itself":
            raise SystemExit(4)
        case _:
            pass


topology = Topology(serve, streams={"orders": MADE, "bills": {"shards": 1, "codec": "json"}})
