"""Reads ``headrace.toml``: settings of a run, without touching the code of its topology.

    hub = "./data"

    [run]
    lanes = 4                      # and allocation, session, heartbeat, max_wait_handler
    [streams."shop/orders"]        # how it is made if it is not there yet
    shards = 8
    [computations.bill]
    concurrency = 1
    [policies.bill]
    then = "dead-letter"
    [options]                      # handed to computations as ctx.options
    currency = "EUR"
    [spark]                        # and remote, ui
    master = "spark://host:7077"
    [spark.conf]
    "spark.executor.memory" = "2g"

In ``streams``, ``computations`` and ``policies`` a section of the name ``default`` holds for all.
What is said under a name wins over what the code says, and that over ``default``. Only the fields
that a section gives replace those that would hold otherwise; the others stay. A policy in the code
is a whole one: ``default`` changes nothing in it.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import BadSetting

SETTINGS_FILE = "headrace.toml"


def read_settings(path: str | os.PathLike[str] | None) -> RunSettings:
    """The settings that a file gives; with None those that hold without a file."""
    if path is None:
        return RunSettings()
    return RunSettings.of_sections(_parsed(Path(path)), str(path))


def settings_here() -> RunSettings:
    """The settings of ``headrace.toml`` in the current directory, if there is one."""
    return read_settings(SETTINGS_FILE if Path(SETTINGS_FILE).exists() else None)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise BadSetting(f"{path} cannot be read: {why.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise BadSetting(f"{path} cannot be read: {why}") from None
