from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadQuantity
from headrace.core.quantities import (
    TIMESTAMP_MS_MAX,
    go_duration_ns,
    instant_ms,
    seconds,
    shown_apart,
    shown_duration,
    shown_size,
    size_bytes,
)

_MINUTE = 60 * 10**9
_HOUR = 60 * _MINUTE
_WRITE = "write '200ms', '5s', '1h30m' or '7d'"
_EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("+0", 0),
        ("-0", 0),
        ("5s", 5 * 10**9),
        ("-5s", -5 * 10**9),
        ("+5s", 5 * 10**9),
        (".5s", 5 * 10**8),
        ("-.5s", -5 * 10**8),
        ("1.s", 10**9),
        ("1.5h", _HOUR * 3 // 2),
        ("1.004s", 1_004_000_000),
        ("100.00100s", 100_001_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12µs", 12_000),  # micro sign
        ("12μs", 12_000),  # the Greek letter
        ("13ms", 13_000_000),
        ("3h30m", 3 * _HOUR + 30 * _MINUTE),
        ("10.5s4m", 4 * _MINUTE + 10_500_000_000),
        ("-2m3.4s", -(2 * _MINUTE + 3_400_000_000)),
        ("1h2m3s4ms5us6ns", _HOUR + 2 * _MINUTE + 3_004_005_006),
        ("39h9m14.425s", 39 * _HOUR + 9 * _MINUTE + 14_425_000_000),
        ("52763797000ns", 52_763_797_000),
        ("0.3333333333333333333h", 20 * _MINUTE),
        ("0.100000000000000000000h", 6 * _MINUTE),
        ("0.830103483285477580700h", 49 * _MINUTE + 48_372_539_827),
        ("9007199254740993ns", 2**53 + 1),
        ("9223372036854775807ns", 2**63 - 1),
        ("9223372036854775.807us", 2**63 - 1),
        ("-9223372036854775808ns", -(2**63)),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, ns: int) -> None:
    assert go_duration_ns(text) == ns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("abc", 'time: invalid duration "abc"'),
        ("3", 'time: missing unit in duration "3"'),
        ("10", 'time: missing unit in duration "10"'),
        ("1.", 'time: missing unit in duration "1."'),
        ("3.4.5s", 'time: missing unit in duration "3.4.5s"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1S", 'time: unknown unit "S" in duration "1S"'),
        ("1 s", 'time: unknown unit " s" in duration "1 s"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("-", 'time: invalid duration "-"'),
        ("+", 'time: invalid duration "+"'),
        ("s", 'time: invalid duration "s"'),
        (".", 'time: invalid duration "."'),
        ("-.", 'time: invalid duration "-."'),
        (".s", 'time: invalid duration ".s"'),
        ("+.s", 'time: invalid duration "+.s"'),
        ("--1s", 'time: invalid duration "--1s"'),
        ("1h-1m", 'time: unknown unit "h-" in duration "1h-1m"'),
        ("1e3s", 'time: unknown unit "e" in duration "1e3s"'),
        ("\u0661s", r'time: invalid duration "\xd9\xa1s"'),
        ('1"\\\n', r'time: unknown unit "\"\\\x0a" in duration "1\"\\\x0a"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("-9223372036854775809ns", 'time: invalid duration "-9223372036854775809ns"'),
        ("3000000h", 'time: invalid duration "3000000h"'),
    ],
)
def test_a_duration_that_go_refuses_is_refused_with_gos_message(text: str, message: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        go_duration_ns(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("duration", "value_s"),
    [
        ("5ms", 0.005),
        ("7d", 604_800.0),
        ("1d12h", 129_600.0),
        ("0.5d", 43_200.0),
        ("0", 0.0),
        (timedelta(milliseconds=250), 0.25),
        (timedelta(0), 0.0),
        (3, 3.0),
        (0.5, 0.5),
        (0, 0.0),
    ],
)
def test_durations_of_every_kind_become_seconds(duration: Any, value_s: float) -> None:
    assert seconds(duration) == value_s


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        ("soon", f'bad linger: time: invalid duration "soon"; {_WRITE}'),
        ("5", f'bad linger: time: missing unit in duration "5"; {_WRITE}'),
        ("-5s", "bad linger '-5s': it must lie between 0 and 100 years"),
        (-1, "bad linger -1: it must lie between 0 and 100 years"),
        (float("nan"), "bad linger nan: it must lie between 0 and 100 years"),
        (float("inf"), "bad linger inf: it must lie between 0 and 100 years"),
        (True, "bad linger True: write '5s', '200ms', a timedelta or seconds"),
        (None, "bad linger None: write '5s', '200ms', a timedelta or seconds"),
        (b"5s", "bad linger b'5s': write '5s', '200ms', a timedelta or seconds"),
    ],
)
def test_a_bad_duration_says_what_it_was_for(duration: Any, message: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        seconds(duration, what="linger")
    assert str(caught.value) == message


def test_numbers_beyond_all_durations_are_refused() -> None:
    for duration in (10**400, -(10**400), timedelta(days=-1)):
        with pytest.raises(BadQuantity, match="between 0 and 100 years"):
            seconds(duration)


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        (0, 0),
        (2**63 - 1, 2**63 - 1),
        ("0", 0),
        ("123", 123),
        ("123B", 123),
        ("1kB", 1_000),
        ("4k", 4_096),
        ("4KiB", 4_096),
        ("16MiB", 2**24),
        ("16 mib", 2**24),
        (" 1GB ", 10**9),
        ("1.5GiB", 3 * 2**29),
        ("0.5k", 512),
        ("2T", 2**41),
        ("1TB", 10**12),
    ],
)
def test_sizes_become_bytes(size: Any, nbytes: int) -> None:
    assert size_bytes(size) == nbytes


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("", "bad size '': write '16MiB', '1GB' or a number of bytes"),
        ("MiB", "bad size 'MiB': write '16MiB', '1GB' or a number of bytes"),
        ("-1", "bad size '-1': write '16MiB', '1GB' or a number of bytes"),
        ("1,5k", "bad size '1,5k': write '16MiB', '1GB' or a number of bytes"),
        ("1e3", "bad size '1e3': write '16MiB', '1GB' or a number of bytes"),
        ("\u0661", "bad size '\u0661': write '16MiB', '1GB' or a number of bytes"),
        ("5PB", "bad size '5PB': unknown unit 'PB'; use B, KiB, MiB, GiB, TiB"),
        (-1, "bad size -1: it must lie between 0 and 2**63 bytes"),
        (2**63, f"bad size {2**63}: it must lie between 0 and 2**63 bytes"),
        ("9999999999999TiB", "bad size '9999999999999TiB': it must lie between 0 and 2**63 bytes"),
        (1.5, "bad size 1.5: write '16MiB', '1GB' or a number of bytes"),
        (True, "bad size True: write '16MiB', '1GB' or a number of bytes"),
        (None, "bad size None: write '16MiB', '1GB' or a number of bytes"),
    ],
)
def test_a_bad_size_is_refused_with_the_reason(size: Any, message: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        size_bytes(size)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("instant", "ms"),
    [
        (0, 0),
        (TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2017, 3, 30, 6, 37, 52, 363_999, UTC), 1_490_855_872_363),
        (datetime(2017, 3, 30, 8, 37, 52, 363_000, _EAST), 1_490_855_872_363),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), TIMESTAMP_MS_MAX),
    ],
)
def test_times_become_milliseconds_since_1970(instant: Any, ms: int) -> None:
    assert instant_ms(instant) == ms


