"""What Spark's workers are forked from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.lanes.daemon import unzipped
from headrace.spark.session.gateway import _escaped


def installed(place: Path) -> tuple[str, str]:
    """A PySpark in a directory, and the zip that lies in it."""
    package = place / "pyspark"
    (package / "python/lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    return str(place), str(package / "python/lib/pyspark.zip")


def test_the_zip_of_an_installed_pyspark_is_left_out(tmp_path: Path) -> None:
    place, zipped = installed(tmp_path)
    assert unzipped([zipped, "/else", place]) == ["/else", place]


def test_the_zip_of_another_pyspark_stays_first(tmp_path: Path) -> None:
    place, _ = installed(tmp_path / "one")
    _, zipped = installed(tmp_path / "other")
    assert unzipped([zipped, place]) == [zipped, place]


def test_the_only_pyspark_stays(tmp_path: Path) -> None:
    _, zipped = installed(tmp_path)
    assert unzipped([zipped, "/else"]) == [zipped, "/else"]


def test_the_daemon_opens_nothing_that_a_fork_would_break() -> None:
    """Modules only: no hub, no socket, no thread, be it Python's or a library's."""
    look = """
import os
from headrace.spark.lanes.daemon import load
files = set(os.listdir("/proc/self/fd"))
load()
assert len(os.listdir("/proc/self/task")) == 1
print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in set(os.listdir("/proc/self/fd")) - files
             if os.path.exists(f"/proc/self/fd/{n}")))
"""
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("value", "written"),
    [("plain=x y", "plain=x y"), ("a\\b", "a\\\\b"), ("a\nb", "a\\nb"), (" led", "\\ led")],
)
def test_settings_are_written_as_java_reads_them(value: str, written: str) -> None:
    assert _escaped(value) == written
