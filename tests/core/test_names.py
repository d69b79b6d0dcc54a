from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadName
from headrace.core.names import NAME_CHARS_MAX, checked_name, from_one_word, one_word

_PART = st.text("abzAZ09._-", min_size=1, max_size=12)


def _legal(text: str) -> bool:
    try:
        checked_name(text)
    except BadName:
        return False
    return True


NAMES = st.one_of(_PART, st.builds("{}/{}".format, _PART, _PART)).filter(_legal)


@settings(max_examples=1_000)
@given(NAMES)
def test_a_name_and_its_one_word_form_determine_each_other(name: str) -> None:
    word = one_word(name)
    assert "/" not in word
    assert from_one_word(word) == name


@settings(max_examples=500)
@given(st.text("ab.-_/", max_size=9))
def test_a_word_stands_for_one_name_or_for_none(word: str) -> None:
    try:
        name = from_one_word(word)
    except BadName:
        return
    assert one_word(name) == word


@settings(max_examples=500)
@given(st.text())
def test_any_text_is_a_name_or_refused(text: str) -> None:
    if _legal(text):
        assert checked_name(text) == text
        assert set(text) <= set(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/"
        )


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("my-consumer-group", "my-consumer-group"),
        ("example.colors", "example.colors"),
        ("my-stream", "my-stream"),
        ("shop/orders", "shop--orders"),
        ("a-b/c-d", "a-b--c-d"),
        ("...", "..."),
        ("-", "-"),
        ("0", "0"),
        ("_/_", "_--_"),
        ("a" * 249, "a" * 249),
        ("a" * 123 + "/" + "b" * 124, "a" * 123 + "--" + "b" * 124),
    ],
)
def test_legal_names_and_their_words(name: str, word: str) -> None:
    assert checked_name(name) == name
    assert one_word(name) == word
    assert from_one_word(word) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("/", "empty before or after the slash"),
        ("a/", "empty before or after the slash"),
        ("/b", "empty before or after the slash"),
        ("a/b/c", "at most one slash, as in namespace/name"),
        ("a//b", "at most one slash, as in namespace/name"),
        ("..", "'.' and '..' are no names"),
        (".", "'.' and '..' are no names"),
        ("../x", "'.' and '..' are no names"),
        ("a/..", "'.' and '..' are no names"),
        ("a--b", "'--' stands for the slash where a slash cannot be written"),
        ("a-/b", "no '-' next to the slash"),
        ("a/-b", "no '-' next to the slash"),
        *(
            (name, "only letters, digits, '.', '_' and '-', and one slash")
            for name in (
                "a b",
                " a",
                "a ",
                "é",
                "a\n",
                "a\0",
                "\0",
                "a\\b",
                "a:b",
                "a+b",
                "а",  # noqa: RUF001 - a Cyrillic letter that looks like a Latin one
                "ａ",  # noqa: RUF001 - a full-width letter
                "\u0661",  # a digit, though no ASCII one
                "a\u200bb",
                "\ud800",
            )
        ),
        (None, "a name is text"),
        (5, "a name is text"),
        (b"a", "a name is text"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason(name: Any, why: str) -> None:
    with pytest.raises(BadName) as caught:
        checked_name(name)
    assert str(caught.value) == f"bad name {name!r}: {why}"
    assert caught.value.name == name


@pytest.mark.parametrize("name", ["a" * 250, "a" * 124 + "/" + "b" * 124])
def test_a_name_is_too_long_by_its_one_word_form(name: str) -> None:
    with pytest.raises(BadName, match=f"longer than {NAME_CHARS_MAX} with the slash counted twice"):
        checked_name(name)


def test_a_name_with_a_slash_is_no_one_word_form() -> None:
    with pytest.raises(BadName):
        from_one_word("shop/orders")
