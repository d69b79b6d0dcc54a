"""Reads ``headrace.toml``: settings of a run, without touching the code of its topology.

    hub = "./data"

    [run]
    lanes = 4                      # and allocation, session, heartbeat, max_wait_handler
    [streams."shop/orders"]        # how a missing stream is created
    shards = 8
    [computations.bill]
    concurrency = 1
    [policies.bill]
    then = "dead-letter"
    [options]                      # computations see them as ctx.options
    currency = "EUR"
    [spark]                        # and remote, ui
    master = "spark://host:7077"
    [spark.conf]
    "spark.executor.memory" = "2g"

In ``streams``, ``computations`` and ``policies`` a section named ``default`` holds for all. A
section for one name wins over the code, and the code wins over ``default``. A section replaces only
the fields that it gives. A policy in the code is complete: ``default`` changes no field of it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from headrace.core.computations.settings import RunSettings
from headrace.core.errors import BadSetting

SETTINGS_FILE = "headrace.toml"


def read_settings(path: str | os.PathLike[str] | None) -> RunSettings:
    """The settings of a file; without a path the defaults."""
    if path is None:
        return RunSettings()
    return RunSettings.of_sections(_parsed(Path(path)), str(path))


def settings_here() -> RunSettings:
    """The settings of ``headrace.toml`` in the current directory; without that file the
    defaults."""
    return read_settings(SETTINGS_FILE if Path(SETTINGS_FILE).exists() else None)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise BadSetting(f"{path} cannot be read: {why.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as why:
        raise BadSetting(f"{path} cannot be read: {why}") from None
