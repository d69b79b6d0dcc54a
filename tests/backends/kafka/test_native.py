"""Records as columns and records one by one are the same records."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer, cimpl
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.backends.kafka.client import native as native_module
from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.reading import cursors
from headrace.backends.kafka.reading.columns import ColumnRecords
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.reading.fetched import Taken, Trouble
from headrace.backends.kafka.reading.fetched_columns import FetchedColumns
from headrace.backends.kafka.reading.listed import ListedRecords
from headrace.core.ports import Append
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.children import Child, until
from headrace.testing.contracts.backend_under_test import WAIT_S
from headrace.tools.bench.usage import memory
from tests.backends.kafka.hubs import KafkaPlace


@pytest.fixture
def hub(place: KafkaPlace) -> Iterator[headrace.Hub]:
    with headrace.open(place.url) as hub:
        yield hub


@pytest.fixture
def plain(place: KafkaPlace) -> Iterator[headrace.Hub]:
    with headrace.open(f"{place.url}?native=false") as hub:
        yield hub


def test_columns_are_built_and_used_by_default(hub: headrace.Hub, plain: headrace.Hub) -> None:
    assert native_module.load_native() is not None, (
        "install a C compiler, then: rm .venv/.installed"
    )
    assert hub.describe()["native"] is True
    assert plain.describe()["native"] is False


def test_a_hub_works_without_columns(
    place: KafkaPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native_module, "LIBRARY", tmp_path / "columns.so")
    missing = native_module.load_native.__wrapped__()
    monkeypatch.setattr("headrace.backends.kafka.client.clients.load_native", lambda: missing)
    with headrace.open(place.url) as hub:
        assert hub.describe()["native"] is False
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"%d" % i, None) for i in range(100)])
        assert [record.value for record in stream.read(0)] == [b"%d" % i for i in range(100)]


def test_a_library_built_from_another_source_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "columns.c"
    other.write_bytes(native_module.SOURCE.read_bytes() + b"\n")
    monkeypatch.setattr(native_module, "SOURCE", other)
    assert native_module.load_native.__wrapped__() is None


def test_native_takes_true_or_false_only(place: KafkaPlace) -> None:
    with pytest.raises(headrace.BadSetting, match="native 'perhaps': true or false"):
        headrace.open(f"{place.url}?native=perhaps")


def _field(dice: random.Random) -> bytes | None:
    return dice.choice([None, b"", dice.randbytes(dice.randrange(40)), dice.randbytes(3000)])


def _row(dice: random.Random, headed: bool) -> Row:
    at = dice.choice([0, 1, dice.randrange(2**41), TIMESTAMP_MS_MAX])
    if not headed:
        return Row(_field(dice), _field(dice), at or 1)
    names = [dice.choice(["a", "a", "ä", "", "headrace"]) for _ in range(dice.randrange(4))]
    headers = [(name, _field(dice)) for name in names]
    return Row(
        _field(dice), _field(dice), at, dice.randrange(3), dice.randrange(3), headers, _field(dice)
    )


@pytest.mark.parametrize("headed", [False, True], ids=["plain", "with headers"])
def test_reading_gives_the_same_with_and_without_columns(
    place: KafkaPlace, hub: headrace.Hub, plain: headrace.Hub, headed: bool
) -> None:
    """Whatever the fields hold, with gaps between offsets, in pieces of any size."""
    dice = random.Random(11)
    stream = hub.create_stream("a", shards=1)
    rows = []
    for piece in range(12):
        some = [_row(dice, headed and piece % 3 != 1) for _ in range(dice.randrange(1, 150))]
        hub.log.append([Append(stream.info, 0, Batch.of_rows(some))])
        place.write("a", [b"aborted"], commit=False)
        rows += some
    for most, nbytes in [(1000, 2**20), (7, 2**20), (1000, 5000), (500, 1)]:
        found = [
            list(one.stream("a").read(0, max_records=most, max_bytes=nbytes))
            for one in (hub, plain)
        ]
        assert [r.offset for r in found[0]] == [r.offset for r in found[1]]
        for record, other, row in zip(*found, rows, strict=True):
            for one in (record, other):
                told = (one.key_bytes, one.data, one.sequence, one.flags, one.trace)
                assert told == (row.key, row.data, row.sequence, row.flags, row.trace)
                assert one.timestamp.timestamp() * 1000 == pytest.approx(row.timestamp, abs=0.5)
                assert tuple(one.headers) == tuple(row.headers)
    mine, other = (one.stream("a").read_arrow(0).read_all() for one in (hub, plain))
    assert mine.combine_chunks() == other.combine_chunks()
    mine.validate(full=True)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))),
    st.data(),
)
def test_records_count_the_same_as_lists_and_as_columns(
    fields: list[tuple[bytes | None, bytes | None]], draw: st.DataObject
) -> None:
    keys, values = [key for key, _ in fields], [value for _, value in fields]
    count = len(fields)
    times = list(range(1, count + 1))
    one = ListedRecords(range(count), keys, values, times, [None] * count)
    columns = pa.array(keys, pa.binary()), pa.array(values, pa.binary())
    other = ColumnRecords(range(count), *columns, pa.array([1000 * at for at in times], pa.int64()))
    start = draw.draw(st.integers(0, count))
    end = draw.draw(st.integers(start, count))
    for mine, theirs in ((one, other), (one.part(start, end), other.part(start, end))):
        assert (mine.nbytes, mine.sizes()) == (theirs.nbytes, theirs.sizes())
        for room in range(0, mine.nbytes + 2, 7):
            assert mine.fitting(room) == theirs.fitting(room)
        listed = theirs.listed()
        assert (listed.keys, listed.values, listed.times) == (mine.keys, mine.values, mine.times)
        assert list(listed.offsets) == list(mine.offsets)


def _piece(keys: Sequence[bytes | None], data: Sequence[bytes | None]) -> pa.RecordBatch:
    """Cut out of larger arrays, each at another place."""
    return pa.record_batch(
        [
            pa.array([b"before"] * 3 + list(keys), pa.binary()).slice(3),
            pa.array([None] * 11 + list(data) + [b"behind"], pa.binary()).slice(11, len(data)),
        ],
        names=["key", "data"],
    )


@pytest.mark.parametrize("keyed", ["some", "none", "all"])
def test_appending_gives_the_same_with_and_without_columns(
    hub: headrace.Hub, plain: headrace.Hub, keyed: str
) -> None:
    dice = random.Random(12)
    kinds: dict[str, Sequence[bytes | None]] = {
        "some": [_field(dice) for _ in range(300)],
        "none": [None] * 300,
        "all": [dice.randbytes(5) for _ in range(300)],
    }
    keys = kinds[keyed]
    data = [_field(dice) for _ in keys]
    found = []
    for number, one in enumerate((hub, plain)):
        stream = one.create_stream(f"s{number}", shards=1)
        stream.append_arrow(_piece(keys, data), shard=0)
        found.append([(r.key_bytes, r.data) for r in stream.read(0)])
    assert found[0] == found[1] == list(zip(keys, data, strict=True))


def test_timestamps_go_with_records_that_are_sent_as_columns(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1, retention=None)
    times = [1_600_000_000_000 + 7 * i for i in range(100)]
    column = pa.array(times, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch([pa.array([b"x"] * 100, pa.binary()), column], ["data", "timestamp"])
    stream.append_arrow(batch, shard=0)
    found = stream.read_arrow(0).read_all().column("timestamp")
    assert found.cast(pa.int64()).to_pylist() == [1000 * at for at in times]


def test_columns_wait_for_a_client_whose_queue_is_full(place: KafkaPlace) -> None:
    few = {"queue.buffering.max.messages": 50}
    with headrace.open(place.url, settings=few) as hub:
        stream = hub.create_stream("a", shards=1)
        stream.append_arrow(_piece([None] * 5_000, [b"%d" % i for i in range(5_000)]), shard=0)
        assert [record.value for record in stream.read(0)] == [b"%d" % i for i in range(5_000)]


def test_records_move_as_columns(
    hub: headrace.Hub, plain: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what the others compare is not one way twice."""
    stream = hub.create_stream("a", shards=1)
    made: list[int] = []
    real = FetchedColumns._records

    def records(self: FetchedColumns) -> tuple[ListedRecords | ColumnRecords | None, int | None]:
        made.append(self._sizes.records)
        return real(self)

    monkeypatch.setattr(FetchedColumns, "_records", records)
    stream.append_arrow(_piece([None] * 100, [b"x"] * 100), shard=0)
    assert len(list(plain.stream("a").read(0))) == 100
    assert not made
    assert len(list(stream.read(0))) == 100
    assert sum(made) == 100


