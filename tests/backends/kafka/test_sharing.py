"""Several users of one hub: threads, readers, children of the process; and its end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import headrace
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.reading.cursors import IDLE_MAX
from headrace.core.capabilities import CAPABILITIES
from headrace.core.model import Bounds
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace, values_by_offset


def test_ids_are_exact_while_other_programs_write(place: KafkaPlace, hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    start = threading.Barrier(3)

    def write(writer: int) -> dict[int, bytes]:
        # Small requests, so that those of several clients come one between the other.
        with headrace.open(place.url, settings={"batch.num.messages": 20}) as own:
            mine = own.stream("a")
            mine.append(b"warm")
            start.wait(WAIT_S)
            values = [b"%d/%d" % (writer, i) for i in range(3_000)]
            ids = mine.append_many([(value, "k") for value in values])
            with mine.appender() as out:
                pending = [out.append(b"%d/bg/%d" % (writer, i)) for i in range(500)]
            slices = mine.append_arrow(pa.record_batch({"data": values}), shard=0)
            told = {i.offset: value for i, value in zip(ids, values, strict=True)}
            told |= {p.result().offset: b"%d/bg/%d" % (writer, i) for i, p in enumerate(pending)}
            within = dict(_slices(mine, slices))
            own_within = [v for v in within.values() if v.startswith(b"%d/" % writer)]
            assert own_within[: len(values)] == values
            return told

    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(write, range(3), timeout=3 * WAIT_S))
    found = values_by_offset(stream)
    for own in told:
        assert len(own) == 3_500
        assert {offset: found[offset] for offset in own} == own
    firsts = [sorted(o for o, v in own.items() if b"bg" not in v) for own in told]
    assert any(own[-1] - own[0] >= 3_000 for own in firsts), "they did come between each other"


def _slices(stream: headrace.Stream, slices: list[headrace.Slice]) -> Iterator[tuple[int, bytes]]:
    for done in slices:
        for record in stream.read(done.shard, done.start, done.end):
            yield record.offset, record.value


def test_more_readers_than_kept_cursors_read_their_own_records(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(60)])
    readers = [stream.read(0, i, max_records=1) for i in range(IDLE_MAX + 4)]
    for step in range(3):
        for i, reader in enumerate(readers):
            assert next(reader).value == b"%d" % (i + step)


def _interrupted(*_: object) -> list[int]:
    raise KeyboardInterrupt


def test_records_taken_by_a_failed_read_are_read_again(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(30)])
    limits = {"max_records": 100, "max_bytes": 2**20}

    assert len(hub.log.read(stream.info, 0, 0, max_records=5, max_bytes=2**20).batches[0]) == 5
    with monkeypatch.context() as broken:
        broken.setattr("headrace.backends.kafka.topics.offsets.Offsets.ask_ends", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.log.read(stream.info, 0, 5, **limits)
    (batch,) = hub.log.read(stream.info, 0, 5, **limits).batches
    assert list(batch.offsets) == list(range(5, 30))


def test_a_read_during_a_trim_returns_no_trimmed_record(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append_many([(b"%d" % i, "k") for i in range(100)])
    real, limits = Cursor.read, {"max_records": 10, "max_bytes": 2**20}

    def overtaken(self: Cursor, *limits: object) -> object:
        found = real(self, *limits)  # type: ignore[arg-type]
        monkeypatch.undo()
        stream.trim(0, 50)
        return found

    monkeypatch.setattr(Cursor, "read", overtaken)
    assert hub.log.read(stream.info, 0, 0, **limits).next == 10
    with pytest.raises(headrace.OffsetOutOfRange):
        hub.log.read(stream.info, 0, 10, **limits)


def test_clients_end_with_the_hub(place: KafkaPlace) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def used() -> None:
        with headrace.open(place.url) as hub:
            stream = hub.create_stream("a", shards=1, exist_ok=True)
            stream.append(b"x")
            assert list(stream.read(0))

    used()
    before = threads()
    for _ in range(4):
        used()
    until(lambda: threads() <= before + 1, "no thread is left behind", WAIT_S)


def test_missing_capabilities_are_published_with_their_reasons(hub: headrace.Hub) -> None:
    missing = hub.capabilities.missing
    offered = [name for name in CAPABILITIES if name not in missing]
    assert offered == ["copying", "durable", "processes", "remote", "trim"]
    stream = hub.create_stream("a", shards=1)
    with pytest.raises(headrace.Unsupported, match="only as long as its producer lives"):
        stream.append(b"x", producer="p", producer_seq=1)
    with pytest.raises(headrace.Unsupported, match="partitions of a topic cannot be split"):
        stream.split(0)
    with pytest.raises(headrace.Unsupported, match="partitions of a topic cannot be merged"):
        stream.merge(0, 0)
    with pytest.raises(headrace.Unsupported, match="groups of Headrace do not live on Kafka yet"):
        hub.consumer("a", group="billing")
    assert stream.bounds(0) == Bounds(0, 0)


def test_a_hub_opened_in_the_parent_is_refused_in_the_child(hub: headrace.Hub) -> None:
    hub.create_stream("a", shards=1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            hub.stream("a")
            told = b"nothing"
        except headrace.ForkedHandle:
            told = b"refused"
        except BaseException as other:
            told = repr(other).encode()
        os.write(writing, told)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000) == b"refused"
    os.close(reading)
    os.close(writing)


CHILD = """
import os, sys
import headrace
with headrace.open(sys.argv[1]) as hub:
    stream = hub.create_stream("a", shards=1, exist_ok=True)
    stream.append(b"x")
    list(stream.read(0))
    child = os.fork()
    if child == 0:
        if sys.argv[2] == "opens its own":
            with headrace.open(sys.argv[1]) as own:
                assert own.stream("a").append(b"y").offset == 1
        elif sys.argv[2] == "drops it":
            del hub, stream
        sys.exit(0)  # by the end of the block, which closes the hub; then of the interpreter
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    stream.append(b"z")
"""


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("does", ["nothing", "drops it", "opens its own"])
def test_a_child_of_a_process_with_a_hub_ends_cleanly(
    place: KafkaPlace, does: str, native: str
) -> None:
    url = f"{place.url}?native={native}"
    assert subprocess.run([sys.executable, "-c", CHILD, url, does], timeout=60).returncode == 0


def test_clients_end_with_a_hub_that_was_not_closed(place: KafkaPlace) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    with headrace.open(place.url) as hub:
        hub.create_stream("a", shards=1).append(b"x")
    before = threads()
    for _ in range(4):
        hub = headrace.open(place.url)
        stream = hub.stream("a")
        stream.append(b"x")
        assert next(stream.read(0)).value == b"x"
        del hub, stream
    until(lambda: threads() <= before + 1, "no thread is left behind", WAIT_S)
