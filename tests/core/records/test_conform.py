from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import BadRecord
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.conform import conformed
from headrace.core.records.row import RECORD_BYTES_MAX, Row
from headrace.core.records.schema import HEADERS_TYPE, SCHEMA
from headrace.core.records.to_arrow import arrow_of

NOW_MS = 1_490_855_872_363


def _rows(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    taken = conformed(batch, NOW_MS)
    assert taken.columns.schema == SCHEMA
    taken.columns.validate(full=True)
    return list(taken.rows)


def _batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"data": pa.array([b"a", b"b"], pa.binary()), **columns})


def test_a_batch_in_the_schema_is_taken_as_it_is() -> None:
    rows = [
        Row(b"k", b"v", NOW_MS, 3, 0x183, (("h", b"1"), ("h", None)), b"t"),
        Row(None, None, 0),
    ]
    assert _rows(arrow_of(rows)) == rows


def test_missing_columns_get_their_defaults() -> None:
    assert _rows(_batch()) == [Row(None, b"a", NOW_MS), Row(None, b"b", NOW_MS)]


def test_missing_values_get_their_defaults() -> None:
    batch = _batch(
        key=pa.nulls(2),
        timestamp=pa.array([None, 5_000], pa.timestamp("us", "UTC")),
        sequence=pa.array([None, 1], pa.int32()),
        flags=pa.array([1, None], pa.int16()),
        headers=pa.array([None, [{"name": "h", "value": None}]], HEADERS_TYPE),
        trace=pa.nulls(2),
    )
    assert _rows(batch) == [
        Row(None, b"a", NOW_MS, 0, 1),
        Row(None, b"b", 5, 1, 0, (("h", None),)),
    ]


def test_other_types_are_brought_into_ours() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(["é", "k"], pa.large_string()),
            "data": pa.array(["a", "a"]).dictionary_encode(),
            "sequence": pa.array([1, 2], pa.int64()),
            "flags": pa.array([1, 2], pa.uint8()),
            "timestamp": pa.array([1, 2], pa.timestamp("s", "Europe/Paris")),
            "trace": pa.array([b"t", None], pa.large_binary()),
            "headers": pa.array(
                [[{"name": "h", "value": "text"}], []],
                pa.list_(pa.struct({"name": pa.string(), "value": pa.string()})),
            ),
        }
    )
    assert _rows(batch) == [
        Row("é".encode(), b"a", 1_000, 1, 1, (("h", b"text"),), b"t"),
        Row(b"k", b"a", 2_000, 2, 2),
    ]


def test_columns_may_come_in_any_order_and_a_table_in_pieces() -> None:
    one = pa.record_batch({"data": [b"a"], "key": [b"1"]})
    two = pa.record_batch({"data": [b"b"], "key": [b"2"]})
    table = pa.Table.from_batches([one, two])
    assert _rows(table) == [Row(b"1", b"a", NOW_MS), Row(b"2", b"b", NOW_MS)]


def test_an_empty_batch_and_an_empty_table_stay_empty() -> None:
    assert _rows(_batch().slice(0, 0)) == []
    assert _rows(pa.table({"data": pa.array([], pa.binary())})) == []
    assert _rows(pa.Table.from_batches([], pa.schema({"data": pa.binary()}))) == []


def test_a_part_of_a_larger_batch_is_checked_alone() -> None:
    sequences = pa.array([2**40, 1, 2, -1], pa.int64())
    data = pa.array([b"a", b"b", b"c", b"d"])
    whole = pa.RecordBatch.from_pydict({"data": data, "sequence": sequences})
    assert _rows(whole.slice(1, 2)) == [Row(None, b"b", NOW_MS, 1), Row(None, b"c", NOW_MS, 2)]


def test_a_batch_that_was_read_may_be_appended_elsewhere() -> None:
    read = Batch.of_rows([Row(b"k", b"v", 5)], stream="a", shard=1, offsets=(17,)).arrow
    assert _rows(read) == [Row(b"k", b"v", 5)]


