"""The session of lanes: what it must find, what it is told, and what a person sees of it."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

import headrace
from headrace import Topology, computation
from headrace.core.errors import BadSetting, HeadraceError, Refused, Unsupported
from headrace.lanes.outputs import Outputs
from headrace.process.java import Java, find_java
from headrace.spark import SparkSettings, spark_session
from headrace.spark.lanes.reach import ON_THIS_MACHINE
from headrace.spark.session import needs, session
from headrace.spark.session.needs import check_answers, check_slots, local_slots, place_of
from tests.cli.shell import Shell, shell
from tests.conftest import SPARK_CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["shell"]

SHOP = """\
from headrace import Topology, computation

@computation(inputs="orders", outputs="bills")
def bill(record, out):
    out.append("bills", record.value, key="k")

made = {"shards": 2, "codec": "json"}
topology = Topology(bill, streams={"orders": made, "bills": {"shards": 1, "codec": "json"}})
"""


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    logger = logging.getLogger("headrace")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


@pytest.fixture
def no_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused is refused before; the session of other tests is out of sight."""

    def launch(conf: object) -> NoReturn:
        raise AssertionError("Java would have been started")

    monkeypatch.setattr(session, "_active_session", lambda: None)
    monkeypatch.setattr(session, "launch_java", launch)


@pytest.fixture
def shop(shell: Shell, no_java_starts: None) -> Shell:
    (shell.cwd / "shop.py").write_text(SHOP)
    with headrace.open(shell.cwd / "headrace-data") as hub:
        hub.create_stream("orders", shards=2, codec="json")
        hub.create_stream("bills", shards=1, codec="json")
    return shell


Java_ = Callable[[str], Path]


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java_:
    """Makes the only ``java`` of this machine one that says so when it is asked for its version."""

    def make(says: str) -> Path:
        place = tmp_path / "fake" / "bin" / "java"
        place.parent.mkdir(parents=True)
        place.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        place.chmod(0o755)
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(place.parent))
        return place

    return make


def refused(**settings: str) -> str:
    """The one line with which a session for four lanes is refused."""
    with pytest.raises(HeadraceError) as why:
        spark_session(4, SparkSettings(**settings)).__enter__()  # type: ignore[arg-type]
    assert "\n" not in str(why.value)
    return str(why.value)


# Java


def test_no_java_is_one_line(
    no_java_starts: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused() == (
        "Spark runs on Java, and no java on the path: install a JDK of version 17 or newer, as "
        "openjdk-17-jre, or set JAVA_HOME to one, or run without Spark: --engine local"
    )


def test_a_java_home_without_java_is_one_line_whatever_is_on_the_path(
    no_java_starts: None, java: Java_, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java('openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"there is no bin/java in JAVA_HOME={tmp_path}" in refused()


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "11.0.2"),
        ('java version "1.8.0_292"', "8.0_292"),
        ('openjdk version "16-ea" 2021-03-16', "16-ea"),
    ],
)
def test_an_old_java_is_one_line(
    no_java_starts: None, java: Java_, says: str, version: str
) -> None:
    place = java(says)
    assert f"Spark runs on Java 17 or newer, and {place} is {version}: install" in refused()


def test_a_program_called_java_that_is_none_is_one_line(no_java_starts: None, java: Java_) -> None:
    place = java(
        "The operation couldn't be completed. Unable to locate a Java Runtime.".replace("'", "")
    )
    assert f"and {place} gives no answer to -version: install" in refused()


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15"),
        ('openjdk version "21" 2023-09-19', "21"),
        ('openjdk version "25-ea" 2025-09-16', "25-ea"),
    ],
)
def test_a_new_java_is_taken(java: Java_, says: str, version: str) -> None:
    place = java(says)
    assert find_java() == Java(str(place), version)
    assert find_java().is_new_enough


# Packages


def missing(*names: str) -> Callable[[str], ModuleSpec | None]:
    return lambda name: None if name in names else ModuleSpec(name, None)


