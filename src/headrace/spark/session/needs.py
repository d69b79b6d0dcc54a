"""Checks what Spark needs before anything of it is started: one line about what is missing."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from headrace.core.errors import BadSetting, Refused
from headrace.process.java import ADVICE, JAVA_MIN, find_java

INSTALL = "pip install 'headrace[spark]'"
OR_LOCAL = "or run without Spark: --engine local"
PANDAS_MIN, PANDAS_BELOW = (2, 2), (3,)
SPARE_SLOTS = 2
"""Slots beside those of the lanes: while a lost lane still holds its slot, its successor takes one
of these."""

ANSWER_S = 5.0
"""How long a master or a server may take to answer; Spark itself would try for minutes."""
_PORTS = {"spark": 7077, "sc": 15002}
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")

_LOCAL = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*[0-9]+\s*)?\])?$")


def check_packages(*, connect: bool = False) -> None:
    if find_spec("pyspark") is None:
        raise Refused(f"pyspark is not installed: {INSTALL}, {OR_LOCAL}")
    try:
        pandas = version("pandas")
    except PackageNotFoundError:
        raise Refused(f"pandas is not installed, and Spark wants it: {INSTALL}") from None
    found = tuple(int(part) for part in re.findall(r"[0-9]+", pandas)[:2])
    if not PANDAS_MIN <= found < PANDAS_BELOW:
        raise Refused(f"pandas {pandas} is not for Spark: pip install 'pandas>=2.2,<3'")
    if connect and (find_spec("grpc") is None or find_spec("grpc_status") is None):
        raise Refused("Spark Connect wants more packages: pip install 'headrace[connect]'")


def check_java() -> None:
    java = find_java()
    if java.path is None:
        home = os.environ.get("JAVA_HOME")
        where = f"there is no bin/java in JAVA_HOME={home}" if home else "no java on the path"
        raise Refused(f"Spark runs on Java, and {where}: {ADVICE}, {OR_LOCAL}")
    if not java.is_new_enough:
        raise Refused(
            f"Spark runs on Java {JAVA_MIN} or newer, and {java.path} "
            f"{f'is {java.version}' if java.version else 'gives no answer to -version'}: {ADVICE}, "
            f"{OR_LOCAL}"
        )


def check_python(workers: str) -> None:
    """Refuse if Spark's workers on this machine would run another Python than this one."""
    found = shutil.which(workers)
    place, own = (os.path.realpath(os.path.dirname(each or "")) for each in (found, sys.executable))
    if found is None or place != own:
        raise BadSetting(
            f"Spark's workers would run {found or workers}, and this is {sys.executable}: set "
            f"PYSPARK_PYTHON={sys.executable} before the session is made"
        )


def local_slots(master: str) -> int | None:
    """How many tasks run at once with a local master; None: it is a cluster."""
    found = _LOCAL.match(master.strip())
    if found is None:
        return None
    if found[1] is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def is_master(text: str) -> bool:
    """Whether Spark would take it for a master."""
    known = local_slots(text) is not None or text == "yarn" or "://" in text
    return known or text.startswith("local-cluster[")


def place_of(url: str) -> str:
    """An address without what may be a secret: the token of ``sc://host:15002/;token=…``."""
    kind, colon, rest = url.partition("://")
    return kind + colon + re.split(r"[/;?]", rest)[0]


def check_answers(url: str) -> None:
    """Refuse a ``spark://host:port`` (of several, all) or ``sc://host:port`` where no server
    listens; other addresses are not checked."""
    shown = place_of(url)
    kind, _, places = shown.partition("://")
    if kind not in _PORTS:
        return
    if kind == "sc" and any(os.environ.get(name) for name in _PROXIES):
        return  # a proxy reaches it, not this process
    why: object = None
    for place in places.split(","):
        host, port = _host_and_port(shown, place, _PORTS[kind])
        try:
            socket.create_connection((host, port), ANSWER_S).close()
            return
        except OSError as failed:
            why = failed.strerror or failed
    raise Refused(f"{shown} does not answer: {why}; is it started, and on this port?")


def _host_and_port(url: str, place: str, usual: int) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[^]]+\]|[^:]+)(?::([0-9]{1,5}))?", place)
    if found is None or int(found[2] or usual) > 65535:
        kind = url.partition("://")[0]
        raise BadSetting(f"{url} names no host and port: write it as {kind}://host:{usual}")
    return found[1].strip("[]"), int(found[2] or usual)


def check_slots(master: str, slots: int, lanes: int) -> None:
    """Refuse too few slots. Each lane holds one all the time: a lane without one would wait for
    ever, and Spark would not say so."""
    is_local = local_slots(master) is not None
    if not slots and not is_local:
        raise BadSetting(
            f"{master} has no executor for {lanes} lanes: other programs hold its cores, or none "
            "has the memory of --conf spark.executor.memory=…"
        )
    if slots < lanes:
        more = f"local[{lanes + SPARE_SLOTS}]" if is_local else "more cores"
        tasks = "1 task" if slots == 1 else f"{slots} tasks"
        fewer = f", or take fewer lanes, as --lanes {slots}" if slots else ""
        raise BadSetting(
            f"{master} runs {tasks} at once, too few for {lanes} lanes, which hold one each: "
            f"give it {more}{fewer}"
        )