def test_memory_of_read_records_is_freed(hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1)
    value = bytes(1000)
    stream.append_arrow(_piece([b"key"] * 3_000, [value] * 3_000), shard=0)

    def read() -> None:
        for batch in stream.read_arrow(0):
            assert batch.num_rows

    for _ in range(5):
        read()
    before = memory([os.getpid()]).rss
    for _ in range(40):
        read()
    assert memory([os.getpid()]).rss - before < 30, "120 MB were read"


def test_memory_of_records_fetched_ahead_is_freed(
    hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "IDLE_S", 600.0)  # a queue that is looked at stays there
    shards = 12
    stream = hub.create_stream("a", shards=shards)
    for shard in range(shards):
        stream.append_arrow(_piece([b"key"] * 3_000, [bytes(1000)] * 3_000), shard=shard)
    read = hub.log.read
    queue_length = ctypes.CDLL(cimpl.__file__).rd_kafka_queue_length

    def visit() -> None:
        for shard in range(shards):
            first = read(stream.info, shard, 0, max_records=10, max_bytes=2**20)
            (fetched,) = [c._fetched for c in _cursors(hub) if c.is_in(stream.info, shard)]
            assert isinstance(fetched, FetchedColumns)
            queue = ctypes.c_void_p(fetched._queue)
            until(lambda q=queue: queue_length(q) > 2_000, "more is fetched", WAIT_S)  # type: ignore[misc]
            assert first.next == 10
            hub.log._cursors.forget()  # type: ignore[attr-defined]

    visit()
    before = memory([os.getpid()]).own
    visit()
    visit()
    assert memory([os.getpid()]).own - before < 24, "72 MB were fetched ahead"


