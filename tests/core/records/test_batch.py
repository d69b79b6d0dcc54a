from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadRecord
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.batch import Batch
from headrace.core.records.build import keyed_batch
from headrace.core.records.row import FLAGS_MAX, RECORD_BYTES_MAX, SEQUENCE_MAX, Row
from headrace.core.records.schema import SCHEMA, read_schema
from headrace.core.records.to_arrow import arrow_of

ROWS = st.builds(
    Row,
    key=st.none() | st.binary(max_size=9),
    data=st.none() | st.binary(max_size=99),
    timestamp=st.integers(0, TIMESTAMP_MS_MAX),
    sequence=st.integers(0, SEQUENCE_MAX),
    flags=st.integers(0, FLAGS_MAX),
    headers=st.lists(
        st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
    ).map(tuple),
    trace=st.none() | st.binary(max_size=9),
)
SOME_ROWS = st.lists(ROWS, max_size=20)


@given(SOME_ROWS)
def test_both_faces_show_the_same_records(rows: list[Row]) -> None:
    of_rows = Batch.of_rows(rows, offsets=range(len(rows)))
    of_arrow = Batch.of_arrow(arrow_of(rows), offsets=range(len(rows)))
    assert of_rows.columns.schema == SCHEMA
    assert of_rows.columns.equals(of_arrow.columns)
    assert list(of_arrow.rows) == rows
    for face in (of_rows, of_arrow):
        columns = zip(
            face.keys,
            face.data,
            face.timestamps,
            face.sequences,
            face.flags,
            face.headers,
            face.traces,
            strict=True,
        )
        assert [Row(*fields) for fields in columns] == rows
    assert of_rows.arrow.equals(of_arrow.arrow)
    assert len(of_rows) == len(of_arrow) == len(rows)


@given(SOME_ROWS, st.data())
def test_a_part_is_what_the_list_would_be(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    offsets = range(10, 10 + len(rows))
    for batch in (
        Batch.of_rows(rows, stream="a", shard=3, offsets=offsets),
        Batch.of_arrow(arrow_of(rows), stream="a", shard=3, offsets=offsets),
    ):
        part = batch.part(start, end)
        assert list(part.rows) == rows[start:end]
        assert list(part.offsets) == list(offsets)[start:end]
        assert (part.stream, part.shard, len(part)) == ("a", 3, end - start)


@settings(max_examples=50)
@given(SOME_ROWS.filter(bool), st.integers(0, 2_000))
def test_the_fitting_records_take_no_more_than_the_limit_and_one_more_would(
    rows: list[Row], nbytes: int
) -> None:
    for batch in (Batch.of_rows(rows), Batch.of_arrow(arrow_of(rows))):
        count = batch.fitting(nbytes)
        assert not count or batch.part(0, count).nbytes <= nbytes
        assert count == len(rows) or batch.part(0, count + 1).nbytes > nbytes


def test_a_batch_read_back_tells_its_place() -> None:
    rows = [Row(b"k", b"v", 1), Row(None, None, 2)]
    batch = Batch.of_rows(rows, stream="shop/orders", shard=2, offsets=(17, 19))
    arrow = batch.arrow
    assert arrow.schema.equals(read_schema("shop/orders", 2), check_metadata=True)
    assert arrow.schema.metadata == {
        b"headrace.stream": b"shop/orders",
        b"headrace.shard": b"2",
    }
    assert arrow.column("offset").to_pylist() == [17, 19]
    assert [str(record.id) for record in batch.records()] == [
        "shop/orders:2+17",
        "shop/orders:2+19",
    ]


def test_the_schema_is_what_spark_takes_everywhere() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in SCHEMA] == [
        ("key", "binary", True),
        ("data", "binary", True),
        ("timestamp", "timestamp[us, tz=UTC]", False),
        ("sequence", "int32", False),
        ("flags", "int16", False),
        (
            "headers",
            "list<item: struct<name: string not null, value: binary> not null>",
            False,
        ),
        ("trace", "binary", True),
    ]


def test_a_batch_decoded_another_way_holds_the_same_records() -> None:
    batch = Batch.of_rows([Row(None, b"abc", 1)], stream="a", shard=0, offsets=(5,))
    (plain,), (upper,) = batch.records(), batch.decoded_by(bytes.upper).records()
    assert (plain.value, upper.value) == (b"abc", b"ABC")
    assert (plain.id, plain.data) == (upper.id, upper.data)


