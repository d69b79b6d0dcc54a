"""Finds the Java that Spark and Kafka run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import NamedTuple

JAVA_MIN = 17
ANSWER_S = 20
ADVICE = f"install a JDK of version {JAVA_MIN} or newer, as openjdk-17-jre, or set JAVA_HOME to one"


class Java(NamedTuple):
    path: str | None
    """Where it is; None: no Java was found."""
    version: str | None = None
    """What it answers to ``-version``; None: no version."""

    @property
    def is_new_enough(self) -> bool:
        found = re.match(r"[0-9]+", self.version or "")
        return found is not None and int(found[0]) >= JAVA_MIN

    def __str__(self) -> str:
        if self.path is None:
            return "not found"
        return self.version or f"no answer to {self.path} -version"


def find_java() -> Java:
    """The Java that Spark takes: that of JAVA_HOME, else the first on the path."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(os.path.join(home, "bin", "java")) if home else shutil.which("java")
    if path is None:
        return Java(None)
    try:
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, check=False, timeout=ANSWER_S
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    found = re.search(r'version "(?:1\.)?([0-9][^"]*)"', answer)
    return Java(path, found[1] if found else None)
