"""Sabotage for replicas: deliberate bugs that a proof must find."""

from __future__ import annotations

from pathlib import Path

from tests.harness.children import python_path

_SITE = "from tests.harness.live import sabotage\n\nsabotage.do({kind!r})\n"


def broken(directory: Path, kind: str) -> dict[str, str]:
    """An environment in which every Python process starts with that sabotage."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(_SITE.format(kind=kind))
    return python_path(directory)
