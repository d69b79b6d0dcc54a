from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import BadRecord
from headrace.core.records.watermark import SEQUENCE_MAX, Watermark

WATERMARKS = st.builds(
    Watermark, st.integers(0, 2**46 - 1), st.integers(0, SEQUENCE_MAX), st.booleans()
)


@pytest.mark.parametrize(
    ("watermark", "value"),
    [
        (Watermark(1_490_855_872_363, 3), 195_409_460_902_363_142),
        (Watermark(1_490_855_872_363, 3, True), 195_409_460_902_363_143),
        (Watermark(2_299_795_200_000, 0), 301_438_756_454_400_000),
        (Watermark(0, 0, True), 1),
        (Watermark(2**46 - 1, SEQUENCE_MAX, True), 2**63 - 1),
    ],
)
def test_a_watermark_has_the_value_it_has_in_nuxeo(watermark: Watermark, value: int) -> None:
    assert watermark.value == value
    assert Watermark.of(value) == watermark


@given(WATERMARKS)
def test_a_watermark_comes_back_from_its_value(watermark: Watermark) -> None:
    assert Watermark.of(watermark.value) == watermark


@given(WATERMARKS, WATERMARKS)
def test_watermarks_are_ordered_as_their_values_are(one: Watermark, other: Watermark) -> None:
    assert (one < other) == (one.value < other.value)


@pytest.mark.parametrize(
    "watermark",
    [Watermark(-1), Watermark(2**46), Watermark(0, -1), Watermark(0, SEQUENCE_MAX + 1)],
)
def test_a_watermark_that_does_not_fit_the_bits_has_no_value(watermark: Watermark) -> None:
    with pytest.raises(BadRecord, match="46 bits of time, 16 bits of sequence"):
        _ = watermark.value


@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_value_beyond_63_bits_is_no_watermark(value: int) -> None:
    with pytest.raises(BadRecord, match="is no watermark"):
        Watermark.of(value)
