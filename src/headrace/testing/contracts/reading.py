"""Promises about reading a stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import (
    BadValue,
    Closed,
    HeadraceError,
    OffsetOutOfRange,
    UnknownStream,
)
from headrace.core.model import Bounds, Record, StreamInfo
from headrace.core.ports import Backend, Log, ReadResult
from headrace.core.records.schema import read_schema
from headrace.hub.hub import Hub
from headrace.testing.contracts.backend_under_test import WAIT_S, BackendUnderTest, Opening, lacks


class ReadingContract(BackendUnderTest):
    def test_reading_as_records_and_as_arrow_agree(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"%d" % i, f"k{i}") for i in range(50)])
        for i in range(30):
            stream.append(b"%d" % i, headers={"n": b"v"}, trace=b"t", sequence=i, flags=i)
        table = stream.read_arrow(0, max_records=7).read_all()
        assert table.schema.equals(read_schema("a", 0), check_metadata=True)
        rows = table.to_pylist()
        assert rows == [_as_arrow(record) for record in stream.read(0, max_records=11)]
        assert len(rows) == 80

    def test_records_are_read_in_batches(self, hub: Hub, log: Log) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"x", "k")] * 95)
        for _ in range(5):
            stream.append(b"x")
        counted: Any = _Counted(log)
        for size in (1, 7, 33, 50, 100, 1_000):
            counted.reads = 0
            found = list(Hub(Backend(counted)).stream("a").read(0, max_records=size))
            assert len(found) == 100
            assert counted.reads <= math.ceil(100 / size) + 1

    def test_a_read_starts_at_an_end_an_offset_or_a_time(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
        ids = [
            stream.append(b"%d" % i, timestamp=noon + timedelta(hours=i)).offset for i in range(5)
        ]

        def found(start: Any, end: int | None = None) -> list[int]:
            return [int(record.value) for record in stream.read(0, start, end)]

        assert found("earliest") == [0, 1, 2, 3, 4]
        assert found("latest") == []
        assert found(ids[3]) == [3, 4]
        assert found(ids[1], ids[3]) == [1, 2]
        assert found(noon + timedelta(minutes=61)) == [2, 3, 4]
        assert found(noon - timedelta(days=1), ids[1]) == [0]
        assert found(noon + timedelta(days=1)) == []
        assert found("earliest", 2**62) == [0, 1, 2, 3, 4]

    def test_a_bad_start_or_limit_is_refused_before_reading(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"", None)] * 5)
        end = stream.bounds(0).end
        for start in (-1, end + 1):
            with pytest.raises(OffsetOutOfRange) as caught:
                stream.read(0, start)
            assert (caught.value.offset, caught.value.end) == (start, end)
        bad: list[dict[str, Any]] = [
            {"start": "first"},
            {"start": True},
            {"start": None},
            {"start": 3, "end": 2},
            {"end": "x"},
            {"end": -1},
            {"max_records": 0},
            {"max_records": 1.5},
            {"max_records": "x"},
            {"max_bytes": 0},
            {"max_bytes": "much"},
            {"shard": 1},
        ]
        for settings in bad:
            for read in (stream.read, stream.read_arrow):
                with pytest.raises(HeadraceError):
                    read(**{"shard": 0, **settings})

    def test_a_bounded_read_ends_where_the_shard_ended_when_it_began(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"before", None)] * 3)
        reading = stream.read(0, max_records=1)
        values = [next(reading).value]
        stream.append(b"after")
        values += [record.value for record in reading]
        assert values == [b"before"] * 3

    def test_a_following_read_sees_what_is_appended_later(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append(b"0")
        following = stream.read(0, follow=True)
        assert next(following).value == b"0"
        with ThreadPoolExecutor(1) as threads:
            for i in range(1, 4):
                waiting = threads.submit(next, following)
                stream.append(b"%d" % i)
                assert waiting.result(WAIT_S).value == b"%d" % i

    def test_a_following_read_with_an_end_ends_there(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        first = stream.append(b"0").offset
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(list, stream.read(0, end=first + 3, follow=True))
            stream.append_many([(b"1", None), (b"2", None), (b"3", None)])
            records = reading.result(WAIT_S)
        assert [record.value for record in records] == [b"0", b"1", b"2"]

    def test_a_following_read_ends_when_its_stream_or_hub_does(self, opening: Opening) -> None:
        hub = Hub(opening())
        ends: list[tuple[str, Callable[[], None], type[Exception]]] = [
            ("a", lambda: hub.delete_stream("a"), UnknownStream),
            ("b", hub.close, Closed),
        ]
        for name, end, error in ends:
            stream = hub.create_stream(name, shards=1)
            stream.append(b"0")
            following = stream.read(0, follow=True)
            assert next(following).value == b"0"
            with ThreadPoolExecutor(1) as threads:
                waiting = threads.submit(next, following)
                end()
                with pytest.raises(error):
                    waiting.result(WAIT_S)

    def test_a_read_overtaken_by_a_trim_raises(self, hub: Hub, log: Log) -> None:
        stream = hub.create_stream("a", shards=1)
        stream.append_many([(b"x", None)] * 50)
        if lacks(log, "trim", lambda: stream.trim(0, 40)):
            return
        records, batches = stream.read(0, max_records=10), stream.read_arrow(0, max_records=10)
        taken = [next(records) for _ in range(10)]
        assert batches.read_next_batch().num_rows == 10
        stream.trim(0, 40)
        assert [record.value for record in taken] == [b"x"] * 10
        for go_on in (lambda: next(records), batches.read_next_batch):
            with pytest.raises(OffsetOutOfRange) as caught:
                go_on()
            assert (caught.value.offset, caught.value.start) == (10, 40)
        for before in (39, 51, "x", True):
            with pytest.raises(HeadraceError):
                stream.trim(0, before)  # type: ignore[arg-type]
        assert stream.bounds(0) == Bounds(40, 50)

    def test_a_value_that_cannot_be_decoded_raises_when_it_is_accessed(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1, codec="json")
        stream.append_arrow(pa.record_batch({"data": [b"{", b"1"]}), shard=0)
        bad, good = stream.read(0)
        with pytest.raises(BadValue, match="codec 'json' cannot decode"):
            _ = bad.value
        assert (bad.data, good.value) == (b"{", 1)


class _Counted:
    """A log that counts how often it is read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(
        self, stream: StreamInfo, shard: int, start: int, *end: Any, **limits: Any
    ) -> ReadResult:
        self.reads += 1
        return self._log.read(stream, shard, start, *end, **limits)


def _as_arrow(record: Record) -> dict[str, object]:
    return {
        "key": record.key_bytes,
        "data": record.data,
        "timestamp": record.timestamp,
        "sequence": record.sequence,
        "flags": int(record.flags),
        "headers": [{"name": name, "value": value} for name, value in record.headers],
        "trace": record.trace,
        "offset": record.offset,
    }
