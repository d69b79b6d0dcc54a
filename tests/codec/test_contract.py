"""The contract of codecs, on the built-in ones and on ones that users add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from headrace.codec import registry
from headrace.codec.registry import codec_names, find_codec, register_codec
from headrace.core.errors import BadName, BadSetting, BadValue, UnknownCodec
from headrace.core.ports import Codec
from headrace.testing.contracts.codec import CodecContract


class TestBytes(CodecContract):
    examples = (b"", b"\x00", bytes(range(256)))
    bad_values = ("text", 5, None, ["a"], object())

    @pytest.fixture
    def codec(self) -> Codec:
        return find_codec("bytes")

    def values(self) -> st.SearchStrategy[Any]:
        return st.binary()

    def test_a_value_that_can_change_is_copied(self, codec: Codec) -> None:
        source = bytearray(b"abc")
        encoded = [codec.encode(source), codec.encode(memoryview(source))]
        source[:] = b"xyz"
        assert encoded == [b"abc", b"abc"]


class TestText(CodecContract):
    examples = ("", "a", "é\u0000\n", "\U0001f600")
    bad_values = (b"bytes", 5, None, "\ud800")
    bad_data = (b"\xff", b"\xc3", b"\xed\xa0\x80")

    @pytest.fixture
    def codec(self) -> Codec:
        return find_codec("text")

    def values(self) -> st.SearchStrategy[Any]:
        return st.text()


@dataclass
class _Order:
    id: int


class TestJson(CodecContract):
    examples = (None, True, 0, -1.5, "é", [], {}, {"a": [{"b": None}]}, 2**64 - 1, -(2**63))
    bad_values = (object(), {"a": object()}, "\ud800", {1: {(1, 2): 3}})
    bad_data = (b"", b"{", b"nul", b"[1,]", b"\xff", b'"\xff"', b"[" * 100_000, b"1 2", b"NaN")

    @pytest.fixture
    def codec(self) -> Codec:
        return find_codec("json")

    def values(self) -> st.SearchStrategy[Any]:
        leaves = (
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text()
        )
        return st.recursive(
            leaves,
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=6,
        )

    def test_richer_values_are_written_and_read_back_as_plain_json(self, codec: Codec) -> None:
        value = {
            "order": _Order(1),
            "at": datetime(2026, 1, 1, tzinfo=UTC),
            "id": UUID(int=1),
            "raw": b"\x00",
        }
        assert codec.decode(codec.encode(value)) == {
            "order": {"id": 1},
            "at": "2026-01-01T00:00:00Z",
            "id": "00000000-0000-0000-0000-000000000001",
            "raw": "AA==",
        }

    def test_a_value_too_deep_to_be_shown_is_refused_all_the_same(self, codec: Codec) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        endless: list[Any] = []
        endless.append(endless)
        for value in (deep, endless):
            with pytest.raises(BadValue, match="codec 'json' cannot encode"):
                codec.encode(value)


class Backwards:
    """Text from its end to its beginning."""

    name = "test.backwards"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadValue(f"codec {self.name} takes str")
        try:
            return value[::-1].encode()
        except UnicodeEncodeError as why:
            raise BadValue(f"codec {self.name}: {why}") from None

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()[::-1]
        except UnicodeDecodeError as why:
            raise BadValue(f"codec {self.name}: {why}") from None


class Upside(Backwards):
    name = "test.upside"


@pytest.fixture
def _forgotten_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_codecs", dict(registry._codecs))


@pytest.fixture
def _installed(_forgotten_afterwards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a package would be that brings two codecs: one by its class, one by an object."""
    here = __name__
    group = "headrace.codecs"
    found = EntryPoints(
        [
            EntryPoint("test.upside", f"{here}:Upside", group),
            EntryPoint("test.object", f"{here}:AN_OBJECT", group),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", found.select)


class _Object(Backwards):
    name = "test.object"


AN_OBJECT = _Object()


class _OfUsers(CodecContract):
    examples = ("", "abc", "é")
    bad_values = (5, b"", "\ud800")
    bad_data = (b"\xff",)

    def values(self) -> st.SearchStrategy[Any]:
        return st.text()


@pytest.mark.usefixtures("_forgotten_afterwards")
class TestRegistered(_OfUsers):
    @pytest.fixture
    def codec(self) -> Codec:
        codec = Backwards()
        register_codec(codec)
        return codec


class TestInstalledAsClass(_OfUsers):
    @pytest.fixture
    def codec(self, _installed: None) -> Codec:
        return find_codec("test.upside")


class TestInstalledAsObject(_OfUsers):
    @pytest.fixture
    def codec(self, _installed: None) -> Codec:
        return find_codec("test.object")


@pytest.mark.usefixtures("_installed")
def test_an_installed_codec_is_listed_before_it_is_loaded() -> None:
    assert codec_names() == ["bytes", "json", "test.object", "test.upside", "text"]


@pytest.mark.usefixtures("_forgotten_afterwards")
def test_a_codec_takes_the_place_of_one_of_its_name() -> None:
    first, second = Backwards(), Backwards()
    register_codec(first)
    register_codec(second)
    assert find_codec("test.backwards") is second


def _things_that_are_no_codec() -> Iterator[tuple[object, type[Exception]]]:
    class NoDecode:
        name = "half"

        def encode(self, value: Any) -> bytes:
            return bytes(value)

    class BadlyNamed(Backwards):
        name = "no name"

    class Unnamed(Backwards):
        name = 5  # type: ignore[assignment]

    yield from ((thing, BadSetting) for thing in (None, "json", NoDecode(), Unnamed(), Backwards))
    yield BadlyNamed(), BadName


@pytest.mark.parametrize(("thing", "error"), list(_things_that_are_no_codec()))
def test_an_object_that_is_no_codec_is_not_registered(thing: Any, error: type[Exception]) -> None:
    before = codec_names()
    with pytest.raises(error):
        register_codec(thing)
    assert codec_names() == before


@pytest.mark.parametrize("name", ["no-such", "", None, ["json"]])
def test_an_unknown_codec_is_named_with_those_that_are_known(name: Any) -> None:
    with pytest.raises(UnknownCodec, match="known are bytes, json, text") as caught:
        find_codec(name)
    assert caught.value.name == name