def _cursors(hub: headrace.Hub) -> list[Cursor]:
    found: list[Cursor] = hub.log._cursors._idle  # type: ignore[attr-defined]
    return found


class Stop(BaseException):
    """What a handler of a signal raises."""


def test_an_exception_at_any_moment_leaves_a_client_that_reads_on(hub: headrace.Hub) -> None:
    """Ctrl-C comes between any two lines."""
    stream = hub.create_stream("a", shards=1)
    stream.append_arrow(_piece([b"key"] * 3_000, [bytes(100)] * 3_000), shard=0)
    clients = hub.log._clients  # type: ignore[attr-defined]
    fetched = _make_fetched(clients)
    topic = hub.log._topics.topic_of("a")  # type: ignore[attr-defined]
    dice, stops = random.Random(13), 0

    def stop(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.endswith(("fetched.py", "fetched_columns.py")):
                raise Stop
            frame = frame.f_back  # not in the test itself

    before = signal.signal(signal.SIGALRM, stop)
    try:
        for turn in range(1_500):
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00001, 0.002))
                fetched.assign(topic, 0, dice.randrange(3_000))
                for _ in range(20):
                    fetched.take(10, 2**20, 0.001 if turn % 2 else 0.0)
                fetched.unassign()
            except Stop:
                stops += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            fetched.take(10, 2**20, 0.0)  # as if nothing had been
    finally:
        signal.signal(signal.SIGALRM, before)
    assert stops > 500
    fetched.unassign()
    fetched.assign(topic, 0, 2_990)
    found: list[int] = []

    def all_came() -> bool:
        records = fetched.take(100, 2**20, 0.01).records
        found.extend(records.offsets if records is not None else ())
        return len(found) == 10

    until(all_came, "it reads as ever", WAIT_S)
    assert found == list(range(2_990, 3_000))
    _check_closes(fetched)


GONE = """
import sys
import headrace
from headrace.backends.kafka.reading.fetched_columns import FetchedColumns

hub = headrace.open(sys.argv[1])
hub.create_stream("a", shards=2).append(b"x", shard=1)
clients, topic = hub.log._clients, hub.log._topics.topic_of("a")
made = clients.native_consumer(clients.native)
fetched = FetchedColumns(clients.native, *made, clients.settings.bootstrap)
fetched.assign(topic, 1, 0)
while fetched.take(10, 1000, 0.1).records is None:
    pass
hub.delete_stream("a")
hub.create_stream("a", shards=1)
for _ in range(20):
    fetched._client._consumer.list_topics(topic, timeout=30)
    fetched.take(10, 1000, 0.1)
fetched.close()
hub.close()
print("went on")
"""


def test_a_client_whose_partition_is_gone_does_not_end_the_process(place: KafkaPlace) -> None:
    """It complains in the call that takes records, and Python is not to be called back there."""
    with Child(["-c", GONE, place.url]) as child:
        assert child.output() == "went on\n"


def _make_fetched(clients: Clients) -> FetchedColumns:
    assert clients.native is not None
    return FetchedColumns(
        clients.native,
        *clients.native_consumer(clients.native),
        clients.settings.bootstrap,
    )


def _check_closes(fetched: FetchedColumns) -> None:
    ending = threading.Thread(target=fetched.close, daemon=True)
    ending.start()
    ending.join(WAIT_S)
    assert not ending.is_alive(), "the client waits for what was not given back"


