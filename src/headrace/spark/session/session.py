"""A session of Spark for lanes: the default one of this machine, or another by its settings."""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.core.errors import BadSetting, HeadraceError, Refused
from headrace.spark.session.gateway import hear_no_more, kill_java, launch_java, quieten
from headrace.spark.session.needs import (
    SPARE_SLOTS,
    check_answers,
    check_java,
    check_packages,
    check_slots,
    is_master,
    local_slots,
    place_of,
)
from headrace.spark.session.scratch import scratch_directory

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace")

APP_NAME = "headrace"
STOP_S = 10.0
LOOPBACK = "127.0.0.1"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
QUIET = f"-Dlog4j2.configurationFile=file:{Path(__file__).with_name('log4j2.properties')}"
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""While lanes work Java has nothing to do: it shall start quickly and stay small."""


JAVA_USUAL = f"{QUIET} {LIGHT}"
_PYTHON_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.M)
"""Of a worker: its last line says what went wrong."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Which session; without any the default one of this machine."""

    master: str | None = None
    """As Spark takes it; the default is ``local[lanes + 2]``."""
    remote: str | None = None
    """A server of Spark Connect, as in ``sc://host:15002``."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark. They win over ours."""
    ui: bool = False
    """Whether Spark shows its pages, on this machine only unless ``conf`` says otherwise."""

    def __post_init__(self) -> None:
        if self.master is not None and self.remote is not None:
            raise BadSetting("a master and a remote: a server of Spark Connect has its own master")
        master = self.master or self.conf.get("spark.master")
        if master is not None and not is_master(master):
            raise BadSetting(f"master {master!r}: write it as local[6], spark://host:7077 or yarn")
        if self.remote is not None and not self.remote.startswith(("sc://", "local")):
            raise BadSetting(f"remote {self.remote!r}: write it as sc://host:15002")
        for key in self.conf:
            if not key.startswith("spark."):
                raise BadSetting(f"{key}: settings of Spark begin with spark.")


@contextmanager
def spark_session(
    lanes: int, settings: SparkSettings | None = None, *, app: str = APP_NAME
) -> Iterator[SparkSession]:
    """A session with a slot for each lane, stopped at the end; one that this process has already
    is taken as it is, and left as it was."""
    settings = settings or SparkSettings()
    check_packages(connect=settings.remote is not None)
    own = _active()
    if own is not None:
        yield own
        return
    check_session(lanes, settings)
    session = (_connected if settings.remote is not None else _started)(lanes, settings, app)
    try:
        yield session
    finally:
        stopping = threading.Thread(target=_stop, args=(session,), daemon=True)
        stopping.start()
        stopping.join(STOP_S)
        if stopping.is_alive():
            log.warning("Java does not answer for %g s: it is killed", STOP_S)
            kill_java()


def _stop(session: SparkSession) -> None:
    """With the server, if it was started for this session."""
    from pyspark import SparkContext

    hear_no_more()
    try:
        session.stop()
        context = SparkContext._active_spark_context
        if context is not None:
            context.stop()
    except Exception as why:  # Java is gone already: who ran lanes on it has said so
        log.debug("the session cannot be stopped: %s", first_line(why))


def check_session(lanes: int, settings: SparkSettings) -> None:
    """What is known before Java starts, which takes its time."""
    check_packages(connect=settings.remote is not None)
    place = settings.remote or _master(lanes, settings)
    slots = local_slots(place)
    if slots is not None:
        check_slots(place, slots, lanes)
    check_answers(place)
    if settings.remote is None or _is_own(settings.remote):
        check_java()


def defaults(master: str, ui: bool) -> dict[str, str]:
    """What holds unless somebody says otherwise."""
    is_local = local_slots(master) is not None
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",  # a lane that stays is no slow one
        "spark.python.unix.domain.socket.enabled": str(is_local).lower(),
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.python.daemon.module": "headrace.spark.lanes.daemon",
        # A fork of that daemon is ready at once, and knows nothing of an earlier lane's modules.
        "spark.python.worker.reuse": "false",
        # A module of the current directory must not be taken for one of Python's own.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        JAVA_OPTIONS: JAVA_USUAL,
        **(
            {
                "spark.authenticate": "true",
                "spark.driver.bindAddress": LOOPBACK,
                "spark.driver.host": LOOPBACK,
                # Who reaches a socket of the daemon has his code run: nobody else must.
                "spark.python.unix.domain.socket.dir": str(scratch_directory()),
                "spark.local.dir": str(scratch_directory()),
                JAVA_OPTIONS: f"{JAVA_USUAL} -Djava.io.tmpdir={scratch_directory()}",
            }
            if is_local
            # Who loses a lane decides himself what comes next.
            else {"spark.task.maxFailures": "1"}
        ),
    }


