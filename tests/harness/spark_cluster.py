"""A real Spark cluster on this machine, from the pip package: a master and some workers, on
loopback only. All its processes are killed at the end."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headrace.testing.children import until

LOOPBACK = "127.0.0.1"
EXECUTOR_MEMORY = "512m"
"""A little more than the minimum that Spark accepts."""
WORKER_MEMORY = "600m"
BEGUN_S = 60.0

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_MARK = "HEADRACE_TEST_CLUSTER"
"""In the environment of all processes of a cluster, also of its executors."""
_KEPT = ("PATH", "JAVA_HOME", "LD_LIBRARY_PATH", "TMPDIR", "HOME", "PYTHONPATH")
_LOADED_AT = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"
_JAVA = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-modules=jdk.incubator.vector",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.nio", "sun.nio.ch", "java.lang", "java.lang.invoke", "java.util")
    ),
    "-Dspark.master.rest.enabled=false",
)


@dataclass(frozen=True)
class Daemon:
    """A master or a worker."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def spark_cluster(directory: Path, *, workers: int = 2, cores: int = 2) -> Iterator[SparkCluster]:
    """A cluster with registered workers; the logs of daemons and executors are in the directory."""
    cluster = SparkCluster(directory, cores)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.kill_all()


class SparkCluster:
    def __init__(self, directory: Path, cores: int) -> None:
        self._directory = directory
        self._cores = cores
        self._mark = secrets.token_hex(8)
        self._started = 0
        self.url = ""
        self.workers: list[Daemon] = []

    def start(self, workers: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self.master = self._daemon(_MASTER, "--host", LOOPBACK, "--port", "0", "--webui-port", "0")
        until(
            lambda: _LOADED_AT.search(self.master.log_text()),
            "a master",
            BEGUN_S,
            self.master.log_text,
        )
        found = _LOADED_AT.search(self.master.log_text())
        assert found is not None
        self.url = found[1]
        added = [self._worker() for _ in range(workers)]
        for worker in added:
            self._wait_for(worker)

    def add_worker(self) -> Daemon:
        worker = self._worker()
        self._wait_for(worker)
        return worker

    def executors(self) -> dict[int, Daemon]:
        """The pids of running executors, and the worker of each."""
        return {
            pid: worker
            for worker in self.workers
            for pid in children(worker.pid)
            if _EXECUTOR in _read(pid, "cmdline")
        }

    def executor_above(self, pid: int) -> int | None:
        """The pid of the executor that this process belongs to."""
        executors = self.executors()
        above: int | None = pid
        while above is not None and above not in executors:
            above = parent(above)
        return above

    def kill_all(self) -> None:
        """Kill until no process is left: an executor may start another while it is killed."""

        def killed() -> bool:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not self.processes()

        until(killed, "the cluster is gone", 30, self.processes)
        for daemon in (*self.workers, *([self.master] if hasattr(self, "master") else [])):
            daemon.process.wait()

    def processes(self) -> list[int]:
        """The pids of all processes of the cluster, orphans too."""
        mark = f"{_MARK}={self._mark}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def _worker(self) -> Daemon:
        place = self._directory / f"worker-{self._started}"
        worker = self._daemon(
            _WORKER, "--host", LOOPBACK, "--webui-port", "0", "--cores", str(self._cores),
            "--memory", WORKER_MEMORY, "--work-dir", str(place), self.url,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def _wait_for(self, worker: Daemon) -> None:
        until(
            lambda: _REGISTERED in worker.log_text(), "it is registered", BEGUN_S, worker.log_text
        )

    def _daemon(self, name: str, *arguments: str) -> Daemon:
        java = shutil.which("java", path=_java_path())
        assert java is not None, "no java"
        log = self._directory / f"daemon-{self._started}.log"
        self._started += 1
        with log.open("wb") as output:
            process = subprocess.Popen(
                [java, *_JAVA, "-cp", f"{_spark_home()}/jars/*", name, *arguments],
                cwd=self._directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Daemon(process, log)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        return kept | {
            "SPARK_HOME": _spark_home(),
            "SPARK_SCALA_VERSION": "2.13",  # else executors look for a developer's build
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_LOCAL_DIRS": str(self._directory / "scratch"),
            _MARK: self._mark,
        }


def children(pid: int) -> list[int]:
    return [one for one in _pids() if parent(one) == pid]


def parent(pid: int) -> int | None:
    """The pid of the parent process; None if the process is gone."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else None


def is_gone(pid: int) -> bool:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return not fields or fields[0] == b"Z"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def _spark_home() -> str:
    found = find_spec("pyspark")
    assert found is not None
    assert found.submodule_search_locations is not None
    return str(found.submodule_search_locations[0])


def _java_path() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return os.path.join(home, "bin") if home else None
