"""A fake Java: a script that records its arguments and does what a test wants."""

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
    """A JAVA_HOME with the script. ``bin/told`` has the arguments of each start, one line each."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(_HEAD + does)
    java.chmod(0o755)
    return home


def told(home: Path) -> list[str]:
    path = home / "bin" / "told"
    return path.read_text().splitlines() if path.exists() else []
