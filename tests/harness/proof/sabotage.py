"""Replicas that are broken on purpose: a proof must see it."""

from __future__ import annotations

import os
from pathlib import Path

_SITE = "from tests.harness.live import sabotage\n\nsabotage.do({kind!r})\n"


def broken(directory: Path, kind: str) -> dict[str, str]:
    """An environment in which every Python process begins with that sabotage."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SITE.format(kind=kind))
    paths = [str(directory), os.getcwd(), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
