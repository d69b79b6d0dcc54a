"""A real broker: its users, its data, and its end."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from headrace.core.errors import BadSetting, Refused
from headrace.testing.children import Child, until
from headrace.tools.kafka_node import Broker, node
from headrace.tools.kafka_node.ports import check_free
from headrace.tools.kafka_node.process import Process, process_of
from headrace.tools.kafka_node.properties import written
from headrace.tools.kafka_node.spawning import spawn_dying_with_parent, spawn_free
from tests.tools.kafka_node.fake_java import fake_java, told

WAYS = [
    ("PLAINTEXT", "PLAIN"),
    ("SASL", "PLAIN"),
    ("SASL", "SCRAM-SHA-256"),
    ("SASL", "SCRAM-SHA-512"),
    ("TLS", "PLAIN"),
    ("MTLS", "PLAIN"),
    ("SASLTLS", "PLAIN"),
    ("SASLTLS", "SCRAM-SHA-512"),
]
MAKES_DATA = """
if "kafka.tools.StorageTool" in sys.argv:
    config = Path(sys.argv[-1][1:]).read_text().splitlines()[1]
    made = Path(config).parent / "data"
    made.mkdir()
    (made / "meta.properties").touch()
    sys.exit()
"""
SLEEP = ["/bin/sleep", "1000"]
STARTS = """
import sys
from pathlib import Path
from headrace.tools.kafka_node.spawning import spawn_dying_with_parent
print(spawn_dying_with_parent(sys.argv[2:], Path(sys.argv[1]))[0], flush=True)
input()
"""


@pytest.fixture
def no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jars for a fake Java, which does not need them."""
    monkeypatch.setattr(node, "kafka_jars", lambda: tmp_path)


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_every_listener_lets_in_its_users(broker: Broker, listener: str, mechanism: str) -> None:
    client = broker.client(listener, mechanism)
    topic = f"node-{listener}-{mechanism}"
    assert _sent(client, topic, b"there") == []
    assert _read(client, topic) == b"there"


def test_a_wrong_password_is_refused(broker: Broker) -> None:
    client = broker.client("SASL") | {"sasl.password": "guessed"}
    assert "Invalid username or password" in _refusal(client)


def test_a_client_certificate_of_a_foreign_authority_is_refused(broker: Broker) -> None:
    strange = broker.certificates
    client = broker.client("MTLS") | {
        "ssl.certificate.location": str(strange.foreign_client),
        "ssl.key.location": str(strange.foreign_client_key),
    }
    assert "alert" in _refusal(client)


def test_a_broker_certificate_of_a_foreign_authority_is_refused(broker: Broker) -> None:
    client = broker.client("TLS") | {"ssl.ca.location": str(broker.certificates.foreign_ca)}
    assert "certificate verify failed" in _refusal(client)


def test_a_broker_listens_on_loopback_only(broker: Broker) -> None:
    assert broker.pid is not None
    inodes = _open_files(broker.pid)
    listening = [
        line.split()[1]
        for family in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in inodes
    ]
    assert len(listening) == 6
    assert all(place.split(":")[0].endswith("0100007F") for place in listening), listening


