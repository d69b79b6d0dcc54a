"""Options of commands for Spark, and the start of its session."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from headrace.cli import render
from headrace.cli.options import pairs
from headrace.core.errors import BadSetting
from headrace.spark.session.needs import place_of
from headrace.spark.session.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES = ("spark", "local")

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--master", metavar="URL",
                 help="The cluster to run on, as spark://host:7077 [local, this machine]."),
    click.option("--remote", metavar="URL", help="A server of Spark Connect, as sc://host:15002."),
    click.option("--conf", "conf", multiple=True, metavar="K=V", help="A setting of Spark."),
    click.option("--ui", is_flag=True, help="Have Spark show its pages, and say where."),
)  # fmt: skip


def spark_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def spark_settings(
    section: Mapping[str, Any],
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    ui: bool,
) -> SparkSettings:
    """The section ``[spark]`` of ``headrace.toml``, and the command line, which wins."""
    given = {**section.get("conf", {}), **pairs("--conf", conf, "spark.some.key=value")}
    if master is None and remote is None:
        master, remote = section.get("master"), section.get("remote")
    return SparkSettings(
        master=master, remote=remote, conf=given, ui=ui or bool(section.get("ui", False))
    )


def check_local(
    engine: str,
    processes: bool,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    ui: bool,
) -> None:
    """Refuse options of one engine that are given with another."""
    if engine == "spark" and processes:
        raise BadSetting("--processes is for lanes without Spark: add --engine local")
    if engine == "local":
        for option, given in (
            ("--master", master), ("--remote", remote), ("--conf", conf), ("--ui", ui),
        ):  # fmt: skip
            if given:
                raise BadSetting(f"{option} is for Spark: leave out --engine local")


@contextmanager
def start_session(
    lanes: int, settings: SparkSettings, *, app: str, quiet: bool
) -> Iterator[SparkSession]:
    """Start a session, and show that it starts."""
    place = settings.remote or settings.master or settings.conf.get("spark.master")
    where = "this machine" if place is None else place_of(place)
    began_s = time.monotonic()
    session = spark_session(lanes, settings, app=app)
    if quiet:
        with session as spark:
            yield spark
        return
    if render.on_terminal():
        with Console(stderr=True).status(f"starting Spark on {where} …"):
            spark = session.__enter__()
    else:
        click.echo(f"starting Spark on {where}", err=True)
        spark = session.__enter__()
    try:
        click.echo(f"Spark is ready after {time.monotonic() - began_s:.1f} s", err=True)
        if settings.ui and settings.remote is None:
            click.echo(f"its pages: {spark.sparkContext.uiWebUrl}", err=True)
        yield spark
    finally:
        session.__exit__(*sys.exc_info())
