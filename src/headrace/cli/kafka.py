"""``headrace kafka``: starts and stops a broker of one node, to try Headrace on Kafka."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from headrace.cli import render
from headrace.cli.signals import end_on_sigterm
from headrace.cli.streams import as_json
from headrace.core.errors import BadSetting
from headrace.tools.kafka_node import KAFKA_VERSION, Broker, has_jars

PORT = 9092
NOT_RUNNING = 1

Command = TypeVar("Command", bound=Callable[..., Any])


def in_directory(command: Command) -> Command:
    return click.option(
        "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
        help="Where its data and log are [headrace/kafka in $XDG_STATE_HOME or ~/.local/state].",
    )(command)  # fmt: skip


@click.group()
def kafka() -> None:
    """A broker of Kafka on this machine, to try Headrace on: start, stop, status.

    It is one node that only this machine can reach, without passwords. Java is needed; Kafka itself
    is fetched when it is first started."""


@kafka.command()
@click.option("--port", type=click.IntRange(1024, 65535), default=PORT, show_default=True,
              help="Where it listens, on loopback only.")  # fmt: skip
@in_directory
@as_json
@click.pass_context
def start(context: click.Context, port: int, directory: Path | None, as_json: bool) -> None:
    """Start it, and leave it running; its records are kept from one start to the next."""
    broker = Broker(_place(directory), ports={"PLAINTEXT": port}, outlives=True)
    wanted_url, was_running = broker.url, broker.is_running
    given = context.get_parameter_source("port") is not click.core.ParameterSource.DEFAULT
    if given and broker.url != wanted_url:
        raise BadSetting(
            f"--port {port}: it runs on {broker.url}; to move it, first {_again('stop', directory)}"
        )
    if not was_running:
        with end_on_sigterm(), _show_progress():
            broker.start()
    if as_json:
        render.show_json({**_view(broker), "was_running": was_running})
        return
    click.echo(broker.url)
    state = "was running already" if was_running else "runs"
    click.echo(f"Kafka {KAFKA_VERSION} {state}, with its data in {broker.directory}", err=True)
    if find_spec("confluent_kafka") is None:
        click.echo("its client is missing: pip install 'headrace[kafka]'", err=True)
    click.echo(f"try: headrace --hub {broker.url} stream create shop/orders", err=True)
    click.echo(f"end it: {_again('stop', directory)}", err=True)


@kafka.command()
@in_directory
@click.pass_context
def stop(context: click.Context, directory: Path | None) -> None:
    """Stop it, and wait until it has ended; its records are kept. Exit code 1 if it did not run."""
    broker = Broker(_place(directory))
    if not broker.is_running:
        click.echo(_not_running(broker), err=True)
        context.exit(NOT_RUNNING)
    broker.stop()
    click.echo(f"Kafka has ended; its data is in {broker.directory}", err=True)


@kafka.command()
@in_directory
@as_json
@click.pass_context
def status(context: click.Context, directory: Path | None, as_json: bool) -> None:
    """Whether it runs, and where. Exit code 1 if it does not."""
    broker = Broker(_place(directory))
    view = _view(broker)
    if as_json:
        render.show_json(view)
    elif not view["running"]:
        click.echo(_not_running(broker), err=True)
    else:
        silent = "" if view["answers"] else ", but does not answer"
        click.echo(f"{broker.url} runs{silent}: pid {view['pid']}, log {broker.log_path}")
    if not view["running"]:
        context.exit(NOT_RUNNING)


def _view(broker: Broker) -> dict[str, Any]:
    running = broker.running()
    return {
        "running": running is not None,
        "answers": running is not None and broker.answers,
        "url": broker.url if running is not None else None,
        "pid": running.process.pid if running is not None else None,
        "directory": str(broker.directory),
        "log": str(broker.log_path),
    }


def _place(directory: Path | None) -> Path:
    if directory is not None:
        return directory
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "headrace" / "kafka"


def _not_running(broker: Broker) -> str:
    return f"no Kafka runs in {broker.directory}"


def _again(command: str, directory: Path | None) -> str:
    where = f" --dir {shlex.quote(str(directory))}" if directory is not None else ""
    return f"headrace kafka {command}{where}"


@contextmanager
def _show_progress() -> Iterator[None]:
    """Show on a terminal that the broker starts: it takes ten seconds, the first time a minute."""
    first = "" if has_jars() else "fetching (45 MB, only once) and "
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(f"{first}starting Kafka {KAFKA_VERSION} …"):
            yield
    else:
        yield