@given(
    st.lists(
        st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=99)),
        min_size=1,
        max_size=20,
    )
)
def test_records_of_key_and_data_are_the_same_by_the_short_way(
    pairs: list[tuple[bytes | None, bytes | None]],
) -> None:
    keys, data = [key for key, _ in pairs], [value for _, value in pairs]
    short = keyed_batch(keys, data, 1_490_855_872_363)
    rows = [Row(key, value, 1_490_855_872_363) for key, value in pairs]
    assert short.columns.equals(arrow_of(rows))
    short.columns.validate(full=True)


def test_by_the_short_way_too_a_record_has_its_limit() -> None:
    with pytest.raises(BadRecord, match=r"a record of 4,190,209 bytes"):
        keyed_batch([b"k", b"k"], [b"", b"x" * RECORD_BYTES_MAX], 0)
    largest = keyed_batch([b"k"], [b"x" * (RECORD_BYTES_MAX - 1)], 0)
    assert len(largest) == 1


@pytest.mark.parametrize(
    "row",
    [
        Row(None, None, 0),
        Row(None, None, TIMESTAMP_MS_MAX, SEQUENCE_MAX, FLAGS_MAX),
        Row(b"k", b"x" * (RECORD_BYTES_MAX - 6), 0, 0, 0, (("é", b"v"),), b"tt"),
    ],
    ids=["least", "most", "largest"],
)
def test_a_row_within_its_limits_is_itself(row: Row) -> None:
    assert row.checked() is row


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timestamp": -1}, "timestamp -1 ms: it must lie between 1970 and 9999"),
        ({"timestamp": 1.0}, "timestamp 1.0 ms: it must lie between 1970 and 9999"),
        (
            {"timestamp": TIMESTAMP_MS_MAX + 1},
            "timestamp 253402300800000 ms: it must lie between 1970 and 9999",
        ),
        ({"sequence": -1}, "sequence -1: a whole number, 0 to 2147483647"),
        ({"sequence": 2**31}, "sequence 2147483648: a whole number, 0 to 2147483647"),
        ({"sequence": True}, "sequence True: a whole number, 0 to 2147483647"),
        ({"flags": -1}, "flags -1: nine bits, 0 to 0x1ff"),
        ({"flags": 0x200}, "flags 512: nine bits, 0 to 0x1ff"),
        *(
            (
                large,
                "a record of 4,190,209 bytes: the most is 4,190,208; store the payload elsewhere "
                "and append a reference to it",
            )
            for large in (
                {"data": b"x" * (RECORD_BYTES_MAX + 1)},
                {"key": b"x" * (RECORD_BYTES_MAX + 1)},
                {"trace": b"x" * (RECORD_BYTES_MAX + 1)},
                {"headers": (("é", b"x" * (RECORD_BYTES_MAX - 1)),)},
            )
        ),
    ],
)
def test_a_row_out_of_its_limits_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as caught:
        Row(None, None, 0)._replace(**fields).checked()
    assert str(caught.value) == message


def test_the_bytes_of_a_row_are_those_of_its_variable_fields() -> None:
    row = Row(b"key", b"data", 1, 2, 3, (("é", b"v"), ("n", None)), b"trace")
    assert row.nbytes == 3 + 4 + 2 + 1 + 1 + 5
    assert Row(None, None, 0).nbytes == 0


def test_a_part_of_arrow_is_counted_alone() -> None:
    whole = Batch.of_arrow(arrow_of([Row(None, b"x" * 1_000, 1)] * 100))
    assert whole.part(0, 10).nbytes < whole.nbytes / 5
    assert isinstance(whole.columns, pa.RecordBatch)


@given(SOME_ROWS.filter(bool), st.data())
def test_a_batch_knows_its_times(rows: list[Row], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    part = rows[start:]
    times = [row.timestamp for row in part]
    for batch in (Batch.of_rows(rows), Batch.of_arrow(arrow_of(rows))):
        found = batch.part(start, len(rows))
        assert found.times_ms == (min(times), max(times))
