"""A broker that the command line starts and leaves running, finds again, and stops."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.tools.kafka_node import Broker
from headrace.tools.kafka_node.ports import free_ports
from tests.cli.shell import Shell


class Kafka:
    """``headrace kafka``, with a place of its own for what it keeps."""

    def __init__(self, shell: Shell, state: Path) -> None:
        self.directory = state / "headrace" / "kafka"
        self._shell = shell

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self._shell("kafka", *arguments, code=code)

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code)[0])

    def fails(self, *arguments: str) -> str:
        return self._shell.fails("kafka", *arguments)


@pytest.fixture
def kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Kafka]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = Kafka(Shell(tmp_path, monkeypatch, capsys), tmp_path / "state")
    yield made
    Broker(made.directory).kill()


@pytest.mark.slow
def test_a_broker_is_started_found_and_stopped(kafka: Kafka) -> None:
    port = str(free_ports(1)[0])
    url = f"kafka://127.0.0.1:{port}"
    out, err = kafka("start", "--port", port)
    assert out == f"{url}\n"
    assert f"headrace --hub {url} stream create" in err
    assert "headrace kafka stop" in err
    view = kafka.json("status")
    assert view["running"]
    assert view["answers"]
    assert view["url"] == url
    assert f"{url} runs: pid {view['pid']}, log {view['log']}" in kafka("status")[0]

    again = kafka.json("start")
    assert again == view | {"was_running": True}
    assert "was running already" in kafka("start", "--port", port)[1]
    assert f"it runs on {url}" in kafka.fails("start", "--port", str(int(port) + 1))

    assert "has ended" in kafka("stop")[1]
    assert kafka.json("status", code=1)["pid"] is None
    kafka("stop", code=1)


def test_without_a_running_broker_the_exit_code_is_1(kafka: Kafka) -> None:
    line = f"no Kafka runs in {kafka.directory}\n"
    assert kafka("status", code=1) == ("", line)
    assert kafka("stop", code=1) == ("", line)
    assert kafka.json("status", code=1) == {
        "running": False,
        "answers": False,
        "url": None,
        "pid": None,
        "directory": str(kafka.directory),
        "log": str(kafka.directory / "broker.log"),
    }
    assert not kafka.directory.exists()


def test_another_directory_is_looked_at(kafka: Kafka, tmp_path: Path) -> None:
    assert (
        f"no Kafka runs in {tmp_path / 'mine'}"
        in kafka("status", "--dir", str(tmp_path / "mine"), code=1)[1]
    )


def test_a_port_that_is_taken_is_one_line(kafka: Kafka) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = kafka.fails("start", "--port", str(port))
    assert f"port {port} of 127.0.0.1 is taken by another program: choose another" in line


def test_a_start_on_a_taken_port_leaves_nothing_behind(kafka: Kafka, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        before = sorted(tmp_path.rglob("*"))
        kafka.fails("start", "--port", port)
        kafka.fails("start", "--port", port, "--dir", str(empty))
        kafka.fails("start", "--port", port, "--dir", str(tmp_path / "new" / "place"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_java_is_one_line(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    line = kafka.fails("start", "--port", str(free_ports(1)[0]))
    assert "Kafka runs on Java 17 or newer" in line


def test_a_directory_with_other_files_is_left_alone(kafka: Kafka, tmp_path: Path) -> None:
    foreign = tmp_path / "docs"
    foreign.mkdir()
    (foreign / "a.md").write_text("text")
    line = kafka.fails("start", "--dir", str(foreign), "--port", str(free_ports(1)[0]))
    assert f"{foreign} holds other files: name a directory of its own" in line
    assert [path.name for path in foreign.iterdir()] == ["a.md"]
    line = kafka.fails("start", "--dir", "/proc/none", "--port", str(free_ports(1)[0]))
    assert "/proc/none cannot be made: No such file or directory" in line
