"""``headrace``: the command, the options that all its commands share, and how errors end it."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import NoReturn

import click

import headrace
from headrace.cli.bench import bench
from headrace.cli.demo import demo
from headrace.cli.doctor import doctor
from headrace.cli.groups import group
from headrace.cli.kafka import kafka
from headrace.cli.lag import lag, latency
from headrace.cli.mirror import mirror
from headrace.cli.prove import prove
from headrace.cli.records import append, tail
from headrace.cli.run import run
from headrace.cli.story import story
from headrace.cli.streams import stream
from headrace.cli.topology import topology
from headrace.core.errors import BadSetting, HeadraceError
from headrace.core.redaction import shown_place

HUB_DEFAULT = "./headrace-data"
SETTINGS_FILE = "headrace.toml"


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--hub",
    metavar="HUB",
    help=f"A directory, or kafka://host:9092 [else $HEADRACE_HUB, {SETTINGS_FILE}, {HUB_DEFAULT}].",
)
@click.version_option(headrace.__version__, prog_name="headrace")
@click.pass_context
def cli(context: click.Context, hub: str | None) -> None:
    """Partitioned streams of records: create streams, append to them, look at them."""
    if hub is not None and (not hub or hub.startswith("memory:")):
        raise BadSetting(
            f"--hub {shown_place(hub)!r}: name a directory; a memory hub would end with this "
            "command"
        )
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    context.obj = hub or os.environ.get("HEADRACE_HUB") or _read_hub_setting() or HUB_DEFAULT


for command in (
    append, bench, demo, doctor, group, kafka, lag, latency, mirror, prove, run, story, stream,
    tail, topology,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    """Run the command. Every error of ours is one line and an exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.NoSuchOption as wrong:
        misplaced = "--hub goes before the command: headrace --hub DIR run …"
        _end(misplaced if wrong.option_name == "--hub" else wrong.format_message(), 2)
    except click.ClickException as wrong:
        _end(wrong.format_message(), 2)
    except BrokenPipeError:  # `headrace tail … | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (HeadraceError, OSError) as wrong:
        _end(str(wrong), 2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"headrace: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _read_hub_setting() -> str | None:
    path = Path(SETTINGS_FILE)
    if not path.exists():
        return None
    try:
        hub = tomllib.loads(path.read_text()).get("hub")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise BadSetting(f"{SETTINGS_FILE} cannot be read: {why}") from None
    if not isinstance(hub, str | None):
        raise BadSetting(f"{SETTINGS_FILE}: hub = {hub!r}: write it as text")
    return hub


if __name__ == "__main__":
    main()
