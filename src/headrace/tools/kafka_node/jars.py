"""The jars of Kafka: fetched once with the Ivy that comes with PySpark, then kept in the user's
cache.

They are fetched into a directory of another name, which is renamed when all are there: a directory
of the right name is whole. A list of names and sizes shows whether files were deleted since.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from headrace.core.errors import Refused
from headrace.tools.kafka_node.java import java_path
from headrace.tools.kafka_node.locking import alone

log = logging.getLogger("headrace.kafka")

KAFKA_VERSION = "4.3.1"
SETTINGS_VARIABLE = "HEADRACE_IVY_SETTINGS"
"""Names a settings file of Ivy, to fetch from a repository of your own."""
FETCH_S = 600.0

_WHAT = f"Kafka {KAFKA_VERSION}"
_WANTED = f"""\
<ivy-module version="2.0">
  <info organisation="headrace" module="broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"
                conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""
"""The second dependency writes the log: Kafka brings nothing that would."""
_LIST = "list"
_PATIENCE = (
    "-Dsun.net.client.defaultConnectTimeout=10000",
    "-Dsun.net.client.defaultReadTimeout=30000",
)
_REASON = re.compile(r"^.*(?:[a-z]+\.)+(\w*Exception: .+)$|^.*(Server access error.+)$", re.M)


def kafka_jars() -> Path:
    """The directory of the jars, which are fetched if they are missing."""
    place = jars_directory()
    if is_whole(place):
        return place
    java, ivy = java_path(), _ivy()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise Refused(
            f"{_WHAT} is kept in {place}, and that cannot be made: {why.strerror}; "
            "name another directory for caches by XDG_CACHE_HOME"
        ) from None
    with alone(place.with_name(f"{place.name}.lock")) as lock:
        if not is_whole(place):  # another process may have fetched them meanwhile
            _fetch(java, ivy, place, lock)
    return place


def has_jars() -> bool:
    return is_whole(jars_directory())


def jars_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "headrace" / f"kafka-{KAFKA_VERSION}"


def is_whole(place: Path) -> bool:
    try:
        return (place / _LIST).read_text() == _listed(place)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _fetch(java: str, ivy: str, place: Path, lock: int) -> None:
    # A warning, so that logs show it too: fetching may take a minute.
    log.warning("fetching %s (45 MB, only once) into %s", _WHAT, place)
    making = place.with_name(f"{place.name}.fetching")
    shutil.rmtree(making, ignore_errors=True)  # left by a process that was killed
    jars = making / "jars"
    jars.mkdir(parents=True)
    wanted = making / "ivy.xml"
    wanted.write_text(_WANTED)
    settings = os.environ.get(SETTINGS_VARIABLE)
    output = place.with_name(f"{place.name}.log")
    _run_ivy(
        [
            java, *_PATIENCE, f"-Divy.default.ivy.user.dir={making}", "-jar", ivy,
            *(["-settings", settings] if settings else []),
            "-ivy", str(wanted), "-cache", str(making / "cache"),
            "-retrieve", f"{jars}/[artifact]-[revision].[ext]", "-types", "jar", "bundle",
        ],
        output,
        lock,
    )  # fmt: skip
    listed = _listed(jars)
    if not listed:
        raise Refused(_failed("Ivy found nothing", output))
    (jars / _LIST).write_text(listed)
    shutil.rmtree(place, ignore_errors=True)  # a directory that was whole once
    jars.rename(place)
    shutil.rmtree(making)


def _run_ivy(command: list[str], log: Path, lock: int) -> None:
    with log.open("wb") as output:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=FETCH_S,
                pass_fds=(lock,),  # held as long as Ivy writes, even if it outlives this process
            ).returncode
        except subprocess.TimeoutExpired:
            raise Refused(_failed(f"Ivy did not finish within {FETCH_S:g} s", log)) from None
    if code:
        found = _REASON.search(log.read_text(errors="replace"))
        why = (found[1] or found[2]).rstrip(")") if found else f"Ivy ended with {code}"
        raise Refused(_failed(why, log))


def _failed(why: str, log: Path) -> str:
    return (
        f"{_WHAT} could not be fetched: {why}; it needs the network once, or a repository of your "
        f"own in a settings file of Ivy named by {SETTINGS_VARIABLE}; see {log}"
    )


def _ivy() -> str:
    found = find_spec("pyspark")
    places = found.submodule_search_locations if found is not None else None
    jars = sorted(Path(places[0], "jars").glob("ivy-*.jar")) if places else []
    if not jars:
        raise Refused(
            f"{_WHAT} is fetched with the Ivy of PySpark, and pyspark is not installed: "
            f"pip install 'headrace[spark]', or copy {jars_directory()} from where it is"
        )
    return str(jars[-1])


def _listed(place: Path) -> str:
    """The sizes and names of the jars, one line for each."""
    jars = sorted(place.glob("*.jar"))
    return "".join(f"{jar.stat().st_size} {jar.name}\n" for jar in jars)