@pytest.mark.parametrize(
    ("instant", "why"),
    [
        (datetime(2020, 1, 1), "give the datetime a time zone"),  # noqa: DTZ001 - that is refused
        (datetime(1969, 12, 31, tzinfo=UTC), "it must lie between 1970 and 9999"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), "between 1970 and 9999"),
        (-1, "it must lie between 1970 and 9999"),
        (TIMESTAMP_MS_MAX + 1, "it must lie between 1970 and 9999"),
        (1.5, "an aware datetime, or milliseconds since 1970"),
        (True, "an aware datetime, or milliseconds since 1970"),
        ("now", "an aware datetime, or milliseconds since 1970"),
        (None, "an aware datetime, or milliseconds since 1970"),
    ],
)
def test_a_bad_time_is_refused_with_the_reason(instant: Any, why: str) -> None:
    with pytest.raises(BadQuantity, match=why):
        instant_ms(instant)


@given(st.integers(0, 100 * 366 * 86_400_000))
def test_a_shown_duration_reads_back(ms: int) -> None:
    assert round(seconds(shown_duration(ms / 1000)) * 1000) == ms


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0, "0s"),
        (0.005, "5ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (60, "1m"),
        (3600.25, "1h0.25s"),
        (90_061.5, "1d1h1m1.5s"),
        (604_800, "7d"),
    ],
)
def test_durations_are_shown_for_people(value_s: float, text: str) -> None:
    assert shown_duration(value_s) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.0 KiB"),
        (1_536, "1.5 KiB"),
        (2**24, "16.0 MiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_are_shown_for_people(nbytes: int, text: str) -> None:
    assert shown_size(nbytes) == text


@settings(max_examples=500)
@given(st.text() | st.text('0123456789.-+nuµmshdkKMGTiB \n"', max_size=70))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    parsers: list[Callable[[Any], object]] = [go_duration_ns, seconds, size_bytes, instant_ms]
    for parse in parsers:
        try:
            value = parse(text)
        except BadQuantity:
            continue
        assert isinstance(value, int | float)


def test_sizes_that_would_look_the_same_are_shown_to_the_byte() -> None:
    assert shown_apart(5 * 2**20, 4 * 2**20) == ("5.0 MiB", "4.0 MiB")
    assert shown_apart(4 * 2**20, 4 * 2**20 - 4096) == ("4,194,304 bytes", "4,190,208")
