"""The jars of Kafka are fetched once, completely, by one process; else an error says why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.core.errors import Refused
from headrace.testing.children import Child, until
from headrace.tools.kafka_node import has_jars, jars, kafka_jars
from headrace.tools.kafka_node.jars import SETTINGS_VARIABLE, jars_directory
from tests.tools.kafka_node.fake_java import fake_java, told

FETCHES = """
place = Path(sys.argv[sys.argv.index("-retrieve") + 1]).parent
(place / "kafka.jar").write_text("half")
end = time.monotonic() + 60
while (here / "wait").exists() and time.monotonic() < end:
    time.sleep(0.005)
(place / "kafka.jar").write_text("the whole of it")
(place / "other.jar").write_text("more")
"""
NOBODY_LISTENS = """\
<ivysettings>
  <settings defaultResolver="nowhere"/>
  <resolvers><ibiblio name="nowhere" m2compatible="true" root="http://127.0.0.1:1/"/></resolvers>
</ivysettings>
"""
FETCH = """
from headrace.tools.kafka_node import kafka_jars
print("asks", flush=True)
print(kafka_jars())
"""


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(SETTINGS_VARIABLE, raising=False)


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that fetches two small files, and waits before the second while ``bin/wait``
    exists."""
    home = fake_java(tmp_path / "java", FETCHES)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return home


def test_jars_are_fetched_once(java: Path) -> None:
    assert not has_jars()
    place = kafka_jars()
    assert place == jars_directory()
    assert has_jars()
    assert kafka_jars() == place
    assert len(told(java)) == 1
    assert sorted(path.name for path in place.glob("*.jar")) == ["kafka.jar", "other.jar"]


def test_cached_jars_need_neither_java_nor_pyspark(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = kafka_jars()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(jars, "find_spec", lambda _: None)
    assert kafka_jars() == place


@pytest.mark.parametrize("harm", ["gone", "shorter", "the list"])
def test_an_incomplete_cache_is_fetched_again(java: Path, harm: str) -> None:
    place = kafka_jars()
    if harm == "shorter":
        (place / "kafka.jar").write_text("half")
    else:
        (place / ("list" if harm == "the list" else "kafka.jar")).unlink()
    assert not has_jars()
    assert (kafka_jars() / "kafka.jar").read_text() == "the whole of it"
    assert len(told(java)) == 2


def test_two_processes_that_fetch_at_once_fetch_once(java: Path) -> None:
    (java / "bin" / "wait").touch()
    with Child(["-c", FETCH], extra=_places()) as one, Child(["-c", FETCH], extra=_places()) as two:
        assert [one.line(), two.line()] == ["asks", "asks"]
        until(lambda: told(java), "one fetches")
        assert not has_jars()
        (java / "bin" / "wait").unlink()
        assert {one.output().strip(), two.output().strip()} == {str(jars_directory())}
    assert has_jars()
    assert len(told(java)) == 1


def test_a_killed_fetch_leaves_no_incomplete_cache(java: Path) -> None:
    (java / "bin" / "wait").touch()
    with Child(["-c", FETCH], extra=_places()) as killed:
        until(lambda: told(java), "it fetches")
        killed.kill()
    with Child(["-c", FETCH], extra=_places()) as other:
        # The Java that the killed process started still writes.
        until(lambda: _waits_for_a_lock(other.pid) or len(told(java)) > 1, "it waits")
        assert len(told(java)) == 1
        assert other.line() == "asks"
        (java / "bin" / "wait").unlink()
        assert other.output().strip() == str(jars_directory())
    assert has_jars()
    assert len(told(java)) == 2


def test_jars_come_from_the_repository_that_the_settings_name(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTINGS_VARIABLE, str(tmp_path / "own.xml"))
    kafka_jars()
    assert f"-settings {tmp_path / 'own.xml'}" in told(java)[0]


@pytest.mark.slow
def test_without_network_one_line_says_what_could_not_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(NOBODY_LISTENS)
    monkeypatch.setenv(SETTINGS_VARIABLE, str(settings))
    with pytest.raises(Refused) as refused:
        kafka_jars()
    line = str(refused.value)
    assert line.startswith("Kafka 4.3.1 could not be fetched: ConnectException: Connection refused")
    assert "\n" not in line
    log = Path(line.rpartition("; see ")[2])
    assert "UNRESOLVED DEPENDENCIES" in log.read_text()
    assert not jars_directory().exists()


def test_a_fetch_without_end_is_given_up(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (java / "bin" / "wait").touch()
    monkeypatch.setattr(jars, "FETCH_S", 0.5)
    with pytest.raises(Refused, match=r"could not be fetched: Ivy did not finish within 0\.5 s"):
        kafka_jars()


def test_an_empty_answer_of_ivy_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "")))
    with pytest.raises(Refused, match="could not be fetched: Ivy found nothing"):
        kafka_jars()
    assert not has_jars()


def test_a_cache_that_cannot_be_used_is_named(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not has_jars()
    with pytest.raises(Refused, match=r"file/headrace/.*cannot be made: .*XDG_CACHE_HOME"):
        kafka_jars()


def test_without_java_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(Refused, match="Kafka runs on Java 17 or newer, found is: not found"):
        kafka_jars()


def test_without_pyspark_the_line_says_so(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda _: None)
    with pytest.raises(Refused, match=r"pyspark is not installed: pip install 'headrace\[spark\]'"):
        kafka_jars()


def _waits_for_a_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def _places() -> dict[str, str]:
    return {name: os.environ[name] for name in ("XDG_CACHE_HOME", "JAVA_HOME")}
