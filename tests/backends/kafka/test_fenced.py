"""A broker that its controller has fenced says that there are no brokers. Clients that hear it and
are hung up on may lose all brokers for good: whoever uses them goes on all the same."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

import headrace
from headrace.backends.kafka.topics import stream_descriptions
from headrace.backends.kafka.topics.changes import MISSED_MAX, ChangeWatch
from headrace.backends.kafka.topics.stream_descriptions import Descriptions
from headrace.core.errors import Retryable
from headrace.testing.children import until
from headrace.tools.kafka_node import Broker
from headrace.tools.kafka_node.ports import free_ports
from headrace.tools.kafka_node.properties import PLAINTEXT
from tests.backends.kafka.fencing import Way
from tests.backends.kafka.test_outages import Following, Load

pytestmark = pytest.mark.slow

TIMES = 4
FENCED_S = 1.0


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    (port,) = free_ports(1)
    with Way(port) as way:
        clients_call = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{way.port}"}
        directory = tmp_path_factory.mktemp("fenced") / "broker"
        with Broker(directory, ports={PLAINTEXT: port}, settings=clients_call):
            yield way


@pytest.fixture
def url(way: Way) -> str:
    return f"kafka://127.0.0.1:{way.port}/t{uuid.uuid4().hex[:12]}"


def fence(way: Way) -> None:
    """For a while; whoever asks meanwhile is told, and hung up on."""
    before = way.fenced
    way.is_fenced = True
    way.hang_up()
    time.sleep(FENCED_S)
    until(lambda: way.fenced > before, "somebody asks")
    way.is_fenced = False


def test_appends_and_followers_go_on_after_the_broker_was_fenced(way: Way, url: str) -> None:
    with (
        headrace.open(url, write_timeout="120s") as writer,
        headrace.open(url, write_timeout="120s") as reader,
    ):
        load = Load(writer, reader)
        load.goes_on()
        for _ in range(TIMES):
            fence(way)
            load.goes_on()
        load.check()


def test_appends_and_followers_go_on_without_columns_too(way: Way, url: str) -> None:
    with headrace.open(url, settings={"native": False}, write_timeout="4s") as hub:
        stream = hub.create_stream("shop/orders", shards=1)
        follower = Following(stream, 0)

        def appended(number: int) -> bool:
            try:
                stream.append(b"%d" % number)
            except Retryable:
                return False
            return True

        for number in range(TIMES):
            until(lambda n=number: appended(n), "it is appended", 60)  # type: ignore[misc]
            until(lambda n=number: n in follower.numbers, "it is read", 60, follower.numbers)  # type: ignore[misc]
            fence(way)
        assert follower.error is None
    # What was told as unknown may have been written, and was appended again.
    assert list(dict.fromkeys(follower.numbers)) == list(range(TIMES))
    assert follower.numbers == sorted(follower.numbers)


def deaf() -> Consumer:
    """A client without any broker."""
    return Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "deaf", "log_level": 0})


def test_a_watch_that_misses_changes_is_replaced(way: Way, url: str) -> None:
    with headrace.open(url) as hub:
        stream = hub.create_stream("shop/orders", shards=1)
        found: ChangeWatch = hub.log._watch  # type: ignore[attr-defined]
        lost = found._watcher = deaf()
        found._has_reported = True

        def seen_s() -> float:
            seen = stream.changes()
            waiting = threading.Timer(0.3, lambda: stream.append(b"x"))
            waiting.start()
            began_s = time.monotonic()
            while stream.wait(seen, 1.0) == seen:
                assert time.monotonic() - began_s < 30
            waiting.join()
            return time.monotonic() - began_s

        for _ in range(MISSED_MAX):
            assert found._watcher is lost
            seen_s()
        assert found._watcher is not lost
        until(lambda: seen_s() < 0.9, "it hears of changes at once")
        assert found._watcher is not lost


def test_a_silent_reader_of_descriptions_is_replaced(
    way: Way, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_descriptions, "SILENT_S", 1.0)
    with headrace.open(url) as hub, headrace.open(url) as other:
        hub.create_stream("a", shards=1)
        found: Descriptions = hub.log._descriptions  # type: ignore[attr-defined]
        lost = found._reader = deaf()
        lost.assign([TopicPartition(stream_descriptions.TOPIC, 0, found._next)])
        other.create_stream("b", shards=1, codec="json")
        assert hub.stream("b").info.codec == "json"
        assert found._reader is not lost
