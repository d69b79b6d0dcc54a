from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import redaction
from headrace.core.redaction import shown_place


@pytest.mark.parametrize(
    "place",
    ["./data", "memory:", "C:/data", "kafka://a:9092,b:9092", "kafka://a?linger.ms=5", "a?b", ""],
)
def test_a_setting_that_is_no_secret_is_shown(place: str) -> None:
    assert shown_place(place) == place


@pytest.mark.parametrize(
    "name",
    ["sasl.password", "SASL.Password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.token",
     "client.secret", "sasl.jaas.config", "sasl.pass%77ord"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["hunter2", "a=hunter2", "%68unter2?hunter2", ""])
def test_a_secret_is_not_shown(name: str, value: str) -> None:
    shown = shown_place(f"kafka://host:9092?a=b&{name}={value}&c=d")
    assert shown == f"kafka://host:9092?a=b&{name}=***&c=d"


def test_half_a_password_is_not_shown() -> None:
    """An & that was not written %26 cuts it."""
    assert shown_place("kafka://h?sasl.password=ab&cd&ef&a=b") == "kafka://h?sasl.password=***&a=b"


def test_a_password_before_the_host_is_not_shown() -> None:
    assert shown_place("kafka://ann:p@ss:w@host:9092?a=b") == "kafka://ann:***@host:9092?a=b"
    assert shown_place("kafka://ann@host") == "kafka://ann@host"


@given(st.text(), st.text())
def test_no_text_hides_a_password(before: str, after: str) -> None:
    shown = shown_place(f"kafka://host?{before}&sasl.password=hunter2&{after}")
    assert "hunter2" not in shown.replace(before, "").replace(after, "")


def test_the_example_is_true() -> None:
    assert doctest.testmod(redaction).failed == 0
