"""Where Java leaves things lying about."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from headrace.spark.session.scratch import PREFIX, sweep
from headrace.spark.session.session import defaults

MAKE = "from headrace.spark.session.scratch import scratch_directory as d; print(d(), flush=True); "


def made(place: Path, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKE + then],
        env={**os.environ, "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def test_the_scratch_directory_is_private_and_goes_with_its_process(tmp_path: Path) -> None:
    with made(tmp_path, "input()") as process:
        directory = line(process)
        assert directory.parent == tmp_path
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        process.communicate("\n", timeout=30)
    assert not directory.exists()


def test_the_scratch_directory_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    other = tmp_path / "headrace-else"
    other.mkdir()
    with made(tmp_path, "input()") as killed, made(tmp_path, "input()") as living:
        left, kept = line(killed), line(living)
        (left / "spark-1").mkdir()
        killed.kill()
        killed.wait(30)
        sweep(tmp_path)
        assert not left.exists()
        assert kept.exists()
        assert other.exists()
        living.communicate("\n", timeout=30)
    assert not list(tmp_path.glob(f"{PREFIX}*"))


def test_sockets_of_workers_lie_in_the_scratch_directory() -> None:
    told = defaults("local[4]", False)
    place = Path(told["spark.python.unix.domain.socket.dir"])
    assert place.name.startswith(PREFIX)
    assert told["spark.local.dir"] == str(place)
    assert f"-Djava.io.tmpdir={place}" in told["spark.driver.extraJavaOptions"]
    assert "spark.local.dir" not in defaults("spark://host:7077", False)
