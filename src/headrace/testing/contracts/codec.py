"""The contract of `headrace.core.ports.Codec`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.codec.registry import codec_names, find_codec
from headrace.core.errors import BadValue
from headrace.core.names import checked_name
from headrace.core.ports import Codec
from headrace.hub.opening import open as open_hub

STEADY = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class CodecContract:
    """Subclass it with a fixture ``codec`` that returns a registered codec, and with examples."""

    examples: Sequence[Any]
    """Values that decode to themselves."""
    bad_values: Sequence[Any]
    """Values that the codec must refuse to encode."""
    bad_data: Sequence[bytes] = ()
    """Data that the codec must refuse to decode; empty if the codec can decode any data."""

    @pytest.fixture
    def codec(self) -> Codec:
        raise NotImplementedError("give a fixture `codec`: the codec under test, registered")

    def values(self) -> st.SearchStrategy[Any]:
        """A strategy for values that decode to themselves."""
        return st.sampled_from(self.examples)

    def test_a_codec_has_a_legal_name_and_is_found_by_it(self, codec: Codec) -> None:
        assert checked_name(codec.name) == codec.name
        assert codec.name in codec_names()
        assert find_codec(codec.name) is codec

    def test_the_examples_decode_to_themselves(self, codec: Codec) -> None:
        assert self.examples
        encoded = [codec.encode(value) for value in self.examples]
        assert {type(data) for data in encoded} == {bytes}
        assert [codec.decode(data) for data in encoded] == list(self.examples)

    def test_every_value_decodes_to_itself(self, codec: Codec) -> None:
        @STEADY
        @given(self.values())
        def comes_back(value: Any) -> None:
            found = codec.decode(codec.encode(value))
            assert found == value
            assert type(found) is type(value)

        comes_back()

    def test_encoding_an_unknown_value_raises_bad_value(self, codec: Codec) -> None:
        assert self.bad_values
        for value in self.bad_values:
            with pytest.raises(BadValue, match=codec.name):
                codec.encode(value)

    def test_decoding_unknown_data_raises_bad_value(self, codec: Codec) -> None:
        for data in self.bad_data:
            with pytest.raises(BadValue, match=codec.name):
                codec.decode(data)

        @STEADY
        @given(st.binary(max_size=64))
        def decodes_or_refuses(data: bytes) -> None:
            try:
                value = codec.decode(data)
            except BadValue:
                assert data not in [codec.encode(example) for example in self.examples]
            else:
                assert codec.decode(codec.encode(value)) == value

        decodes_or_refuses()

    def test_many_values_encode_together_as_they_do_one_by_one(self, codec: Codec) -> None:
        values = [None, *(value for value in self.examples if value is not None)]
        data = [None if value is None else codec.encode(value) for value in values]
        if encode_many := getattr(codec, "encode_many", None):
            assert encode_many(values) == data
        if decode_many := getattr(codec, "decode_many", None):
            assert decode_many(data) == values
            for bad in self.bad_data:
                with pytest.raises(BadValue):
                    decode_many([bad])

    def test_threads_can_share_a_codec(self, codec: Codec) -> None:
        def use(_: int) -> bool:
            return all(
                codec.decode(codec.encode(value)) == value
                for _ in range(200)
                for value in self.examples
            )

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(use, range(4))) == [True] * 4

    def test_a_stream_can_use_the_codec(self, codec: Codec) -> None:
        with open_hub("memory:") as hub:
            stream = hub.create_stream("a", shards=1, codec=codec.name)
            for value in self.examples:
                stream.append(value)
            stream.append_many([(value, None) for value in self.examples])
            found = [record.value for record in hub.stream("a").read(0)]
        assert found == [*self.examples, *self.examples]