def test_times_are_cut_to_whole_milliseconds() -> None:
    times = [datetime(2026, 1, 1, 0, 0, 0, us, UTC) for us in (1_999, 2_000)]
    for unit in ("us", "ns"):
        batch = _batch(
            timestamp=pa.array(times, pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"))
        )
        column = conformed(batch, NOW_MS).columns.column("timestamp")
        assert [time.microsecond for time in column.to_pylist()] == [1_000, 2_000]


def test_times_already_whole_are_not_copied() -> None:
    batch = arrow_of([Row(b"k", b"v", 5)] * 20)
    taken = conformed(batch, NOW_MS).columns
    assert taken.column("timestamp").buffers()[1].address == (
        batch.column("timestamp").buffers()[1].address
    )


def _timestamps(*ms: int) -> pa.Array:
    return pa.array([value * 1000 for value in ms], pa.int64()).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": _timestamps(0, -1)}, "column 'timestamp' goes from -1 to 0 ms: 0 to"),
        ({"timestamp": _timestamps(0, TIMESTAMP_MS_MAX + 1)}, "column 'timestamp' goes from 0 to"),
        ({"timestamp": pa.array([1, 2])}, "column 'timestamp' is int64: give it a timestamp type"),
        ({"timestamp": pa.array(["x", "y"])}, "a batch that does not fit"),
        ({"sequence": pa.array([0, -1])}, "column 'sequence' goes from -1 to 0: 0 to 2147483647"),
        ({"sequence": pa.array([0, 2**31])}, "a batch that does not fit"),
        ({"sequence": pa.array([0, 1.5])}, "a batch that does not fit"),
        ({"flags": pa.array([0, 512])}, "column 'flags' goes from 0 to 512: 0 to 511"),
        ({"flags": pa.array([0, -1])}, "column 'flags' goes from -1 to 0: 0 to 511"),
        ({"key": pa.array([1, 2])}, "a batch that does not fit"),
        ({"headers": pa.array([["a"], []])}, "a batch that does not fit"),
        (
            {
                "headers": pa.array(
                    [[{"name": None, "value": b""}], []],
                    pa.list_(pa.struct({"name": pa.string(), "value": pa.binary()})),
                )
            },
            "a header without a name|a batch that does not fit",
        ),
        ({"colour": pa.array([1, 2])}, r"\['colour'\] are not"),
        ({"Key": pa.array([b"", b""])}, r"\['Key'\] are not"),
    ],
    ids=str,
)  # fmt: skip
def test_a_batch_that_does_not_fit_is_refused(columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        conformed(_batch(**columns), NOW_MS)


def test_without_data_there_is_nothing_to_append() -> None:
    with pytest.raises(BadRecord, match="'data' is needed"):
        conformed(pa.record_batch({"key": [b"k"]}), NOW_MS)


def test_a_column_that_comes_twice_is_refused() -> None:
    twice = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["data"] * 2)
    with pytest.raises(BadRecord, match="each may come once"):
        conformed(twice, NOW_MS)


@pytest.mark.parametrize("thing", [None, [b"a"], {"data": [b"a"]}, b"a"])
def test_a_value_that_is_no_batch_is_refused(thing: Any) -> None:
    with pytest.raises(BadRecord, match="takes a pyarrow RecordBatch or Table, not"):
        conformed(thing, NOW_MS)


def test_text_that_is_no_utf_8_is_refused() -> None:
    raw = pa.array([b"\xff", b"\xff"], pa.binary()).buffers()
    text = pa.Array.from_buffers(pa.string(), 2, raw)
    with pytest.raises(BadRecord, match="a batch that does not fit"):
        conformed(_batch(key=text), NOW_MS)


def test_a_record_over_the_limit_is_found_wherever_its_bytes_are() -> None:
    most = b"x" * RECORD_BYTES_MAX
    small = Row(b"k", b"v", 1, headers=(("a", b"1"), ("b", None)), trace=b"t")
    for row in (
        Row(None, most, 1),
        Row(most, None, 1),
        Row(None, None, 1, trace=most),
        Row(None, None, 1, headers=(("h", most[1:]),)),
        Row(None, None, 1, headers=((most.decode(), None),)),
        Row(most[:9], most[18:], 1, headers=(("n", most[:4]), ("nn", b"")), trace=b"tt"),
    ):
        assert row.nbytes == RECORD_BYTES_MAX
        assert len(_rows(arrow_of([small, row, small]))) == 3
        larger = row._replace(trace=(row.trace or b"") + b"x")
        for rows in ([larger], [small, larger, small]):
            with pytest.raises(
                BadRecord, match="a record of 4,190,209 bytes: the most is 4,190,208"
            ):
                conformed(arrow_of(rows), NOW_MS)


def test_the_first_row_that_is_too_large_is_named_with_its_size_and_the_limit() -> None:
    small, large = Row(b"k", b"v", 1), Row(b"k", b"x" * RECORD_BYTES_MAX, 1)
    batch = arrow_of([small, small, large, small, large])
    named = (
        "row 2 of the batch is a record of 4,190,209 bytes: the most is 4,190,208; store the "
        "payload elsewhere and append a reference to it"
    )
    for given in (batch, pa.Table.from_batches([batch.slice(0, 1), batch.slice(1)])):
        with pytest.raises(BadRecord) as refused:
            conformed(given, NOW_MS)
        assert str(refused.value) == named
    with pytest.raises(BadRecord, match=r"^row 0 of the batch is a record of 4,190,209 bytes"):
        conformed(batch.slice(2), NOW_MS)
