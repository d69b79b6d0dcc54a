from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.computations.policy import RETRIES_MAX, Policy
from headrace.core.errors import BadQuantity, BadSetting


def test_eight_retries_come_at_the_times_of_the_seed() -> None:
    assert Policy(retries=8).times_s(8) == [1, 3, 7, 15, 31, 63, 123, 183]


def test_the_usual_policy_tries_twenty_times_in_fifteen_minutes_and_stops() -> None:
    usual = Policy()
    assert usual == Policy(retries=20, delay="1s", delay_max="60s", then="stop", timeout=None)
    times = usual.times_s(20)
    assert (len(times), times[-1]) == (20, 903.0)
    assert (usual.no_retry, usual.deaths, usual.dead_letters_max) == ((), 5, 100)


def test_there_are_no_more_times_than_retries() -> None:
    assert Policy(retries=2).times_s(5) == [1, 3]
    assert Policy(retries=5).times_s(2) == [1, 3]
    assert Policy(retries=0).times_s(5) == []


def test_the_first_failure_is_tried_again_and_the_one_behind_the_last_retry_is_not() -> None:
    policy = Policy(retries=2)
    assert [policy.tries_again(failed) for failed in (1, 2, 3)] == [True, True, False]
    assert not Policy(retries=0).tries_again(1)


def test_waiting_begins_with_the_delay_and_ends_at_the_longest() -> None:
    policy = Policy(delay="10ms", delay_max="35ms")
    assert [policy.wait_s(failed) for failed in (0, 1, 2, 3, 4)] == [0.01, 0.01, 0.02, 0.035, 0.035]
    assert Policy(delay="2m", delay_max="1m").wait_s(1) == 60


def test_after_a_million_failures_the_wait_is_still_a_number() -> None:
    assert Policy(delay=1e-9, delay_max="1h").wait_s(RETRIES_MAX) == 3600
    assert Policy(delay=0).wait_s(RETRIES_MAX) == 0


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 200))
def test_a_wait_never_gets_shorter_and_never_longer_than_allowed(
    delay_s: float, delay_s_max: float, failed: int
) -> None:
    policy = Policy(delay=delay_s, delay_max=delay_s_max)
    assert policy.wait_s(failed) <= policy.wait_s(failed + 1) <= delay_s_max


def test_durations_are_the_same_however_they_are_written() -> None:
    written = Policy(delay="500ms", delay_max="1m", timeout="2s")
    meant = Policy(delay=0.5, delay_max=timedelta(minutes=1), timeout=2)
    assert written == meant
    assert hash(written) == hash(meant)
    assert (meant.delay_s, meant.delay_s_max, meant.timeout_s) == (0.5, 60, 2)
    assert written != replace(written, timeout="3s")
    assert written != replace(written, delay="501ms")
    assert written != replace(written, delay_max="61s")


def test_a_policy_can_be_changed_into_another() -> None:
    changed = replace(Policy(delay="2s", timeout="5s"), retries=1, delay="3s")
    assert (changed.retries, changed.delay_s, changed.timeout_s) == (1, 3.0, 5.0)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("retries", -1, "retries -1: a whole number, 0 to 1000000"),
        ("retries", RETRIES_MAX + 1, "retries 1000001: a whole number"),
        ("retries", True, "retries True: a whole number"),
        ("retries", 1.0, "retries 1.0: a whole number"),
        ("retries", "3", "retries '3': a whole number"),
        ("retries", None, "retries None: a whole number"),
        ("deaths", 0, "deaths 0: a whole number, 1 to 1000000"),
        ("deaths", False, "deaths False: a whole number"),
        ("dead_letters_max", -1, "dead_letters_max -1: a whole number, 0 to"),
        ("dead_letters_max", "many", "dead_letters_max 'many': a whole number"),
        ("then", "retry", "then 'retry': one of stop, skip, dead-letter"),
        ("then", None, "then None: one of stop"),
        ("then", [], r"then \[\]: one of stop"),
        ("timeout", 0, "timeout 0: leave it out"),
        ("timeout", "0s", "timeout 0: leave it out"),
        ("no_retry", ValueError, "no_retry .*ValueError.*: a tuple of exception classes"),
        ("no_retry", [ValueError], "a tuple of exception classes"),
        ("no_retry", (ValueError, int), "a tuple of exception classes"),
        ("no_retry", (ValueError("x"),), "a tuple of exception classes"),
    ],
)
def test_a_bad_setting_is_refused(setting: str, value: Any, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        Policy(**{setting: value})


@pytest.mark.parametrize("setting", ["delay", "delay_max", "timeout"])
@pytest.mark.parametrize("value", [-1, "soon", "5", True, float("nan"), float("inf"), b"1s"])
def test_a_bad_duration_is_refused_with_the_name_of_the_setting(setting: str, value: Any) -> None:
    with pytest.raises(BadQuantity, match=f"bad {setting}"):
        Policy(**{setting: value})


def test_the_least_that_can_be_said_is_accepted() -> None:
    least = Policy(retries=0, delay=0, delay_max=0, deaths=1, dead_letters_max=0, timeout="1ns")
    assert least.timeout_s == 1e-9
    assert Policy(no_retry=(ValueError, KeyboardInterrupt)).no_retry == (
        ValueError,
        KeyboardInterrupt,
    )
