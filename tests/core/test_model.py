from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadName, BadRecordId, BadSetting
from headrace.core.model import (
    HASH_END,
    OFFSET_MAX,
    Bounds,
    Flag,
    Record,
    RecordId,
    Shard,
    Slice,
    even_shards,
)
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.watermark import Watermark

_PART = st.from_regex(r"[A-Za-z0-9._]{3,9}", fullmatch=True).filter(lambda part: part != "...")


@given(
    _PART | st.builds("{}/{}".format, _PART, _PART),
    st.integers(0, 999_999_999),
    st.integers(0, OFFSET_MAX),
)
def test_a_record_id_reads_back_from_its_text(stream: str, shard: int, offset: int) -> None:
    record_id = RecordId(stream, shard, offset)
    assert RecordId.parse(str(record_id)) == record_id


def test_a_record_id_prints_as_stream_shard_and_offset() -> None:
    assert str(RecordId("shop/orders", 2, 17)) == "shop/orders:2+17"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shop/orders",
        "shop/orders:2",
        "shop/orders:+17",
        "shop/orders:2+",
        ":2+17",
        "shop/orders:-2+17",
        "shop/orders:2+-17",
        "shop/orders:2+17 ",
        "shop/orders:2+17\n",
        "shop/orders:\u0662+17",
        "a:b:2+17",
        f"a:0+{OFFSET_MAX + 1}",
        "a:0+99999999999999999999",
        "a:9999999999+0",
    ],
)
def test_a_bad_record_id_is_refused(text: str) -> None:
    with pytest.raises(BadRecordId, match="write stream:shard\\+offset, as in shop/orders:2\\+17"):
        RecordId.parse(text)


@pytest.mark.parametrize("thing", [None, 5, b"shop/orders:2+17"])
def test_a_value_that_is_no_text_is_no_record_id(thing: Any) -> None:
    with pytest.raises(BadRecordId):
        RecordId.parse(thing)


def test_a_record_id_with_a_bad_stream_name_says_what_is_wrong_with_it() -> None:
    with pytest.raises(BadName, match="at most one slash"):
        RecordId.parse("a/b/c:0+0")


@given(st.text())
def test_no_text_does_more_than_be_refused_as_a_record_id(text: str) -> None:
    try:
        found = RecordId.parse(text)
    except (BadRecordId, BadName):
        return
    assert RecordId.parse(str(found)) == found


def test_a_slice_holds_its_offsets() -> None:
    todo = Slice("shop/orders", 2, 5, 9)
    assert len(todo) == 4
    assert str(todo) == "shop/orders:2+5..9"
    assert len(Slice("a", 0, 5, 5)) == 0


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (2, 1), (0, OFFSET_MAX + 1)])
def test_a_slice_that_cannot_be_is_refused(start: int, end: int) -> None:
    with pytest.raises(BadSetting, match="0 <= start <= end must hold"):
        Slice("a", 0, start, end)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 10_000])
def test_even_shards_cover_the_range_without_gap_or_overlap(count: int) -> None:
    shards = even_shards(count)
    assert [shard.index for shard in shards] == list(range(count))
    assert (shards[0].begin, shards[-1].end) == (0, HASH_END)
    assert all(one.end == next.begin for one, next in pairwise(shards))
    widths = {shard.end - shard.begin for shard in shards}
    assert max(widths) - min(widths) <= 1
    assert all(shard.open and not shard.parents for shard in shards)


@pytest.mark.parametrize("count", [0, -1, 10_001, True, 1.0, "4", None])
def test_a_bad_number_of_shards_is_refused(count: Any) -> None:
    with pytest.raises(BadSetting, match="1 to 10000"):
        even_shards(count)


def test_a_hash_range_is_written_as_loghub_writes_it() -> None:
    assert [shard.hash_range for shard in even_shards(2)] == [
        ("0" * 32, "8" + "0" * 31),
        ("8" + "0" * 31, "f" * 32),
    ]
    assert Shard(0, 0xEF, 2**127).hash_range == ("0" * 30 + "ef", "8" + "0" * 31)


def test_bounds_unpack_as_start_and_end() -> None:
    start, end = Bounds(3, 9)
    assert (start, end) == (3, 9)


def test_a_record_shows_one_row_of_its_batch() -> None:
    row = Row(b"k\xff", b'{"a":1}', 1_490_855_872_363, 3, 0x183, (("h", None),), b"t")
    decoded: list[bytes] = []

    def decode(data: bytes) -> object:
        decoded.append(data)
        return "decoded"

    rows = [Row(None, None, 0), row]
    batch = Batch.of_rows(rows, stream="shop/orders", shard=2, offsets=(7, 17)).decoded_by(decode)
    tombstone, record = map(Record, (batch, batch), (0, 1))
    assert (record.id, record.stream, record.shard, record.offset) == (
        RecordId("shop/orders", 2, 17),
        "shop/orders",
        2,
        17,
    )
    assert [record.value, record.value] == ["decoded", "decoded"]
    assert decoded == [b'{"a":1}']
    assert (record.key_bytes, record.key, record.data) == (b"k\xff", "k\udcff", b'{"a":1}')
    assert record.timestamp == datetime(2017, 3, 30, 6, 37, 52, 363_000, UTC)
    assert (record.timestamp_ms, record.sequence) == (1_490_855_872_363, 3)
    assert record.flags == Flag.DEFAULT | Flag.COMMIT | Flag.USER2 | Flag.COMPLETED
    assert record.watermark == Watermark(1_490_855_872_363, 3, True)
    assert (record.headers, record.trace) == ((("h", None),), b"t")
    assert (tombstone.key, tombstone.value, tombstone.data) == (None, None, None)
    assert (tombstone.flags, tombstone.headers, tombstone.trace) == (Flag(0), (), None)
    assert repr(record) == "<Record shop/orders:2+17 key=b'k\\xff' data=b'{\"a\":1}'>"


def test_a_record_with_much_data_is_shown_in_short() -> None:
    batch = Batch.of_rows([Row(None, b"x" * 41, 0)], stream="a", shard=0, offsets=(0,))
    assert repr(Record(batch, 0)) == f"<Record a:0+0 key=None data=b'{'x' * 40}...'>"
