"""A stream from a directory to a broker and back: whole, and after kills."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.core.ports import Append
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.hub.hub import Hub
from headrace.hub.mirror import mirror
from headrace.testing.children import Child, dice, until
from headrace.testing.contracts.backend_under_test import read_rows, some_rows
from headrace.testing.contracts.records import ODD_ROWS
from headrace.tools.kafka_node import Broker

NAME = "shop/orders"


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    url = f"kafka://{broker.bootstrap}/mirror{uuid.uuid4().hex[:12]}"
    yield url
    with headrace.open(url) as hub:
        for info in hub.streams():
            hub.delete_stream(info.name)


def _rows(hub: Hub) -> list[list[Row]]:
    stream = hub.log.stream(NAME)
    return [list(read_rows(hub.log, stream, s.index).values()) for s in stream.shards]


def _made(place: Path, count: int) -> list[list[Row]]:
    """Two shards of so many records each."""
    with headrace.open(place) as hub:
        stream = hub.create_stream(NAME, shards=2, codec="json", routing="java-hash").info
        for shard in range(2):
            rows = [Row(b"k%d" % i, b"%d" % i, 1_000 + i) for i in range(count)]
            hub.log.append([Append(stream, shard, Batch.of_rows(rows))])
        return _rows(hub)


def test_a_mirror_to_a_broker_and_back_changes_nothing(url: str, tmp_path: Path) -> None:
    with (
        headrace.open(tmp_path / "here") as here,
        headrace.open(url) as there,
        headrace.open(tmp_path / "back") as back,
    ):
        stream = here.create_stream(NAME, shards=3, codec="json", routing="java-hash").info
        here.log.append([Append(stream, 0, Batch.of_rows(ODD_ROWS))])
        here.log.append([Append(stream, 2, Batch.of_rows(some_rows(3_000)))])
        wanted = _rows(here)
        assert mirror(here, there, NAME).records == 3_005
        assert _rows(there) == wanted
        assert mirror(here, there, NAME).records == 0
        assert mirror(there, back, NAME).records == 3_005
        assert _rows(back) == wanted
        here.log.append([Append(stream, 1, Batch.of_rows(some_rows(10)))])
        assert mirror(here, there, NAME).records == 10
        found = mirror(there, back, NAME)
        assert (found.records, found.complete) == (10, True)
        assert _rows(back) == _rows(here)
        info = back.log.stream(NAME)
        assert (info.codec, info.routing, len(info.shards)) == ("json", "java-hash", 3)


def _copied(target: Hub) -> int:
    if not target.streams():
        return 0
    stream = target.stream(NAME)
    return sum(stream.bounds(shard).end for shard in range(stream.shards))


def _mirroring(*places: str) -> Child:
    return Child(["-m", "headrace", "mirror", *places, NAME, "--json"])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["there", "back"])
def test_killed_at_any_time_it_goes_on_without_doubles_and_without_loss(
    url: str, tmp_path: Path, way: str
) -> None:
    wanted = _made(tmp_path / "here", 60_000)
    places = [str(tmp_path / "here"), url]
    if way == "back":
        with _mirroring(*places) as child:
            child.output()
        places = [url, str(tmp_path / "back")]
    chance = dice(f"mirrors killed on the way {way}")
    with headrace.open(places[1]) as target:
        for _ in range(8):
            before = _copied(target)
            with _mirroring(*places) as child:
                until(lambda: _copied(target) > before or child.process.poll() is not None, "begun")  # noqa: B023
                time.sleep(chance.uniform(0, 0.3))
                child.kill()
    with _mirroring(*places) as child:
        assert json.loads(child.output())["complete"]
    with headrace.open(places[1]) as target:
        assert _rows(target) == wanted
