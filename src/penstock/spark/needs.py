"""What must be there before anything of Spark is started: one clear line about what is not."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from penstock.core.errors import BadSetting, Refused
from penstock.spark.java import ADVICE, JAVA_MIN, find_java

INSTALL = "pip install 'penstock[spark]'"
OR_LOCAL = "or run without Spark: --engine local"
PANDAS_MIN, PANDAS_BELOW = (2, 2), (3,)
SPARE_SLOTS = 2
"""Beside those of the lanes: while a lost lane still holds its own, its successor takes one."""

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
        raise Refused("Spark Connect wants more packages: pip install 'penstock[connect]'")


def check_java() -> None:
    java = find_java()
    if java.path is None:
        home = os.environ.get("JAVA_HOME")
        where = f"there is no bin/java in JAVA_HOME={home}" if home else "no java on the path"
        raise Refused(f"Spark runs on Java, and {where}: {ADVICE}, {OR_LOCAL}")
    if not java.is_new_enough:
        raise Refused(
            f"Spark runs on Java {JAVA_MIN} or newer, and {java.path} is {java}: {ADVICE}, "
            f"{OR_LOCAL}"
        )


def local_slots(master: str) -> int | None:
    """How many tasks run at once in that session of one machine; None: it is a cluster."""
    found = _LOCAL.match(master.strip())
    if found is None:
        return None
    if found[1] is None:
        return 1
    return (os.cpu_count() or 1) if found[1] == "*" else int(found[1])


def check_slots(master: str, slots: int, lanes: int) -> None:
    """Each lane holds one all the time: with too few, the others would wait for ever, and nobody
    would say so."""
    if slots < lanes:
        more = f"local[{lanes + SPARE_SLOTS}]" if local_slots(master) is not None else "more cores"
        raise BadSetting(
            f"{master} runs {slots} tasks at once, too few for {lanes} lanes, which hold one each: "
            f"give it {more}, or take fewer lanes, as --lanes {slots}"
        )