def test_only_the_owner_can_read_the_secrets_of_a_broker(broker: Broker) -> None:
    secrets = [broker.ann.password.encode(), broker.bob.password.encode(), b"PRIVATE KEY"]
    found = [
        path
        for path in (*broker.directory.glob("*"), *broker.certificates.directory.glob("*"))
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    ]
    assert len(found) >= 7
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert stat.S_IMODE(broker.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(broker.certificates.directory.stat().st_mode) == 0o700


def test_no_password_is_on_a_command_line_or_in_the_log(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Path(f"/proc/{broker.pid}/cmdline").read_text() + broker.log_path.read_text()
    assert not any(user.password in said for user in (broker.ann, broker.bob))
    home = fake_java(tmp_path / "java", "sys.exit(3)")
    monkeypatch.setenv("JAVA_HOME", str(home))
    other = Broker(tmp_path / "other", secure=True)
    with pytest.raises(Refused, match="the data of Kafka cannot be made"):
        other.start()
    assert len(told(home)) == 1
    assert other.bob.password not in told(home)[0]
    assert not list(other.directory.glob("*.arguments"))


@pytest.mark.slow
def test_a_killed_broker_has_its_records_when_it_is_started_again(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker")
    broker.start()
    address, first = broker.bootstrap, broker.pid
    assert _sent(broker.client(), "kept", b"one") == []
    broker.kill()
    assert not broker.is_running
    assert not broker.answers
    broker.start()
    assert broker.pid != first
    assert broker.bootstrap == address
    assert _read(broker.client(), "kept") == b"one"
    # As another process would: it knows only the directory.
    seen = Broker(broker.directory)
    assert (seen.pid, seen.bootstrap) == (broker.pid, address)
    seen.start()
    assert seen.pid == broker.pid
    seen.stop()
    assert (broker.pid, broker.answers) == (None, False)
    broker.stop()


HALF_GONE = """
import ctypes, socket, sys, threading, time

held = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=sys.stdin.read).start()
print(held.getsockname()[1], flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_threads_still_hold_its_ports_has_not_ended() -> None:
    command = [sys.executable, "-c", HALF_GONE]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as half_gone:  # type: ignore[call-overload]
        process = process_of(half_gone.pid)
        assert process is not None
        port = int(half_gone.stdout.readline())
        until(lambda: not process.is_alive, "its first thread is gone", 10)
        assert not process.ended(0.1)
        with pytest.raises(Refused):
            check_free(port)
        half_gone.stdin.close()
        assert process.ended(10)
        check_free(port)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} of 127.0.0.1 is taken") as refused:
            Broker(tmp_path, ports={"PLAINTEXT": port}).start()
    assert "\n" not in str(refused.value)


def test_settings_that_can_never_start_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="no listener TLS: there are PLAINTEXT"):
        Broker(tmp_path, ports={"TLS": 9095})
    with pytest.raises(BadSetting, match="without a comma"):
        Broker(tmp_path / "a,b")
    with pytest.raises(BadSetting, match="never started"):
        _ = Broker(tmp_path).bootstrap


@pytest.mark.usefixtures("no_jars")
def test_the_last_lines_of_a_broker_that_dies_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "java", f"{MAKES_DATA}sys.exit('the disk is on fire')")
    monkeypatch.setenv("JAVA_HOME", str(home))
    broker = Broker(tmp_path / "broker")
    with pytest.raises(Refused, match="the disk is on fire") as refused:
        broker.start()
    assert str(broker.log_path) in str(refused.value)
    assert not broker.is_running


@pytest.mark.usefixtures("no_jars")
def test_a_broker_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "java", f"{MAKES_DATA}time.sleep(1000)")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(node, "START_S", 0.5)
    broker = Broker(tmp_path / "broker")
    with pytest.raises(Refused, match=r"does not answer after 0\.5 s: its log is empty"):
        broker.start()
    assert not broker.is_running


@pytest.mark.usefixtures("no_jars")
def test_a_broker_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    home = fake_java(tmp_path / "java", f"{MAKES_DATA}{deaf}time.sleep(1000)")
    monkeypatch.setenv("JAVA_HOME", str(home))
    broker = Broker(tmp_path / "broker")
    said = broker.log_path
    monkeypatch.setattr(node, "answers", lambda *_: said.exists() and "deaf" in said.read_text())
    broker.start()
    pid = broker.pid
    assert pid is not None
    broker.stop(within_s=0.2)
    assert process_of(pid) is None


@pytest.mark.usefixtures("no_jars")
def test_two_processes_that_start_a_broker_at_once_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    up = "print('up', flush=True)\n"
    home = fake_java(tmp_path / "java", f"{MAKES_DATA}{up}time.sleep(1000)")
    monkeypatch.setenv("JAVA_HOME", str(home))
    brokers = [Broker(tmp_path / "broker") for _ in range(2)]
    said = brokers[0].log_path
    monkeypatch.setattr(node, "answers", lambda *_: said.exists() and "up" in said.read_text())
    threads = [threading.Thread(target=broker.start) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert brokers[0].pid == brokers[1].pid is not None
    assert [line.split()[-2] for line in told(home)] == ["format", "kafka.Kafka"]
    for broker in brokers:
        broker.kill()


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with Child(["-c", STARTS, str(tmp_path / "log"), *SLEEP]) as child:
        pid = int(child.line())
        until(lambda: _sleeps(pid), "it sleeps")
        child.kill()
    until(lambda: process_of(pid) is None, "it is gone", 10)


def test_a_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[tuple[int, int]] = []
    log = tmp_path / "log"
    thread = threading.Thread(target=lambda: started.append(spawn_dying_with_parent(SLEEP, log)))
    thread.start()
    thread.join()
    (pid, held), process = started[0], process_of(started[0][0])
    assert process is not None
    until(lambda: _sleeps(pid), "it sleeps")
    assert not process.ended(0.3)
    os.close(held)
    assert process.ended(10)
    process.reap()


def test_another_process_with_the_same_pid_is_not_the_broker(tmp_path: Path) -> None:
    pid = spawn_free(SLEEP, tmp_path / "log")
    right = process_of(pid)
    assert right is not None
    wrong = Process(pid, "at another time")
    wrong.send(signal.SIGKILL)
    assert not wrong.is_alive
    assert wrong.ended(0)
    assert not right.ended(0.1)
    right.send(signal.SIGKILL)
    assert right.ended(10)
    right.reap()


def test_properties_are_written_so_that_java_reads_them_back() -> None:
    assert written({"log.dirs": "/tmp/Käse\\🧀 a"}) == (
        "log.dirs=/tmp/K\\u00e4se\\u005c\\ud83e\\uddc0 a\n"
    )


def _sleeps(pid: int) -> bool:
    """Whether the process runs the command by now."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(SLEEP[0].encode())


def _open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.add(os.readlink(entry))
    return found


def _sent(client: dict[str, object], topic: str, value: bytes) -> list[KafkaError]:
    told: list[KafkaError | None] = []
    producer = Producer(client)
    producer.produce(topic, value, partition=0, on_delivery=lambda wrong, _: told.append(wrong))
    assert producer.flush(30) == 0
    return [wrong for wrong in told if wrong is not None]


def _read(client: dict[str, object], topic: str) -> bytes | None:
    reader = Consumer(client | {"group.id": "looking", "enable.auto.commit": False})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        got = reader.poll(30)
        assert got is not None
        assert got.error() is None
        value = got.value()
        assert value is None or isinstance(value, bytes)
        return value
    finally:
        reader.close()


def _refusal(client: dict[str, object]) -> str:
    """The errors of a client that is refused."""
    heard: list[str] = []
    quiet = {"error_cb": lambda error: heard.append(error.str()), "log_level": 0}
    producer = Producer(client | quiet)
    until(lambda: producer.poll(0.1) or heard, "it is refused", 60)
    return " ".join(heard)
