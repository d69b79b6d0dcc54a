"""A broker that its controller has fenced says that there are no brokers. Clients that hear it and
are hung up on may lose all brokers for good: whoever uses them goes on all the same."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

import penstock
from penstock.testing.faults.children import until
from penstock.testing.kafka import Broker
from penstock.testing.kafka.ports import free_ports
from penstock.testing.kafka.properties import PLAINTEXT
from tests.kafka.fencing import Way
from tests.kafka.test_outages import Following, Load

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
    way.is_fenced = False
    assert way.fenced > before, "nobody has asked"


def test_who_appends_and_who_follows_go_on_by_themselves(way: Way, url: str) -> None:
    with (
        penstock.open(url, write_timeout="120s") as writer,
        penstock.open(url, write_timeout="120s") as reader,
    ):
        load = Load(writer, reader)
        load.goes_on()
        for _ in range(TIMES):
            fence(way)
            load.goes_on()
        load.check()


def test_without_the_c_half_too_though_appends_may_be_told(way: Way, url: str) -> None:
    with penstock.open(url, settings={"native": False}, write_timeout="4s") as hub:
        stream = hub.create_stream("shop/orders", shards=1)
        follower = Following(stream, 0)
        for number in range(TIMES):
            stream.append(b"%d" % number)
            until(lambda n=number: n in follower.numbers, "it is read", 60, follower.numbers)  # type: ignore[misc]
            fence(way)

            def again() -> bool:
                try:
                    stream.append(b"-1")
                except penstock.PenstockError:
                    return False
                return True

            until(again, "it works again", 60)
        assert follower.error is None
        ours = [number for number in follower.numbers if number >= 0]
        assert ours == list(range(TIMES))
