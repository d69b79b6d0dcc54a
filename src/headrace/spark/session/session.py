"""Starts a Spark session for lanes: the default one on this machine, or another by its settings."""

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

from headrace.core.computations.settings import spark_keys
from headrace.core.errors import BadSetting, HeadraceError, Refused
from headrace.core.nearest import did_you_mean
from headrace.spark.session.gateway import (
    kill_java,
    launch_java,
    mute_java,
    quiet_accumulators,
)
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
"""Java has little to do while lanes work, so it should start quickly and stay small."""
JAVA_USUAL = f"{QUIET} {LIGHT}"
_PYTHON_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)", re.M)
"""The trace of a worker; its last line says what went wrong."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Which session to use; by default one on this machine."""

    master: str | None = None
    """The master, as Spark takes it; by default ``local[lanes + 2]``."""
    remote: str | None = None
    """The address of a Spark Connect server, as in ``sc://host:15002``."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark. They win over those of Headrace."""
    ui: bool = False
    """Whether Spark serves its web pages: to this machine only, unless ``conf`` says otherwise."""

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
                near = did_you_mean(key, spark_keys(key))
                raise BadSetting(f"{key}: settings of Spark begin with spark.{near}")


@contextmanager
def spark_session(
    lanes: int, settings: SparkSettings | None = None, *, app: str = APP_NAME
) -> Iterator[SparkSession]:
    """A session with a slot for each lane, stopped at the end. If this process has a session
    already, that one is used, and not stopped."""
    settings = settings or SparkSettings()
    check_packages(connect=settings.remote is not None)
    own = _active_session()
    if own is not None:
        yield own
        return
    check_session(lanes, settings)
    if settings.remote is not None:
        session = _connect(settings, app)
    else:
        session = _start(lanes, settings, app)
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
    """Stop a session, and its Spark Connect server if that was started for it."""
    from pyspark import SparkContext

    mute_java()
    try:
        session.stop()
        context = SparkContext._active_spark_context
        if context is not None:
            context.stop()
    except Exception as why:  # Java has ended already, which the lanes have reported
        log.debug("the session cannot be stopped: %s", first_line(why))


def check_session(lanes: int, settings: SparkSettings) -> None:
    """Refuse settings that cannot work before Java starts, which takes seconds."""
    check_packages(connect=settings.remote is not None)
    place = settings.remote or _master(lanes, settings)
    slots = local_slots(place)
    if slots is not None:
        check_slots(place, slots, lanes)
    check_answers(place)
    if settings.remote is None or _is_own(settings.remote):
        check_java()


def defaults(master: str, ui: bool) -> dict[str, str]:
    """Our settings of Spark, which those of the caller replace."""
    is_local = local_slots(master) is not None
    return {
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",  # a lane is a task that does not end, not a slow one
        "spark.python.unix.domain.socket.enabled": str(is_local).lower(),
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.python.daemon.module": "headrace.spark.lanes.daemon",
        # A new fork of that daemon is ready at once, and has no modules of an earlier lane.
        "spark.python.worker.reuse": "false",
        # A module of the current directory must not be taken for one of Python's own.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        JAVA_OPTIONS: JAVA_USUAL,
        **(
            {
                "spark.authenticate": "true",
                "spark.driver.bindAddress": LOOPBACK,
                "spark.driver.host": LOOPBACK,
                # The daemon runs any code that comes through its socket: no other user may
                # reach it.
                "spark.python.unix.domain.socket.dir": str(scratch_directory()),
                "spark.local.dir": str(scratch_directory()),
                JAVA_OPTIONS: f"{JAVA_USUAL} -Djava.io.tmpdir={scratch_directory()}",
            }
            if is_local
            # A replica that loses a lane decides itself what comes next.
            else {"spark.task.maxFailures": "1"}
        ),
    }


def _active_session() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start(lanes: int, settings: SparkSettings, app: str) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    master = _master(lanes, settings)
    conf = _conf(master, settings, app)
    with _starting(master, is_local=local_slots(master) is not None):
        launch_java(conf)
        return SparkSession(quiet_accumulators(SparkContext(conf=conf)))


def _connect(settings: SparkSettings, app: str) -> SparkSession:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    assert settings.remote is not None
    url, place, is_own = settings.remote, place_of(settings.remote), _is_own(settings.remote)
    with _starting(place, is_local=is_own), _log_warnings(place):
        if is_own:
            url = _start_server(settings.remote, settings, app)
        builder: Any = ConnectSession.builder.remote(url).appName(app)
        for key, value in () if is_own else settings.conf.items():
            builder = builder.config(key, value)
        session: SparkSession = builder.create()
        session.range(1).collect()  # the first call that reaches the server
        return session


def _start_server(master: str, settings: SparkSettings, app: str) -> str:
    """Start a Spark Connect server for this process alone; its address. It takes any free port;
    PySpark's own start would take the default one, which all users share."""
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
    chosen = {**usual, **settings.conf, "spark.master": master}
    if JAVA_OPTIONS in settings.conf:
        chosen[JAVA_OPTIONS] = f"{usual[JAVA_OPTIONS]} {settings.conf[JAVA_OPTIONS]}"
    conf = SparkConf(loadDefaults=False)
    for key, value in {"spark.app.name": app, **chosen}.items():
        conf.set(key, value)
    return conf


@contextmanager
def _starting(where: str, *, is_local: bool) -> Iterator[None]:
    """An error while Spark starts becomes one line."""
    from pyspark.errors import PySparkException

    try:
        with _environment(is_local=is_local), _own_interrupts():
            yield
    except HeadraceError:
        raise
    except (PySparkException, OSError) as why:
        raise Refused(f"Spark does not start: {first_line(why)}") from why
    except Exception as why:  # an error of Java, wrapped by py4j
        raise Refused(f"Spark does not start with {where}: {first_line(why)}") from why


@contextmanager
def _log_warnings(place: str) -> Iterator[None]:
    """Log warnings of PySpark, as about a setting that only the server can make, in one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        log.warning("%s: %s", place, first_line(Exception(each.message)))


def first_line(why: BaseException) -> str:
    """The line of an error of Spark that a person wants, without its traces."""
    java = getattr(why, "java_exception", None)
    text = str(java.getMessage()) if java is not None else str(why)
    trace = _PYTHON_TRACE.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else type(why).__name__
    return first if trace is None else trace[1]


@contextmanager
def _environment(*, is_local: bool) -> Iterator[None]:
    """The environment for Java and its Python workers, set before Java starts."""
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
    """Keep the handler of Ctrl-C: Spark's would cancel all jobs, and lanes have to end in order."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
