"""Promises about appending to a stream."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import (
    BadRecord,
    BadSetting,
    BadValue,
    HeadraceError,
    UnknownShard,
    UnknownStream,
)
from headrace.core.model import Bounds, Flag, Record, RecordId
from headrace.core.ports import Log
from headrace.core.records.conform import conformed
from headrace.core.records.routing import router
from headrace.core.records.row import COMMIT_BYTES_MAX, RECORD_BYTES_MAX
from headrace.core.records.schema import SCHEMA
from headrace.core.records.watermark import Watermark
from headrace.hub.hub import Hub
from headrace.streams.sharding import SPREAD_RECORDS
from headrace.streams.stream import Stream
from headrace.testing.contracts.backend_under_test import WAIT_S, BackendUnderTest, lacks


class AppendingContract(BackendUnderTest):
    def test_every_field_of_a_record_survives(self, hub: Hub) -> None:
        stream = hub.create_stream("shop/orders", shards=2, codec="json")
        headers: list[tuple[str, bytes | str | None]] = [("a", b"1"), ("a", "2"), ("none", None)]
        at = datetime(2017, 3, 30, 6, 37, 52, 363_999, UTC)
        record_id = stream.append(
            {"id": 1},
            key=b"\xff\x00",
            headers=headers,
            timestamp=at,
            sequence=3,
            flags=0x83 | Flag.COMPLETED,
            trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            shard=1,
        )
        (record,) = stream.read(1)
        assert (record.id, record.stream, record.shard) == (record_id, "shop/orders", 1)
        assert RecordId.parse(str(record.id)) == record_id
        assert (record.value, record.data) == ({"id": 1}, b'{"id":1}')
        assert (record.key_bytes, record.key) == (b"\xff\x00", "\udcff\x00")
        assert record.headers == (("a", b"1"), ("a", b"2"), ("none", None))
        assert record.timestamp == at.replace(microsecond=363_000)
        assert record.watermark == Watermark(1_490_855_872_363, 3, True)
        assert record.watermark.value == 195_409_460_902_363_143
        assert record.flags == 0x183
        assert record.trace == b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def test_a_tombstone_is_not_an_empty_value(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        ids = [stream.append(None, "k"), stream.append(b"", "k")]
        ids += stream.append_many([(None, "k"), (b"", "k")])
        slices = stream.append_arrow(pa.record_batch({"data": [None, b""]}, schema=_DATA), shard=0)
        found = [(record.value, record.data, record.key) for record in stream.read(0)]
        assert found == [(None, None, "k"), (b"", b"", "k")] * 2 + [
            (None, None, None),
            (b"", b"", None),
        ]
        assert [record.id for record in stream.read(0)][:4] == ids
        assert [len(done) for done in slices] == [2]

    @pytest.mark.parametrize("routing", ["md5-range", "java-hash", "murmur2"])
    def test_the_key_chooses_the_shard(self, hub: Hub, routing: str) -> None:
        stream = hub.create_stream("a", shards=5, routing=routing)
        route = router(routing, stream.info.shards)
        keys = [f"key{i}" for i in range(30)]
        expected = [route(key.encode()) for key in keys]
        ids = stream.append_many((key.encode(), key) for key in keys)
        assert [record_id.shard for record_id in ids] == expected
        assert [stream.append(b"", key).shard for key in keys[:5]] == expected[:5]
        batch = pa.record_batch({"key": keys, "data": keys})
        by_shard = {done.shard: len(done) for done in stream.append_arrow(batch)}
        assert by_shard == {shard: expected.count(shard) for shard in expected}
        assert {_place(stream, at).key: at for at in ids} == dict(zip(keys, ids, strict=True))

    def test_an_explicit_shard_overrides_the_key(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=3)
        assert {stream.append(b"", f"k{i}", shard=2).shard for i in range(5)} == {2}
        many = stream.append_many([(b"", f"k{i}") for i in range(5)], shard=1)
        assert {record_id.shard for record_id in many} == {1}
        batch = pa.record_batch({"key": ["a", "b", "c"], "data": ["a", "b", "c"]})
        assert [done.shard for done in stream.append_arrow(batch, shard=0)] == [0]
        for shard in (3, -1, "0"):
            with pytest.raises(UnknownShard):
                stream.append(b"", shard=shard)  # type: ignore[arg-type]

    def test_records_without_a_key_are_spread_evenly_in_batches(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=3)
        assert sorted(stream.append(b"").shard for _ in range(9)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        ids = stream.append_many((b"", None) for _ in range(3 * SPREAD_RECORDS))
        runs = [(shard, len(list(run))) for shard, run in itertools.groupby(i.shard for i in ids)]
        assert sorted(runs) == [(0, SPREAD_RECORDS), (1, SPREAD_RECORDS), (2, SPREAD_RECORDS)]

    def test_appending_nothing_writes_nothing(self, hub: Hub, log: Log) -> None:
        stream = hub.create_stream("a", shards=1)
        seen = log.changes()
        assert stream.append_many([]) == []
        assert stream.append_arrow(pa.RecordBatch.from_pylist([], SCHEMA)) == []
        assert stream.append_arrow(pa.table({"data": pa.array([], pa.binary())})) == []
        assert log.changes() == seen
        assert stream.bounds(0) == Bounds(0, 0)

    def test_every_way_of_appending_takes_a_record_of_the_largest_size(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        largest = b"x" * (RECORD_BYTES_MAX - 1)
        stream.append(largest, "k")
        stream.append_many([(b"before", "k"), (largest, "k"), (b"after", "k")])
        stream.append_arrow(pa.record_batch({"key": [b"k"] * 2, "data": [largest, b"after"]}))
        with stream.appender() as out:
            out.append(largest, "k")
        sizes = [len(record.data or b"") for record in stream.read(0)]
        most = len(largest)
        assert sizes == [most, 6, most, 5, most, 5, most]

    def test_a_record_over_the_limit_is_refused_before_anything_is_written(
        self, hub: Hub, log: Log
    ) -> None:
        stream = hub.create_stream("a", shards=2)
        larger = b"x" * RECORD_BYTES_MAX
        seen = log.changes()
        # More than one commit of good records comes first.
        many = [b"y" * 1_000] * (COMMIT_BYTES_MAX // 1_000 + 1)
        headed = pa.record_batch(
            [
                pa.array([*many, b""], pa.binary()),
                pa.array([[]] * len(many) + [[{"name": "n", "value": larger}]], _HEADERS),
            ],
            names=["data", "headers"],
        )
        with stream.appender() as out:
            for call in (
                lambda: stream.append(larger, "k"),
                lambda: stream.append(b"", headers={"n": larger}),
                lambda: stream.append(b"", trace=larger + b"x"),
                lambda: stream.append_many([*((data, "k") for data in many), (larger, "k")]),
                lambda: stream.append_arrow(
                    pa.record_batch({"data": [*many, larger + b"x"]}), shard=0
                ),
                lambda: stream.append_arrow(headed, shard=0),
                lambda: out.append(larger, "k"),
            ):
                with pytest.raises(
                    BadRecord, match=r"a record of [0-9,]+ bytes: the most is 4,190,208"
                ):
                    call()
        assert log.changes() == seen

    def test_a_large_append_is_several_commits_in_order(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=3)
        route = router("md5-range", stream.info.shards)
        pairs = [(b"%d" % i + b"x" * 2_000, f"k{i % 53}") for i in range(5_000)]
        ids = stream.append_many(pairs)
        batch = pa.record_batch(
            {"key": [key for _, key in pairs], "data": [data for data, _ in pairs]}
        )
        slices = stream.append_arrow(batch)
        assert len(slices) > stream.shards
        expected: dict[int, list[tuple[bytes, str]]] = {0: [], 1: [], 2: []}
        for data, key in pairs:
            expected[route(key.encode())].append((data, key))
        for shard, own in expected.items():
            records = list(stream.read(shard))
            assert [(record.data, record.key) for record in records] == own + own
            assert [record.id for record in records[: len(own)]] == [
                record_id for record_id in ids if record_id.shard == shard
            ]

    @pytest.mark.parametrize("spare", [0, 60, 3_000])
    def test_an_append_that_just_fits_one_commit_fits_over_many_shards(
        self, hub: Hub, spare: int
    ) -> None:
        stream = hub.create_stream("a", shards=100)
        keys = [f"key{i}" for i in range(500)]

        def filled(last: int) -> pa.RecordBatch:
            data = [b"x" * 8_000] * 499 + [b"x" * last]
            return pa.record_batch({"key": keys, "data": data})

        # The batch fits to the byte. The overhead of its parts, one per shard, comes on top.
        most = filled(COMMIT_BYTES_MAX - spare - conformed(filled(0), 0).nbytes)
        assert conformed(most, 0).nbytes == COMMIT_BYTES_MAX - spare
        assert sum(map(len, stream.append_arrow(most))) == 500
        pairs = zip(most.column("data").to_pylist(), keys, strict=True)
        assert len(stream.append_many(pairs)) == 500

    def test_a_bad_field_is_refused_with_a_headrace_error(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        bad: list[dict[str, Any]] = [
            {"key": 5},
            {"key": "\ud800"},
            {"headers": 5},
            {"headers": ["no pair"]},
            {"headers": [(5, b"")]},
            {"headers": {"n": 5}},
            {"headers": {"\ud800": b""}},
            {"headers": {"n": "\ud800"}},
            {"timestamp": -1},
            {"timestamp": datetime(2020, 1, 1)},  # noqa: DTZ001 - a naive datetime is refused
            {"timestamp": "now"},
            {"sequence": -1},
            {"sequence": 2**31},
            {"sequence": True},
            {"sequence": 1.0},
            {"flags": 512},
            {"flags": "x"},
            {"trace": 5},
            {"trace": "\ud800"},
            {"shard": 1},
            {"producer": "p"},
            {"producer_seq": 1},
            {"producer": "", "producer_seq": 1},
            {"producer": 5, "producer_seq": 1},
            {"producer": "\ud800", "producer_seq": 1},
            {"producer": "p", "producer_seq": -1},
            {"producer": "p", "producer_seq": 1.0},
            {"producer": "p", "producer_seq": 2**63},
        ]
        for fields in bad:
            with pytest.raises(HeadraceError):
                stream.append(b"", **fields)
        for value in ("text", 5, object()):
            with pytest.raises(BadValue, match="codec 'bytes' takes bytes"):
                stream.append(value)
            with pytest.raises(BadValue, match="codec 'bytes' takes bytes"):
                stream.append_many([(b"", None), (value, None)])
        for pairs in ([b"no pair"], [(b"", "k", "more")], [(b"", 5)]):
            with pytest.raises(BadRecord):
                stream.append_many(pairs)  # type: ignore[arg-type]
        assert stream.bounds(0) == Bounds(0, 0)

    def test_a_repeated_append_of_any_kind_is_the_same_append(self, hub: Hub, log: Log) -> None:
        stream = hub.create_stream("a", shards=3)
        if lacks(log, "producer_seq", lambda: stream.append(b"", producer="p", producer_seq=0)):
            return
        batch = pa.record_batch({"key": [f"k{i}" for i in range(9)], "data": ["x"] * 9})
        pairs = [(b"x", f"k{i}" if i % 2 else None) for i in range(9)]

        def all_kinds() -> list[object]:
            return [
                stream.append(b"x", producer="p", producer_seq=1),
                stream.append_many(pairs, producer="p", producer_seq=2),
                stream.append_arrow(batch, producer="p", producer_seq=3),
            ]

        first = all_kinds()
        assert all_kinds() == first
        assert sum(stream.bounds(shard).end for shard in range(3)) == 19

    def test_a_producer_seq_used_for_two_different_appends_is_refused(
        self, hub: Hub, log: Log
    ) -> None:
        stream = hub.create_stream("a", shards=3)
        if lacks(log, "producer_seq", lambda: stream.append(b"", producer="p", producer_seq=0)):
            return
        stream.append(b"x", producer="p", producer_seq=1)
        pairs = [(b"x", f"k{i}") for i in range(9)]
        with pytest.raises(BadSetting, match="gave producer_seq 1 to another append"):
            stream.append_many(pairs, producer="p", producer_seq=1)
        assert sum(stream.bounds(shard).end for shard in range(3)) == 1

    # Appending in the background

    def test_an_appender_tells_where_each_record_landed(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=3, codec="json")
        with stream.appender(linger="1ms", max_records=7) as out:
            pending = [out.append(i, key=f"k{i % 5}") for i in range(100)]
            pending += [out.append(i) for i in range(100, 120)]
            out.flush()
            assert all(one.done() for one in pending)
        ids = [one.result("1s") for one in pending]
        values = {record.id: record.value for shard in range(3) for record in stream.read(shard)}
        assert values == dict(zip(ids, range(120), strict=True))
        for shard in range(3):
            own = [record_id.offset for record_id in ids[:100] if record_id.shard == shard]
            assert own == sorted(own)

    def test_bad_appender_settings_are_refused(self, hub: Hub) -> None:
        stream = hub.create_stream("a", shards=1)
        bad: list[dict[str, Any]] = [
            {"max_records": 0},
            {"max_records": 1.5},
            {"max_records": "x"},
            {"max_bytes": 0},
            {"max_bytes": COMMIT_BYTES_MAX + 1},
            {"linger": "soon"},
            {"linger": -1},
        ]
        for settings in bad:
            with pytest.raises(HeadraceError):
                stream.appender(**settings)

    def test_an_appender_raises_the_error_that_kept_a_record_from_being_written(
        self, hub: Hub
    ) -> None:
        stream = hub.create_stream("a", shards=1)
        out = stream.appender(linger="0s")
        out.append(b"x").result(WAIT_S)
        hub.delete_stream("a")
        lost = out.append(b"y")
        with pytest.raises(UnknownStream):
            lost.result(WAIT_S)
        for call in (out.flush, lambda: out.append(b"z"), out.close):
            with pytest.raises(UnknownStream):
                call()


_DATA = pa.schema([pa.field("data", pa.binary())])
_HEADERS = SCHEMA.field("headers").type


def _place(stream: Stream, record_id: RecordId) -> Record:
    return next(stream.read(record_id.shard, record_id.offset))