def test_messages_taken_before_an_exception_are_given_back(hub: headrace.Hub) -> None:
    """By the next call, whichever it is."""
    stream = hub.create_stream("a", shards=1)
    stream.append_arrow(_piece([b"key"] * 3_000, [bytes(100)] * 3_000), shard=0)
    clients = hub.log._clients  # type: ignore[attr-defined]
    fetched = _make_fetched(clients)

    def take_only() -> None:
        def taken() -> int:
            assert fetched._queue is not None
            fetched._take(fetched._queue, 10, 2**20, 0.05)
            return fetched._sizes.records

        fetched.assign(hub.log._topics.topic_of("a"), 0, 0)  # type: ignore[attr-defined]
        until(taken, "something has come", WAIT_S)

    for go_on in (lambda: fetched.take(10, 2**20, 0.0), fetched.unassign):
        take_only()
        go_on()
    take_only()
    _check_closes(fetched)


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("most", [1, 3, 5, 1000])
def test_a_record_that_cannot_be_decoded_is_named_and_can_be_passed(
    place: KafkaPlace, native: str, most: int
) -> None:
    """Other clients write headers whose names are no UTF-8."""
    with headrace.open(f"{place.url}?native={native}") as hub:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"%d" % i, "k") for i in range(5)])
        _produce_bad_name(place.bootstrap, place.topic("a"))
        stream.append_many([(b"%d" % i, "k") for i in range(6, 10)])
        for start, end in [(0, None), (0, 10), (3, None), (5, 8), (5, None)]:
            reading = stream.read(0, start, end, max_records=most)
            assert [next(reading).offset for _ in range(start, 5)] == list(range(start, 5))
            with pytest.raises(headrace.BadBatch, match="header whose name is no UTF-8") as why:
                next(reading)
            assert (why.value.start, why.value.end) == (5, 6)
        assert [record.offset for record in stream.read(0, 0, 5)] == [0, 1, 2, 3, 4]
        assert [record.offset for record in stream.read(0, 6, max_records=most)] == [6, 7, 8, 9]
        followed, at = [], 0
        while at < 5:  # as whoever follows does: without an end
            part = hub.log.read(stream.info, 0, at, max_records=most, max_bytes=2**20)
            followed += [offset for batch in part.batches for offset in batch.offsets]
            at = part.next
        assert (followed, at) == ([0, 1, 2, 3, 4], 5)
        with pytest.raises(headrace.BadBatch):
            hub.log.read(stream.info, 0, 5, max_records=most, max_bytes=2**20)


@pytest.mark.parametrize("native", ["true", "false"])
def test_an_error_behind_records_is_raised_after_them(place: KafkaPlace, native: str) -> None:
    with headrace.open(f"{place.url}?native={native}") as hub:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"%d" % i, "k") for i in range(20)])
        read = hub.log.read
        assert read(stream.info, 0, 0, max_records=10, max_bytes=2**20).next == 10
        (cursor,) = _cursors(hub)
        real = cursor._fetched.take

        def take(*how: Any) -> Taken:
            taken = real(*how)
            complaint = KafkaError(KafkaError._AUTO_OFFSET_RESET, "for once")
            return (
                taken if taken.records is None else Taken(taken.records, [Trouble(-1, complaint)])
            )

        cursor._fetched.take = take  # type: ignore[method-assign, assignment]
        found, at = [], 10
        while at < 20:
            part = read(stream.info, 0, at, max_records=5, max_bytes=2**20)
            found += [offset for batch in part.batches for offset in batch.offsets]
            at = part.next
        assert found == list(range(10, 20))


def _produce_bad_name(bootstrap: str, topic: str) -> None:
    """The client in Python takes text only, the library in C any bytes."""
    client = ctypes.CDLL(cimpl.__file__)
    for name in ("rd_kafka_headers_new", "rd_kafka_topic_new", "rd_kafka_produceva"):
        getattr(client, name).restype = ctypes.c_void_p

    class Argument(ctypes.Structure):
        _fields_ = (("kind", ctypes.c_int), ("is_", ctypes.c_uint64 * 8))

    found = native_module.load_native()
    assert found is not None
    producer, handle = found.make_client(
        lambda more: Producer({"bootstrap.servers": bootstrap, "log_level": 0, **more})
    )
    headers = ctypes.c_void_p(client.rd_kafka_headers_new(1))
    client.rd_kafka_header_add(headers, b"\xff", 1, b"v", 1)
    of = found.topic(handle, topic.encode(), None)
    arguments = (Argument * 3)()
    for argument, kind, value in zip(arguments, (2, 3, 10), (of, 0, headers.value), strict=True):
        argument.kind, argument.is_[0] = kind, value
    assert client.rd_kafka_produceva(ctypes.c_void_p(handle), arguments, 3) is None
    assert producer.flush(30) == 0
    found.forget_topic(of)
