"""Child processes of the harness: they find the code of this repository, whatever their
directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headrace.testing.children import Child

ROOT = Path(__file__).parents[2]
"""The root of the repository: the package ``tests`` lies there."""


def python_path(*before: Path) -> dict[str, str]:
    """The environment in which Python finds those directories first, then the harness."""
    places = [*map(str, before), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, places))}


def harness_child(
    module: str, *arguments: str, fail: str = "", extra: Mapping[str, str] | None = None
) -> Child:
    """A process that runs a module of the harness."""
    return Child(["-m", module, *arguments], fail=fail, extra={**python_path(), **(extra or {})})