def test_missing_pyspark_is_one_line(no_java_starts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_spec", missing("pyspark"))
    assert refused() == (
        "pyspark is not installed: pip install 'headrace[spark]', or run without Spark: "
        "--engine local"
    )


def test_missing_pandas_is_one_line(no_java_starts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(needs, "version", version)
    assert refused() == (
        "pandas is not installed, and Spark wants it: pip install 'headrace[spark]'"
    )


@pytest.mark.parametrize("version", ["3.0.0", "2.1.4", "3.0.0rc1"])
def test_a_pandas_that_spark_does_not_take_is_one_line(
    no_java_starts: None, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(needs, "version", lambda name: version)
    assert refused() == f"pandas {version} is not for Spark: pip install 'pandas>=2.2,<3'"


@pytest.mark.parametrize("package", ["grpc", "grpc_status"])
def test_missing_packages_of_connect_are_one_line(
    no_java_starts: None, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(needs, "find_spec", missing(package))
    line = "Spark Connect wants more packages: pip install 'headrace[connect]'"
    assert refused(remote="sc://localhost") == line
    assert line not in refused(master="local[1]"), "without it they are not missed"


# Slots


@pytest.mark.parametrize(
    ("master", "slots"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[ 3 , 4 ]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,512]", None),
        ("spark://host:7077", None),
        ("yarn", None),
    ],
)
def test_slots_of_a_master(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots


@pytest.mark.parametrize("how", ["master", "remote"])
def test_too_few_slots_for_the_lanes_are_one_line(no_java_starts: None, how: str) -> None:
    assert refused(**{how: "local[2]"}) == (
        "local[2] runs 2 tasks at once, too few for 4 lanes, which hold one each: give it "
        "local[6], or take fewer lanes, as --lanes 2"
    )


def test_a_cluster_that_gives_no_executor_is_not_told_to_take_no_lanes() -> None:
    with pytest.raises(
        BadSetting, match="has no executor for 2 lanes: other programs hold its cores"
    ):
        check_slots("spark://host:7077", 0, 2)


@pytest.mark.slow
def test_a_callers_session_with_too_few_slots_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    slots = local_slots(spark.conf.get("spark.master") or "")
    assert slots is not None
    with (
        headrace.open(tmp_path / "hub") as hub,
        pytest.raises(BadSetting, match=f"{slots} tasks at once, too few for {slots + 1} lanes"),
    ):
        headrace.start(topology, hub, spark=spark, lanes=slots + 1)


# Masters and servers that are not there


@pytest.fixture
def closed_port() -> int:
    """One on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(("option", "scheme"), [("master", "spark"), ("remote", "sc")])
def test_a_master_that_does_not_answer_is_one_line_at_once(
    no_java_starts: None, closed_port: int, option: str, scheme: str
) -> None:
    began_s = time.monotonic()
    url = f"{scheme}://127.0.0.1:{closed_port}"
    assert refused(**{option: url}) == (
        f"{url} does not answer: Connection refused; is it started, and on this port?"
    )
    assert time.monotonic() - began_s < 5


def test_one_of_several_masters_suffices(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        check_answers(f"spark://127.0.0.1:{closed_port},127.0.0.1:{port}")
        check_answers(f"sc://127.0.0.1:{port}/;token=secret;user_id=ann")
        with pytest.raises(Refused):
            check_answers(f"spark://127.0.0.1:{closed_port},127.0.0.1:{closed_port}")


def test_a_token_is_not_shown(closed_port: int) -> None:
    with pytest.raises(Refused) as why:
        check_answers(f"sc://127.0.0.1:{closed_port}/;token=secret")
    assert "secret" not in str(why.value)
    assert place_of("sc://host:15002/;use_ssl=true;token=secret") == "sc://host:15002"


@pytest.mark.parametrize(
    "settings",
    [
        {"master": "local[two]"},
        {"master": "moon"},
        {"conf": {"spark.master": "local[two]"}},
        {"remote": "host:15002"},
        {"master": "spark://host:70777777"},
        {"master": "spark://"},
        {"master": "local[4]", "remote": "sc://host"},
    ],
    ids=str,
)
def test_a_bad_master_or_remote_is_refused(
    no_java_starts: None, settings: dict[str, object]
) -> None:
    with pytest.raises(BadSetting):
        spark_session(4, SparkSettings(**settings)).__enter__()  # type: ignore[arg-type]


# On the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--master", "local[2]"], "local[2] runs 2 tasks at once, too few for 4 lanes"),
        (["--conf", "spark.master=local[2]"], "local[2] runs 2 tasks at once"),
        (["--conf", "spark.ui.port"], "--conf 'spark.ui.port': write it as spark.some.key=value"),
        (["--conf", "ui.port=1"], "ui.port: settings of Spark begin with spark."),
        (["--engine", "local", "--master", "local[9]"], "--master is for Spark: leave out"),
        (["--engine", "local", "--remote", "sc://host"], "--remote is for Spark: leave out"),
        (["--engine", "local", "--conf", "spark.x=1"], "--conf is for Spark: leave out"),
        (["--engine", "local", "--ui"], "--ui is for Spark: leave out --engine local"),
        (["--processes"], "--processes is for lanes without Spark: add --engine local"),
        (["--master", "local[9]", "--remote", "sc://host"], "a master and a remote"),
        (["--master", "spark://host:7077"], f"say so with --conf {ON_THIS_MACHINE}=true"),
        (["--remote", "sc://10.0.0.5"], f"say so with --conf {ON_THIS_MACHINE}=true"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)  # fmt: skip
def test_what_cannot_work_is_one_line_before_anything_starts(
    shop: Shell, arguments: list[str], said: str
) -> None:
    assert said in shop.fails("run", "shop.py", "--json", *arguments)


def test_a_cluster_that_does_not_answer_is_one_line(shop: Shell, closed_port: int) -> None:
    said = shop.fails(
        "run", "shop.py", "--json", "--master", f"spark://127.0.0.1:{closed_port}",
        "--conf", f"{ON_THIS_MACHINE}=true",
    )  # fmt: skip
    assert "does not answer: Connection refused" in said


def test_a_memory_hub_is_refused_for_lanes_on_spark(shop: Shell) -> None:
    (shop.cwd / "headrace.toml").write_text("")
    assert "memory" in shop.fails("--hub", "memory:", "run", "shop.py", "--json")


@pytest.mark.slow
def test_a_memory_hub_is_refused_in_a_callers_session_too(spark: SparkSession) -> None:
    with headrace.open("memory:") as hub, pytest.raises(Unsupported, match="memory"):
        headrace.start(topology, hub, spark=spark, lanes=1)


# What Spark is told


@computation(inputs="orders", outputs="bills")
def bill(record: headrace.Record, out: Outputs) -> None:
    out.append("bills", record.value, key="k")


made = {"shards": 1, "codec": "json"}
topology = Topology(bill, streams={"orders": made, "bills": made})


def test_a_session_of_this_machine_listens_nowhere_else_and_keeps_little() -> None:
    told = session.defaults("local[6]", False)
    for key, value in {
        "spark.scheduler.mode": "FAIR",
        "spark.speculation": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.authenticate": "true",
    }.items():
        assert told[key] == value, key
    assert session.defaults("local[6]", True)["spark.ui.enabled"] == "true"


def test_a_cluster_leaves_lost_lanes_to_their_replica() -> None:
    told = session.defaults("spark://host:7077", False)
    assert told["spark.task.maxFailures"] == "1"
    assert told["spark.speculation"] == "false"
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"} & set(told)
    assert told["spark.python.unix.domain.socket.enabled"] == "false"


def test_settings_of_the_caller_win_and_java_stays_quiet() -> None:
    given = {"spark.scheduler.mode": "FIFO", session.JAVA_OPTIONS: "-Xss4m"}
    conf = session._conf("local[4]", SparkSettings(conf=given), "mine")
    assert conf.get("spark.scheduler.mode") == "FIFO"
    assert conf.get("spark.app.name") == "mine"
    assert conf.get("spark.master") == "local[4]"
    options = conf.get(session.JAVA_OPTIONS) or ""
    assert options.endswith(" -Xss4m")
    assert Path(options.split()[0].partition("file:")[2]).is_file()


@pytest.mark.slow
def test_a_session_has_the_settings_it_was_given(spark: SparkSession) -> None:
    master = spark.conf.get("spark.master") or ""
    for key, value in {**session.defaults(master, False), **SPARK_CONF}.items():
        assert (spark.conf.get(key) or "").endswith(value), f"{key}: to Java, Spark says more"


@pytest.mark.slow
def test_the_handler_of_ctrl_c_is_kept(spark: SparkSession) -> None:
    """PySpark would cancel all jobs instead."""
    handler = signal.getsignal(signal.SIGINT)
    assert "pyspark" not in str(getattr(handler, "__module__", handler))


@pytest.mark.slow
def test_an_active_session_is_used_and_not_stopped(spark: SparkSession) -> None:
    with spark_session(2, SparkSettings(master="spark://nowhere:1")) as found:
        assert found is spark
    assert spark.range(3).count() == 3


# What a person sees


OURS = re.compile(
    r"starting Spark on this machine$|Spark is ready after \d+\.\d s$|running bill on \S+ as \S+$|"
    r"[-\d]+ [:,\d]+ INFO (group=bill|stream=bills:) "
)


@pytest.mark.slow
def test_a_normal_run_shows_no_line_of_spark_or_java(shell: Shell) -> None:
    (shell.cwd / "shop.py").write_text(SHOP)
    with headrace.open(shell.cwd / "headrace-data") as hub:
        hub.create_stream("orders", shards=2, codec="json")
        hub.stream("orders").append_many([({"n": n}, str(n)) for n in range(50)])
        ended = subprocess.run(
            [sys.executable, "-m", "headrace", "run", "shop.py", "--until-caught-up"],
            cwd=shell.cwd, env=shell.environment, capture_output=True, text=True, check=False,
            timeout=240,
        )  # fmt: skip
        found = sorted(record.value["n"] for record in hub.stream("bills").read(0))
    assert ended.returncode == 0, ended.stderr
    assert found == list(range(50))
    assert [line for line in ended.stderr.splitlines() if not OURS.match(line)] == []
    header, row = ended.stdout.splitlines()
    assert header.split()[0] == "computation"
    assert row.split()[0] == "bill"