def _active() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _started(lanes: int, settings: SparkSettings, app: str) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    master = _master(lanes, settings)
    conf = _conf(master, settings, app)
    with _starting(master, is_local=local_slots(master) is not None):
        launch_java(conf)
        return SparkSession(quieten(SparkContext(conf=conf)))


def _connected(lanes: int, settings: SparkSettings, app: str) -> SparkSession:
    from pyspark.sql.connect.session import SparkSession as Connected

    assert settings.remote is not None
    url, place, is_own = settings.remote, place_of(settings.remote), _is_own(settings.remote)
    with _starting(place, is_local=is_own), _unset_told(place):
        if is_own:
            url = _served(settings.remote, settings, app)
        builder: Any = Connected.builder.remote(url).appName(app)
        for key, value in () if is_own else settings.conf.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.create()
        session.range(1).collect()  # only now it is asked
        return session


def _served(master: str, settings: SparkSettings, app: str) -> str:
    """Where a server of Spark Connect is, started for this process alone: at any port of this
    machine, while PySpark's own would take the usual one of all."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    token = secrets.token_hex(32)
    conf = _conf(master, settings, app)
    for key, value in {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
    }.items():
        conf.set(key, value)
    launch_java(conf)
    SparkSession(SparkContext(conf=conf))
    jvm: Any = SparkContext._jvm
    service = getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://localhost:{getattr(service, 'MODULE$').localPort()}/;token={token}"


def _master(lanes: int, settings: SparkSettings) -> str:
    return settings.master or settings.conf.get("spark.master", f"local[{lanes + SPARE_SLOTS}]")


def _is_own(remote: str) -> bool:
    """Whether the server is one that this process starts for itself."""
    return remote.startswith("local")


def _conf(master: str, settings: SparkSettings, app: str) -> SparkConf:
    from pyspark import SparkConf

    usual = defaults(master, settings.ui)
    told = {**usual, **settings.conf, "spark.master": master}
    if JAVA_OPTIONS in settings.conf:
        told[JAVA_OPTIONS] = f"{usual[JAVA_OPTIONS]} {settings.conf[JAVA_OPTIONS]}"
    conf = SparkConf(loadDefaults=False)
    for key, value in {"spark.app.name": app, **told}.items():
        conf.set(key, value)
    return conf


@contextmanager
def _starting(where: str, *, is_local: bool) -> Iterator[None]:
    """What goes wrong meanwhile is one line."""
    from pyspark.errors import PySparkException

    try:
        with _environment(is_local=is_local), _own_interrupts():
            yield
    except HeadraceError:
        raise
    except (PySparkException, OSError) as why:
        raise Refused(f"Spark does not start: {first_line(why)}") from why
    except Exception as why:  # Java's own, in a wrapping of py4j
        raise Refused(f"Spark does not start with {where}: {first_line(why)}") from why


@contextmanager
def _unset_told(place: str) -> Iterator[None]:
    """A setting that only the server can make is told in our words, not in a warning of Python."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        log.warning("%s: %s", place, first_line(Exception(each.message)))


def first_line(why: BaseException) -> str:
    """What a person wants to know of an error of Spark: not its traces."""
    java = getattr(why, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(why)
    trace = _PYTHON_TRACE.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else type(why).__name__
    return first if trace is None else trace[1]


@contextmanager
def _environment(*, is_local: bool) -> Iterator[None]:
    """What Java and its Python workers shall find; it must be there before Java starts."""
    wanted = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if is_local:
        wanted["SPARK_LOCAL_IP"] = LOOPBACK
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Spark would cancel all jobs at Ctrl-C; who runs lanes lets them end in order."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
