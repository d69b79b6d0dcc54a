"""Commands that stand in for Java, so that what is said to it is seen, and fails as it is told."""

from __future__ import annotations

import sys
from pathlib import Path

_HEAD = f"""\
#!{sys.executable} -IS
import os, signal, sys, time
from pathlib import Path
here = Path(__file__).parent
if sys.argv[1:] == ["-version"]:
    sys.exit('openjdk version "17.0.1"')
with open(here / "told", "a") as told:
    told.write(" ".join(sys.argv[1:]) + "\\n")
"""


def fake_java(home: Path, does: str) -> Path:
    """A JAVA_HOME; what it was told is in ``bin/told``, a line for each start."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(_HEAD + does)
    java.chmod(0o755)
    return home


def told(home: Path) -> list[str]:
    path = home / "bin" / "told"
    return path.read_text().splitlines() if path.exists() else []
